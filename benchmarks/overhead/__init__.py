"""The cost of a step apart from its model, in mendgraph and in other agents."""
