"""What an environment allows of a call: limits, roles, retries, circuits, and what is written down of it. Pure."""
