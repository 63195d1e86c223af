"""Are the tests of the pure files good enough to notice a change? `make mutants`."""
