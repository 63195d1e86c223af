"""A check that the tests notice typical faults of a hurried developer: `make planted`."""
