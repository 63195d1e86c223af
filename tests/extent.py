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
in_sweeps = pytest.mark.in_sweeps
"""Marks a test that takes many seconds, has no smaller sample, and covers nothing that other tests do not cover."""
sampled = pytest.mark.sampled
"""Marks a test with a small sample in `make test` and a larger one in a sweep."""
nightly = pytest.mark.nightly
"""Marks a test that takes a minute and covers code that seldom changes."""

SKIPPED: Final = {
    "in_sweeps": "" if LEVEL else "make sweep SWEEP=turns runs it, as CI does",
    "nightly": "" if EXTENT == "all" else "make sweep runs it, as a nightly job does",
}
"""For each marker the reason to skip its tests, or "" to run them."""
