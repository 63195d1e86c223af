"""The tests. Begin with `recorded/`: what a real model did, and what the machine made of it.

Then `scenarios/transcripts/`: a story for every other situation of a run. docs/testing.md describes the rest.
"""
