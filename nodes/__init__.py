"""One room for each node of the machine; rooms share only `mendgraph.nodes.records` and `mendgraph.nodes.language`."""
