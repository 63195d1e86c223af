"""The last call of a run that a limit ends: the model gives its own account of what was done and what is left.

One call is held back for it (`nodes.call_model.ledger`), so what it is shown is bounded: the facts of the turn, not the
conversation.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from langchain_core.messages import AIMessage, AnyMessage

from nodes.call_model.ledger import RunLimits, Spending, exhausted_limit
from nodes.call_model.shown_messages import message_of
from nodes.language.history import is_request
from nodes.records import FileChange, JsonMap, ModelReply, Plan, StopCause, StopReason

MOST_BYTES: Final = 4_800
"""Of what is asked, so that it needs at most 2,000 tokens even at a rate of 2.4 bytes each."""

LONGEST_ACCOUNT: Final = 2_000
"""Of an account that are kept, in bytes of UTF-8 like all of these."""

WRAPPED_UP: Final = frozenset(
    {
        StopReason.MAX_CALLS_PER_SESSION,
        StopReason.MAX_CALLS_PER_TURN,
        StopReason.MAX_INPUT_TOKENS,
        StopReason.MAX_OUTPUT_TOKENS,
        StopReason.MAX_STEPS,
        StopReason.MAX_COST,
    }
)
"""The limits of which something is held back. Of time and of a day's limits nothing is: what is over is over."""

WRAP_UP_SYSTEM: Final = """\
You are a coding agent whose run ends now, because a limit of it is reached. You can make no more calls.
Write a short account for the person who gave you the task, in plain text and at most 150 words: what is done, what is
left, and what to know before going on. Say nothing that the facts do not say."""

_CALL: Final = "tool:"
_MOST_TASK, _MOST_LIMIT, _MOST_PLAN, _MOST_PATHS, _MOST_CALLS, _MOST_SAID = 1_400, 300, 700, 500, 800, 500
"""All together, with their titles and `WRAP_UP_SYSTEM`, are fewer than `MOST_BYTES`: no fact drives out another."""


def may_wrap_up(spending: Spending, limits: RunLimits, cause: StopCause) -> bool:
    """Whether this limit, which a router has seen, still lets the last call be made: steps are no calls."""
    if cause.reason is not StopReason.MAX_STEPS or not limits.wrap_up:
        return False
    return exhausted_limit(spending, limits.model_copy(update={"max_steps": None})) is None


def wrap_up_messages(
    history: Sequence[AnyMessage], cause: StopCause, plan: Plan, changes: Sequence[FileChange]
) -> tuple[JsonMap, ...]:
    """What the model is asked: the task, the limit, the plan, the changed files, its last calls and last words."""
    start = max((place for place, message in enumerate(history) if is_request(message)), default=0)
    task = history[start].text if history else ""
    facts = [f"Task:\n{_cut(task, _MOST_TASK)}", f"Limit: {_cut(cause.message, _MOST_LIMIT)}"]
    if plan.steps:
        steps = "\n".join(f"- {step.title} ({step.status.value})" for step in plan.steps)
        facts.append(f"Plan:\n{_cut_front(steps, _MOST_PLAN)}")
    paths = list(dict.fromkeys(change.path for change in changes))
    facts.append(f"Changed files: {_cut(', '.join(paths), _MOST_PATHS) or 'none'}")
    replies = [message for message in history[start:] if isinstance(message, AIMessage)]
    if calls := list(dict.fromkeys(_calls(replies))):
        facts.append("Calls, the last one at the end:\n" + _cut_front("\n".join(calls), _MOST_CALLS))
    if said := next((text for reply in reversed(replies) if (text := reply.text.strip())), ""):
        facts.append(f"What you said last:\n{_cut(said, _MOST_SAID)}")
    return message_of("system", WRAP_UP_SYSTEM), message_of("user", "\n\n".join(facts))


def account_of(reply: ModelReply) -> str:
    """The account that a reply gives; "" where it calls tools instead."""
    text = reply.text.strip()
    if reply.calls or any(map(_is_call, text.splitlines())):
        return ""
    return _cut(text, LONGEST_ACCOUNT)


def _calls(replies: Sequence[AIMessage]) -> Iterator[str]:
    """Each call in a few words: its tool, and the short ones of its arguments."""
    for reply in replies:
        for call in reply.tool_calls:
            words = [str(value) for value in call["args"].values() if isinstance(value, str | int) and _is_short(value)]
            yield f"- {call['name']} {' '.join(words)}".strip()
        yield from (f"- {_cut(line[len(_CALL) :].strip(), 100)}" for line in reply.text.splitlines() if _is_call(line))


def _is_call(line: str) -> bool:
    return line.startswith(_CALL)


def _is_short(value: object) -> bool:
    text = str(value)
    return len(text) <= 80 and "\n" not in text


def _cut(text: str, most: int) -> str:
    """The text, or its beginning. Sizes are bytes of UTF-8; what that cannot say, half a character, is replaced."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= most else f"{data[: most - 4].decode(errors='ignore').rstrip()} ..."


def _cut_front(text: str, most: int) -> str:
    """The text, or its end."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= most else f"... {data[4 - most :].decode(errors='ignore').lstrip()}"
