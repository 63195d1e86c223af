"""The share of a run's input that the provider read from its cache, and why a prompt did not continue the last one.

A provider's cache holds the beginning of a prompt: tools, system prompt, then messages. The history of a thread only
grows, so each prompt continues the one before unless one of the reasons here holds; the checkpoints tell them. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from mendgraph.graph.report.history import Step, Visit
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.records import JsonMap, ModelReply, Profile

_SHAPING: Final = (
    *("mode", "role", "offer", "delegation", "memory", "allowed_programs", "allowed_commands", "allowed_hosts"),
    *("response_format", "reasoning_effort", "web_search"),
)
"""Fields of a context that change the tools, the system prompt, or what a provider keys its cache by."""


class Prefix(NamedTuple):
    """The prompt of a step: its input tokens, and those read from the cache.

    `broken` says why it does not continue the prompt of the step before, "" if it does or is the first.
    """

    step: int
    input_tokens: int
    cached_tokens: int
    broken: str


def prefixes(steps: Sequence[Step]) -> Iterator[Prefix]:
    """Yield the prompts of the steps whose model was called."""
    last: Visit | None = None
    for step in steps:
        visit = step.of("call_model")
        reply = step.reply
        if visit is None or reply is None or reply.preloaded:
            continue

        before, after = step.spending
        yield Prefix(
            step=step.number,
            input_tokens=step.tokens[0],
            cached_tokens=after.cached_tokens - before.cached_tokens,
            broken="" if last is None else broken_by(last, visit),
        )
        last = visit


def broken_by(last: Visit, visit: Visit) -> str:
    """Return why the prompt of this model call does not continue that of the `last` one, "" if it does."""
    old = last.after.get("reply") or ModelReply()
    new = visit.after.get("reply") or ModelReply()
    if old.model != new.model:
        return f"another model was asked: {new.model or 'an unnamed one'}"

    old_profile = last.before.get("profile") or Profile()
    profile = visit.before.get("profile") or Profile()
    if (old_profile.protocol, old_profile.edit_form) != (profile.protocol, profile.edit_form):
        return "the tools changed: calls or edits are written in another form"

    settings = _changed_settings(last.before.get("context"), visit.before.get("context"))
    if settings:
        return f"tools or system prompt changed: {', '.join(settings)}"

    old_window = last.after.get("window") or WHOLE
    window = visit.after.get("window") or WHOLE
    if (old_window.first, old_window.head, old_window.cleared) != (window.first, window.head, window.cleared):
        return "the history was compacted"
    if (last.before.get("notes") or ()) != (visit.before.get("notes") or ()):
        return "an earlier message changed: the project's notes come before the first request"

    corrections = tuple(last.before.get("corrections") or ())
    if tuple(visit.before.get("corrections") or ())[: len(corrections)] != corrections:
        return "the corrections of unusable replies left the history"

    return ""


def _changed_settings(old: Any, new: Any) -> list[str]:
    if old is None or new is None or old is new:
        return []

    return [name for name in _SHAPING if getattr(old, name) != getattr(new, name)]


def cache_object(spending: Spending, steps: Sequence[Step]) -> JsonMap:
    """Return the run's use of the cache for programs; `share` is that of its input tokens, None without input."""
    total = spending.usage.total_input_tokens
    return {
        "input_tokens": total,
        "cached_tokens": spending.cached_tokens,
        "written_tokens": spending.cache_write_tokens,
        "share": round(spending.cached_tokens / total, 4) if total else None,
        "steps": [prefix._asdict() for prefix in prefixes(steps)],
    }
