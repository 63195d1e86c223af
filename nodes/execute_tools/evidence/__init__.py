"""What can be run to see whether the work is right: checks, tests, examples of the request."""
