"""The agents that are attacked, each loaded by the Python of its own environment."""
