"""What exists for small models: the block form of their edits, and checks of their answers and files.

`graph/machine/small_models.py` alone imports it; nodes have its objects by the interfaces of `language/block_form.py`.

Measured on the embedded model (`benchmarks/details.md`): with edits by old and new text 2 of 24 runs ended as done
without a change, and 5 without `answers`; in the block form it moves nothing. `request_checks` solve four of 33 orders.
"""
