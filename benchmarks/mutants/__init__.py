"""Mutation tests of the pure files: `make mutants`."""
