"""What became of examples, and how it is told: `add(2, 3) gives -1, but must give 5.` Pure."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from nodes.execute_tools.tools.examples import Example, Kind, grouped
from nodes.records import JsonMap

LONGEST_VALUE: Final = 160
"""Characters of a value, an error or a piece of code that a sentence shows."""


class Status(StrEnum):
    """What an example came to. UNKNOWN: it did not run, or the code is not to blame for how it went."""

    PASSED = "passed"
    DIFFERENT = "different"
    RAISED = "raised"
    ENDLESS = "endless"
    UNKNOWN = "unknown"


FAILING: Final = frozenset({Status.DIFFERENT, Status.RAISED, Status.ENDLESS})


class Result(NamedTuple):
    """The status, and what came instead: the value or the error."""

    status: Status = Status.UNKNOWN
    told: str = ""


class ModuleRun(NamedTuple):
    """What the examples of one module came to, in their order.

    `error` says why the module could not be loaded, and `own` that its own code is to blame for that.
    """

    results: tuple[Result, ...]
    loaded: bool = False
    own: bool = False
    error: str = ""


def read_run(answer: JsonMap, count: int) -> ModuleRun:
    """The answer of `Checks.run_examples` about a module with `count` examples."""
    told = [Result(Status(status), text) for status, text in answer["results"]]
    results = (told + [Result()] * count)[:count]
    return ModuleRun(tuple(results), answer["loaded"], answer["own"], answer["error"])


def failures(examples: Sequence[Example], results: Iterable[Result], seconds: float) -> list[tuple[int, str]]:
    """The places of the failing examples, each with its sentence; `seconds` is what all of them were given.

    Of those that share their names only the first is told, as the others may follow from it.
    """
    found: list[tuple[int, str]] = []
    start, left = 0, iter(results)
    for group in grouped(examples):
        ran = list(zip(group, left, strict=False))
        first = next((index for index, (_, result) in enumerate(ran) if result.status in FAILING), None)
        if first is not None:
            example, result = ran[first]
            setup = [each.source for each in group[:first] if not each.want] if example.kind is Kind.OUTPUT else []
            found.append((start + first, sentence(example, result, seconds, setup)))
        start += len(group)
    return found


def sentence(example: Example, result: Result, seconds: float, setup: Sequence[str] = ()) -> str:
    """What is wrong, in words; `setup` are the lines of the example before it."""
    code = _code([*setup, example.source])
    if result.status is Status.ENDLESS:
        return f"{code} does not end within {seconds:g} s."
    if example.kind is Kind.HOLDS:
        return f"{code} raises {_short(result.told)}." if result.status is Status.RAISED else f"{code} does not hold."
    came = f"raises {_short(result.told)}" if result.status is Status.RAISED else f"gives {_short(result.told)}"
    return f"{code} {came}, but must {_wanted(example)}."


def _wanted(example: Example) -> str:
    if example.kind is Kind.RAISES:
        return f"raise {example.want}"
    if example.raises is not None:
        return f"raise {_short(example.raises)}"
    return f"give {_short(example.want)}"


def _code(sources: Sequence[str]) -> str:
    """The code on one line; without what goes before it where that is long."""
    lines = [" ".join(each.split()) if "\n" in each.strip() else each.strip() for each in sources]
    whole = "; ".join(lines)
    return whole if len(whole) <= LONGEST_VALUE else _short(lines[-1])


def _short(text: str) -> str:
    """A text on one line, cut where it is long."""
    line = " / ".join(each.rstrip() for each in text.strip().splitlines()) or "nothing"
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
