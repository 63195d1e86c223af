"""A reply becomes calls, errors or an answer."""
