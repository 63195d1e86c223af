"""Where a run that was played once more went another way than before. Pure."""

from collections.abc import Iterator
from itertools import zip_longest

from langchain_core.messages import AIMessage, AnyMessage

from graph.cassettes.run_course import FAILED_CALL, RunCourse
from nodes.records import Outcome

_AROUND = 60
"""Characters that are shown before and after the place where two texts differ."""

FOLDER, FAILURE = "<workspace>", "<failure>"


def course_difference(stored: RunCourse, played: RunCourse) -> str:
    """The first thing that differs, in one sentence without its full stop; "" where both went the same way.

    The name of the folder that each of them was played in makes no difference.
    """
    first = next(_differences(stored, played), "")
    return first and next(_results(stored, played), first)


def _differences(stored: RunCourse, played: RunCourse) -> Iterator[str]:
    for was, now in zip_longest(stored.path, played.path, fillvalue=(0, "nothing")):
        if was != now:
            yield f"in step {was[0] or now[0]} the run went to {was[1]}, and now it goes to {now[1]}"
    for number, (first, second) in enumerate(zip_longest(stored.messages, played.messages), start=1):
        one, other = _words(first, stored), _words(second, played)
        if one != other:
            yield f"message {number} of the conversation is another one: {_apart(one, other)}"
    for turn, (ended, ends) in enumerate(zip_longest(map(_end, stored.outcomes), map(_end, played.outcomes)), start=1):
        if ended != ends:
            yield f"turn {turn} ended with {ended}, and now it ends with {ends}"


def _results(stored: RunCourse, played: RunCourse) -> Iterator[str]:
    """The results that are other ones: they say best why a run does not repeat."""
    for was, now in zip(stored.results, played.results, strict=False):
        one = was.result.replace(stored.context.workspace, FOLDER)
        other = now.result.replace(played.context.workspace, FOLDER)
        if (was.step, was.tool) == (now.step, now.tool) and one != other:
            yield f"in step {was.step} {was.tool} gave another result: {_apart(one, other)}"


def _end(outcome: Outcome) -> str:
    return f"{outcome.kind.value} ({outcome.reason.value})"


def _words(message: AnyMessage | None, course: RunCourse) -> str:
    """What a message says, without the names of the folder and, where a call failed, of the endpoint."""
    if message is None:
        return ""
    calls = str([(call["name"], call["args"]) for call in message.tool_calls]) if isinstance(message, AIMessage) else ""
    text = f"{message.type}: {message.text}{calls}".replace(course.context.workspace, FOLDER)
    for outcome in course.outcomes:
        text = text.replace(outcome.message, FAILURE) if outcome.reason in FAILED_CALL else text
    return text


def _apart(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
    start = max(at - _AROUND, 0)
    return f"it was ...{one[start : at + _AROUND]!r}, and is now ...{other[start : at + _AROUND]!r}"
