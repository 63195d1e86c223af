"""The three terminals and their report."""
