"""The protection of a harness against a model that obeys injected instructions."""
