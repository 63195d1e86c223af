"""Which calls of a play a short sweep visits: those between which a killed process leaves something else behind.

Of 546 calls of the run that is killed, 362 are the pages that its database writes. A transaction is there when its last
page is, so of the pages that are written one after the other the last stands for all that a kill may leave out, and the
first for all that may fail. A sync changes nothing that a killed process leaves, as the page cache outlives it; it can
fail, though. Of these turning points `make test` visits every 48th, CI each, and `make sweep` visits all calls.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from tests import extent as extents
from tests.crash.sweep import REPEATED
from tests.extent import Extent

EXTENT: Final[Extent] = "all" if REPEATED else extents.EXTENT
"""What a sweep visits: every forty-eighth turning point, every one, or every call."""


def visited(trace: Sequence[str], *, failing: bool = False, extent: Extent = EXTENT) -> list[int]:
    """The numbers of the calls of a play to visit, counted from 1; `failing` are calls that fail, not kills."""
    if extent == "all":
        return [*range(1, len(trace) + 1)]
    return turning_points(trace, failing=failing)[:: 48 if extent == "some" else 1]


def turning_points(trace: Sequence[str], *, failing: bool = False) -> list[int]:
    """The calls that stand for all."""
    chosen: list[int] = []
    for call, group in groupby(enumerate(trace, 1), lambda numbered: numbered[1]):
        numbers = [number for number, _ in group]
        if "sync" in call.partition(" ")[0] and not failing:
            continue
        if call.startswith("pwrite") and "sqlite" in call:
            chosen.append(numbers[0] if failing else numbers[-1])
        else:
            chosen += numbers
    return chosen
