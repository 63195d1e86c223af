"""The tools and how their calls are run: the only package that touches the workspace, processes or the network."""
