"""One room for each node of the machine; rooms share only `nodes.records` and `nodes.language`."""
