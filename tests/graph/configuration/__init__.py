"""Tests of settings from files."""
