"""The attacked agents. The Python of each agent's environment imports its module."""
