"""What a run on a small model does beside what every run does: its answers are held against what happened.

Measured on the embedded model (`benchmarks/details.md`): with edits by old and new text 2 of 24 runs ended as done
without a change, and 5 without this; in the block form it moves nothing.
"""
