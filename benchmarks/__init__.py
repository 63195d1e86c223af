"""Measurements of mendgraph; nothing here is installed with it."""
