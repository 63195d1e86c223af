"""One target, attacked for a chosen time with input that hypothesis makes up.

Hypothesis and not atheris: it runs wherever this project does, while atheris has wheels for Linux on x86_64 alone and
none for all of our Pythons; and what reads here are mostly regular expressions, orjson and libyaml, in whose C the
coverage that would guide atheris is not seen.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from types import FrameType
from typing import Any, Final, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.fuzz.case import Case
from tests.fuzz.target import Target

ROUND: Final = 1_000
"""Examples that hypothesis makes from one seed: it remembers all of them."""

SLOWEST_S: Final = 10.0
"""How long one input may take. Everything here is linear, and inputs are small."""


class TooSlowError(Exception):
    """An input took longer than `SLOWEST_S`."""


class _EndError(BaseException):
    """Leaves hypothesis, which would go on after any ordinary error."""


class _FoundError(Exception):
    """An input was handled wrongly: hypothesis makes it smaller, and tries the smallest one last."""


class Course(NamedTuple):
    """How an attack went."""

    examples: int
    seconds: float
    found: Case | None


def attack(
    target: Target,
    first_seed: int,
    *,
    seconds: float = inf,
    examples: float = inf,
    clock: Callable[[], float] = time.monotonic,
) -> Course:
    """Try inputs for so many seconds of `clock`, or so many inputs, or until one is handled wrongly."""
    began, tried, found = clock(), 0, None

    def once(value: Any) -> None:
        nonlocal tried, found
        if found is None and (tried >= examples or clock() - began >= seconds):
            raise _EndError
        tried += 1
        if error := error_of(target, value):
            found = Case(target.name, json.loads(json.dumps(value)), error)
            raise _FoundError

    quiet = settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
        verbosity=Verbosity.quiet,
    )
    attacked = quiet(given(target.inputs())(once))
    try:
        for number in count(first_seed):
            seed(number)(attacked)()
    except (_EndError, _FoundError):
        pass
    return Course(tried, clock() - began, found)


def error_of(target: Target, value: Any) -> str | None:
    """Where and how the target goes wrong with this input; None where all holds."""
    try:
        with _bounded():
            target.holds(value)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        return f"{_place(error)} {type(error).__name__}: {error}"
    return None


def _place(error: Exception) -> str:
    """The function of this project that was at work, and its line."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if ".venv" not in code.co_filename and "/lib/python" not in code.co_filename:
            place = f"{code.co_qualname}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


@contextmanager
def _bounded() -> Iterator[None]:
    """Not longer than an input may take; regular expressions listen to signals."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {SLOWEST_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SLOWEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
