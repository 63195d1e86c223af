"""A clock for model calls: each call takes a fixed time, and waits between tries take none."""

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest


def set_clock(
    patch: pytest.MonkeyPatch, seconds_per_call: float = 1.0, sleep: Callable[[float], None] | None = None
) -> list[float]:
    """Replace the clock and the waits of model calls.

    Args:
        patch: undoes the replacement.
        seconds_per_call: how long each model call takes on the clock.
        sleep: is called with the seconds of each wait, instead of recording them.

    Returns:
        The recorded waits, in seconds. Each is the longest that the backoff may draw.
    """
    waits: list[float] = []
    ticks = count(step=seconds_per_call)
    wait = waits.append if sleep is None else sleep

    async def wait_in_loop(seconds: float) -> None:
        wait(seconds)

    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=waits.append)
    loop = SimpleNamespace(**{**vars(asyncio), "sleep": wait_in_loop})
    patch.setattr("mendgraph.nodes.call_model.services.time", clock)
    patch.setattr("mendgraph.nodes.call_model.services.asyncio", loop)
    patch.setattr("mendgraph.graph.machine.models.random", SimpleNamespace(random=lambda: 1.0))
    patch.setattr("mendgraph.graph.machine.bound_nodes.StopRequest.wait", lambda _, seconds: wait(seconds))
    return waits
