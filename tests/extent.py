"""How far the tests go that could go on for hours; read from MENDGRAPH_SWEEP when the tests are collected.

`make test` samples ("some"), CI's `make sweep SWEEP=turns` goes as far as docs/testing.md
says, `make sweep` further ("all").
"""

import os
from typing import Final, Literal

import pytest

Extent = Literal["some", "turns", "all"]
EXTENTS: Final[tuple[Extent, ...]] = ("some", "turns", "all")
EXTENT: Final[Extent] = next((extent for extent in EXTENTS if extent == os.environ.get("MENDGRAPH_SWEEP")), "some")
LEVEL: Final = EXTENTS.index(EXTENT)
"""0, 1 or 2."""
in_sweeps = pytest.mark.in_sweeps
"""For what has no smaller sample: it takes many seconds of CPU, and shows no part that another test does not show."""
sampled = pytest.mark.sampled
"""For what `make test` runs with a small sample, and a sweep with a larger one."""
nightly = pytest.mark.nightly
"""For what takes a minute of CPU, and can break only where few changes are made."""

SKIPPED: Final = {
    "in_sweeps": "" if LEVEL else "make sweep SWEEP=turns runs it, as CI does",
    "nightly": "" if EXTENT == "all" else "make sweep runs it, as a nightly job does",
}
"""Why tests with these markers are skipped; "" where they run."""
