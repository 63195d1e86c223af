"""Everything for small models: the block form of edits, and checks of their answers and files.

Only `graph/machine/small_models.py` imports it; nodes use the interfaces of `language/block_form.py`. Measured on the
embedded model (`benchmarks/details.md`): with edits by old and new text 2 of 24 runs ended as done without a change,
and 5 without `answers`; in the block form it has no effect. `request_checks` solve 4 of 33 orders.
"""
