"""The room that acts: the only one that touches the workspace, processes or the network."""
