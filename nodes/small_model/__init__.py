"""What a run on a small model does beside what every run does: its answers and files are held against the request.

Measured on the embedded model (`benchmarks/details.md`): with edits by old and new text 2 of 24 runs ended as done
without a change, and 5 without `answers`; in the block form it moves nothing. `request_checks` solve four of 33 orders.
"""
