"""Checks, tests and examples that show whether the work is right."""
