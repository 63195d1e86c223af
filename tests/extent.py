"""The extent of tests that could run for hours, read from MENDGRAPH_SWEEP when the tests are collected.

`make test` takes samples ("some"), `make sweep SWEEP=turns` in CI takes the samples of docs/testing.md ("turns"), and
`make sweep` the largest ones ("all").
"""

import os
from typing import Final, Literal

import pytest

Extent = Literal["some", "turns", "all"]
EXTENTS: Final[tuple[Extent, ...]] = ("some", "turns", "all")
EXTENT: Final[Extent] = next((extent for extent in EXTENTS if extent == os.environ.get("MENDGRAPH_SWEEP")), "some")
LEVEL: Final = EXTENTS.index(EXTENT)
"""The extent as a number: 0, 1 or 2."""
slow = pytest.mark.slow
"""Marks a test that takes long and is not one that `tests/README.md` names: `make sweep` runs it, in CI as well."""
sampled = pytest.mark.sampled
"""Marks a test with a small sample in `make test` and a larger one in a sweep."""
nightly = pytest.mark.nightly
"""Marks a test that takes a minute and covers code that seldom changes."""

NIGHTLY_SKIP: Final = "" if EXTENT == "all" else "make sweep runs it, as a nightly job does"
"""The reason to skip the tests marked `nightly`, or "" to run them."""
