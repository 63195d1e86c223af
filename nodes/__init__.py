"""One package for each node of the machine. They share only `mendgraph.nodes.records` and `mendgraph.nodes.language`."""
