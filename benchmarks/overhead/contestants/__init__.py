"""The agents that are measured, each in a module that is loaded by the Python of its own environment."""
