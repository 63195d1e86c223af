"""The three terminal nodes and their report."""
