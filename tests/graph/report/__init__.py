"""Tests of the run report."""
