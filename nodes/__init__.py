"""One package for each node of the machine. They share `mendgraph.nodes.records` and `mendgraph.nodes.language`."""
