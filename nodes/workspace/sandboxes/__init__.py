"""Sandboxes for programs: the `Sandbox` protocol, and one file for each backend."""
