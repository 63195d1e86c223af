"""The injected goals, one file for two families: plain data."""
