"""Do the tests notice the faults that a hurried developer makes? `make planted`."""
