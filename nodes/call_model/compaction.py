"""When the view outgrows the window: old results are cleared, then the beginning gives way to a summary, or slides out.

One compaction is a large step, so that there are few of them: each costs the endpoint its kept prefix. The current
request is never given up, and a call is never parted from its results.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import ConfigDict, Field, ValidationError

from mendgraph.nodes.call_model.window import (
    Exchanges,
    SizeOf,
    StandIns,
    Window,
    exchanges_of,
    first_shown,
    is_result,
    shown,
    shown_after,
    stand_in,
)
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import JsonMap, Plan, PlanStatus, Record, StopCause, StopReason


class CompactionRules(Record):
    """When to compact, and how far.

    `trigger` is the share of the window that the next request and its reply may fill, `target` the share of that to
    which the view is brought down, about half of the window. Where the beginning is given up, it is to `cut` of that
    if it can be: what is left then holds little that could be cleared the next time. The last `kept_exchanges` keep
    their results, fewer where they are too large. A result is cleared if that saves `least_cleared` tokens and half of
    it. A summary may have `summary_tokens`, or what a small window leaves to it, if that is `least_summary`; after
    `most_useless` useless ones in a row none is asked for. After a
    refusal the request has to shrink to `refused` of what it was at least.
    """

    trigger: float = 0.85
    target: float = 0.6
    cut: float = 0.65
    kept_exchanges: int = 3
    least_cleared: int = 40
    summary_tokens: int = 800
    least_summary: int = 200
    most_useless: int = 2
    refused: float = 0.9


RULES = CompactionRules()


class Budget(NamedTuple):
    """What a request has to fit in: the window (None where nobody knows it), and what is not history, in tokens.

    `fixed_tokens` are system prompt, tools and corrections, `output_tokens` are those that the reply may have.
    """

    window_tokens: int | None
    fixed_tokens: int
    output_tokens: int
    rules: CompactionRules = RULES


class CompactionKind(StrEnum):
    """What was done to the view."""

    CLEARED, SUMMARISED, SLID = "cleared", "summarised", "slid"


class Compacted(NamedTuple):
    """The new window, and what it saved: the input tokens of the request, before and after, estimated."""

    window: Window
    kind: CompactionKind
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class NeedsSummary:
    """A summary is worth a model call: `messages` ask for it. `fallback` is what to do if there is no reply."""

    messages: tuple[JsonMap, ...]
    max_output_tokens: int
    fallback: Compacted
    conclude: Callable[[str], Compacted] = field(repr=False)
    """(text of the reply) -> the view with the summary if it counts, else the fallback."""


def compact(
    history: Sequence[AnyMessage],
    window: Window,
    plan: Plan | None,
    changed: Sequence[str],
    size_of: SizeOf,
    budget: Budget,
    *,
    forced: bool = False,
    made: StandIns | None = None,
) -> Compacted | NeedsSummary | StopCause | None:
    """Say what to do before the next request; None means that it fits as it is.

    `forced` is for a request that the endpoint has refused as too long: it is brought down to half of itself, or of
    the window that the endpoint named. A stop means that not even the request and its last exchange fit.
    """
    made = {} if made is None else made
    total = sum(map(size_of, shown(history, window, made)))
    room = _room(total, window, budget, forced=forced)
    if room is None or (not forced and total <= room.most):
        return None
    step = _Compaction(history, window, plan, tuple(dict.fromkeys(changed)), size_of, budget, made, room, total)
    done = step.best()
    if done is None:
        return None if total <= room.hard else _too_long(room, budget, step.least())
    return done


class _Room(NamedTuple):
    """Tokens for the view: what it is brought down to, what it may grow to, and what it cannot pass.

    `asking` is what a request for a summary may have.
    """

    known: int | None
    aim: int
    most: int
    hard: int
    asking: int


def _room(total: int, window: Window, budget: Budget, *, forced: bool) -> _Room | None:
    """None where the window is unknown and nothing was refused."""
    rules = budget.rules
    known = min((each for each in (budget.window_tokens, window.tokens) if each is not None), default=None)
    half, shrunk = total // 2, int(total * rules.refused)
    if known is None:
        return _Room(None, half, shrunk, shrunk, half) if forced else None
    besides = budget.fixed_tokens + budget.output_tokens
    most, hard = int(known * rules.trigger) - besides, known - besides
    aim = max(0, int(most * rules.target))
    if forced:
        aim = min(aim, half)
        return _Room(known, aim, min(most, shrunk), min(hard, shrunk), aim)
    return _Room(known, aim, most, hard, most)


def _too_long(room: _Room, budget: Budget, least: int) -> StopCause:
    needed = f"the request and its last exchange need about {least} tokens, the prompt and tools {budget.fixed_tokens}"
    if room.known is None:
        message = f"The endpoint refuses the conversation as too long, and nothing more can be left out: {needed}."
    else:
        message = (
            f"The conversation does not fit the model's window of {room.known} tokens, and nothing more can be left "
            f"out: {needed}, the reply {budget.output_tokens}."
        )
    remedy = "Choose a model with a larger window, lower max_output_tokens_per_call, or ask for less at a time."
    return StopCause(reason=StopReason.CONTEXT_OVERFLOW, message=f"{message} {remedy}")


@dataclass(frozen=True)
class _Compaction:
    """One look for the best way to make the view smaller. Places are those in `tail`: the history that is shown."""

    history: Sequence[AnyMessage]
    window: Window
    plan: Plan | None
    changed: tuple[str, ...]
    size_of: SizeOf
    budget: Budget
    made: StandIns
    room: _Room
    total: int

    @cached_property
    def start(self) -> int:
        return first_shown(self.history, self.window)

    @cached_property
    def tail(self) -> Sequence[AnyMessage]:
        return self.history[self.start :]

    @cached_property
    def places(self) -> Exchanges:
        return exchanges_of(self.tail)

    @cached_property
    def sizes(self) -> list[int]:
        return list(map(self.size_of, shown_after(self.history, self.window.cleared, self.start, self.made)))

    @cached_property
    def requests(self) -> list[tuple[int, str]]:
        """All requests of the thread, each with its place in the history."""
        return [(place, message.text) for place, message in enumerate(self.history) if is_request(message)]

    def best(self) -> Compacted | NeedsSummary | None:
        """The mildest step that reaches the aim, else the one that makes the view as small as it has to be."""
        replies, head = self.places.replies, self._tokens(self.window.head if self.start else "")
        for kept in range(min(self.budget.rules.kept_exchanges, len(replies)), 0, -1):
            cleared = self._cleared(replies[-kept], head)
            sizes = self._sizes(cleared)
            if cleared and head + sum(sizes) <= self.room.aim:
                return self._done(CompactionKind.CLEARED, 0, cleared, self.window.head)
            if cut := self._cut(replies[-kept], sizes):
                return self._shortened(cut, cleared, self.room.aim, self.budget.rules.summary_tokens)
        cleared = self._cleared(self._last, head)
        needed = self._tokens(self._head(self._last)) + sum(self._sizes(cleared)[self._last :])
        summary = min(self.budget.rules.summary_tokens, self.room.most - needed)
        if self._last and summary >= self.budget.rules.least_summary:
            return self._shortened(self._last, cleared, self.room.most, summary)
        return self._smallest(cleared)

    def least(self) -> int:
        """What the smallest view would need, in tokens."""
        sizes = self._sizes(self._cleared(len(self.tail), self.total))
        return self._tokens(self._head(self._last, bare=True)) + sum(sizes[self._last :])

    @cached_property
    def _last(self) -> int:
        """Where the last exchange of the current request starts; where it has none yet, the request itself.

        0 where nothing is before it but that request.
        """
        place = max(self.places.request, *self.places.replies[-1:], 0)
        alone = not self.start and self.places.request == 0 and place == 1
        return place if self.tail and self.tail[place].id and not alone else 0

    def _smallest(self, cleared: dict[str, int]) -> Compacted | None:
        """Give up what the head tells besides the request, then the results of the last exchange."""
        for more in (cleared, self._cleared(len(self.tail), self.total)):
            for bare in (False, True):
                head = self._head(self._last, bare=bare)
                after = self._tokens(head) + sum(self._sizes(more)[self._last :])
                if after <= self.room.hard and after < self.total:
                    return self._done(CompactionKind.SLID, self._last, more, head)
        return None

    def _cleared(self, before: int, head: int) -> dict[str, int]:
        """Which results before this place to clear, with their new sizes, until the aim is reached.

        Oldest and largest first: the worth of clearing one is what it saves, times its age.
        """
        left, found, already = head + sum(self.sizes), [], frozenset(self.window.cleared)
        for place, message in enumerate(self.tail[:before]):
            if not message.id or message.id in already:
                continue
            if (cleared := stand_in(message, self.made)) is not None:
                size = self.size_of(cleared)
                saved = self.sizes[place] - size
                if saved >= max(self.budget.rules.least_cleared, self.sizes[place] // 2):
                    found.append((saved * (len(self.tail) - place), saved, message.id, size))
        chosen = {}
        for _, saved, name, size in sorted(found, key=lambda each: -each[0]):
            if left <= self.room.aim:
                break
            left, chosen[name] = left - saved, size
        return chosen

    def _sizes(self, cleared: dict[str, int]) -> list[int]:
        return [cleared.get(m.id or "", size) for m, size in zip(self.tail, self.sizes, strict=True)]

    def _cut(self, latest: int, sizes: list[int]) -> int:
        """Where to begin, `latest` at most, so that it all fits the aim with a head and a summary; 0 where it does not.

        The earliest place that goes as deep as `cut` wants it, where none does the latest.
        """
        fullest = self._tokens(self._head(len(self.tail))) + self.budget.rules.summary_tokens
        needed = fullest + sum(sizes[latest:])
        if needed > self.room.aim or not self.tail[latest].id:
            return 0
        cut, end = latest, latest
        for place in reversed([each for each in self.places.starts if 0 < each < latest]):
            needed, end = needed + sum(sizes[place:end]), place
            if needed > self.room.aim * self.budget.rules.cut:
                break
            cut = place if self.tail[place].id else cut
        return cut

    def _shortened(self, cut: int, cleared: dict[str, int], most: int, tokens: int) -> Compacted | NeedsSummary:
        """The view from `cut` on, with a summary of so many tokens of what is before it, where one is worth it."""
        slid = self._done(CompactionKind.SLID, cut, cleared, self._head(cut))
        now = self.history[-1].id or ""
        if self.window.useless_summaries >= self.budget.rules.most_useless or now == self.window.summarised_at:
            return slid
        request = self.requests[-1][1] if self.requests else ""
        messages = summary_request(
            self.tail[:cut], request, self.window.summary, self.size_of, self.room.asking, tokens
        )
        if messages is None:
            return slid
        tried = {"useless_summaries": self.window.useless_summaries + 1, "summarised_at": now}
        fallback = slid._replace(window=slid.window.model_copy(update=tried))

        def conclude(reply: str) -> Compacted:
            summary = read_summary(reply)
            if summary is None:
                return fallback
            text = summary_text(summary)
            done = self._done(CompactionKind.SUMMARISED, cut, cleared, self._head(cut, text), text)
            after = done.tokens_after - self.budget.fixed_tokens
            if after > most or not helps(self.total, after):
                return fallback
            settled = {"useless_summaries": 0, "summarised_at": now}
            return done._replace(window=done.window.model_copy(update=settled))

        return NeedsSummary(messages, tokens, fallback, conclude)

    def _head(self, cut: int, summary: str | None = None, *, bare: bool = False) -> str:
        """What stands for all before this place; `summary` is a new one of the part that is given up now."""
        end = self.start + cut
        if not end:
            return ""
        before = [text for place, text in self.requests if place < end]
        inside = before.pop() if before and self.requests[-1][0] < end else None
        hidden = Hidden(
            request=inside,
            earlier=tuple(before),
            plan=self.plan,
            changed=self.changed,
            summary=self.window.summary if summary is None else summary,
            left_out=self._left_out(cut, summary),
        )
        return head_text(barest(hidden) if bare else hidden)

    def _left_out(self, cut: int, summary: str | None) -> int:
        given_up = sum(place < cut for place in self.places.replies) if summary is None else 0
        return self.window.left_out + given_up

    def _done(
        self, kind: CompactionKind, cut: int, cleared: dict[str, int], head: str, summary: str | None = None
    ) -> Compacted:
        names = {*self.window.cleared, *cleared}
        window = self.window.model_copy(
            update={
                "first": (self.tail[cut].id or "") if cut else self.window.first,
                "head": head,
                "cleared": tuple(m.id for m in self.tail[cut:] if m.id in names),
                "compactions": self.window.compactions + 1,
                "summary": self.window.summary if summary is None else summary,
                "left_out": self._left_out(cut, summary),
            }
        )
        after = sum(map(self.size_of, shown(self.history, window, self.made)))
        fixed = self.budget.fixed_tokens
        done = kind if cut else CompactionKind.CLEARED
        return Compacted(window, done, fixed + self.total, fixed + after)

    def _tokens(self, text: str) -> int:
        return self.size_of(HumanMessage(text)) if text else 0


MOST_EARLIER = 5
"""Earlier requests of the thread that are quoted, the latest ones."""

LONGEST_EARLIER = 1_000
"""Characters of an earlier request that are quoted."""

MOST_CHANGED = 40
"""Changed files that are named, the latest ones."""

SUMMARY_TITLE = "From an automatic summary of what was before, not the person's words:"
"""Above what a model wrote in a message that otherwise speaks for the person."""

_MARKS = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class Hidden(Record):
    """What a head has to tell. `request` is None where the current request is still shown as a message of its own.

    `left_out` counts the exchanges that are neither shown nor summed up, `summary` is the text for the others.
    """

    request: str | None = None
    earlier: tuple[str, ...] = ()
    plan: Plan | None = None
    changed: tuple[str, ...] = ()
    summary: str = ""
    left_out: int = 0


def head_text(hidden: Hidden) -> str:
    """Everything that is to be told, in one text."""
    parts = ["The beginning of this conversation is not shown any more, to save room."]
    if hidden.left_out:
        exchanges = "1 exchange was" if hidden.left_out == 1 else f"{hidden.left_out} exchanges were"
        parts.append(f"{exchanges} left out without a summary; files can be read again.")
    if hidden.earlier:
        quoted = [f"- {quote_bounded(text)}" for text in hidden.earlier[-MOST_EARLIER:]]
        parts.append("\n".join(["Earlier requests:", *quoted]))
    if hidden.summary:
        parts.append(f"{SUMMARY_TITLE}\n{hidden.summary}")
    if hidden.changed:
        parts.append("Changed files: " + ", ".join(hidden.changed[-MOST_CHANGED:]))
    if hidden.plan is not None and hidden.plan.steps:
        steps = [f"{_MARKS[step.status]} {step.title}" for step in hidden.plan.steps]
        parts.append("\n".join(["The plan:", *steps]))
    if hidden.request is not None:
        parts.append(f"The request, which you are working on:\n{hidden.request}")
    return "\n\n".join(parts)


def barest(hidden: Hidden) -> Hidden:
    """Only what a run cannot go on without: the request, and that something is missing."""
    return Hidden(request=hidden.request, left_out=hidden.left_out)


def quote_bounded(text: str, longest: int = LONGEST_EARLIER) -> str:
    """The text, or its head and its tail with the number of characters between them."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    head = longest - tail
    return f"{text[:head]} [... {len(text) - longest} characters ...] {text[-tail:]}"


LEAST_SAVING = 0.3
"""The share by which a view has to shrink for its summary to count."""

MOST_ITEMS = 20
LONGEST_ITEM = 400
"""Characters of one line of a summary."""

_CLIPPINGS = (2_000, 600, 200)
"""The most characters that are shown of one message, tried in this order until the request fits."""

_TOKENS_PER_WORD = 2
"""A high rate for prose, as the names and the JSON around it have more tokens than words."""

SUMMARY_SYSTEM = f"""\
You sum up the first part of a coding agent's work, so that it can go on without seeing that part again.
Answer with one JSON object and nothing else:
{{"done": [...], "findings": [...], "left": [...], "files": [...]}}
Each is a list of at most {MOST_ITEMS} short texts: what was done, what was found out (names, causes, exact values, \
errors), what is left to do, and which files matter and why. Keep only what is still needed; do not repeat the \
request."""


class Summary(Record):
    """What a summary has to look like."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    done: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    findings: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    left: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    files: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)


def read_summary(reply: str) -> Summary | None:
    """The summary in a reply, with or without a fence or words around it; None where it fits no schema or is empty."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        summary = Summary.model_validate_json(reply[start : end + 1])
    except (ValidationError, ValueError):
        return None
    items = [item for field in (summary.done, summary.findings, summary.left, summary.files) for item in field]
    return summary if any(map(str.strip, items)) and max(map(len, items)) <= LONGEST_ITEM else None


def summary_text(summary: Summary) -> str:
    """The summary as the model is shown it."""
    sections = (
        ("Done so far:", summary.done),
        ("Found out:", summary.findings),
        ("Left to do:", summary.left),
        ("Files that matter:", summary.files),
    )
    return "\n".join(
        line for title, items in sections if items for line in (title, *(f"- {' '.join(i.split())}" for i in items))
    )


def helps(before: int, after: int) -> bool:
    """Whether a view of `after` tokens in place of one of `before` was worth a summary."""
    return after <= before * (1 - LEAST_SAVING)


def summary_request(
    old: Sequence[AnyMessage],
    request: str,
    earlier_summary: str,
    size_of: Callable[[AnyMessage], int],
    most_tokens: int,
    reply_tokens: int,
) -> tuple[JsonMap, ...] | None:
    """The messages that ask for a summary of `old`, at most `most_tokens` as `size_of` sees them.

    The reply is told how many words it may have, so that it is whole within `reply_tokens`.

    Long messages are shown clipped, and if that is not enough, the oldest are left out. None where nothing fits.
    """
    words = reply_tokens // _TOKENS_PER_WORD
    for clipping in _CLIPPINGS:
        lines = [quote_bounded(_told(message), clipping) for message in old]
        if messages := _fitting(lines, request, earlier_summary, size_of, most_tokens, words):
            return messages
    while lines := lines[(len(lines) + 1) // 2 :]:
        if messages := _fitting(lines, request, earlier_summary, size_of, most_tokens, words):
            return messages
    return None


def _fitting(
    lines: Sequence[str], request: str, earlier: str, size_of: Callable[[AnyMessage], int], most_tokens: int, words: int
) -> tuple[JsonMap, ...] | None:
    before = ["The summary of what was before that:", earlier] if earlier else []
    asked = ["The request of the person:", quote_bounded(request, _CLIPPINGS[0])]
    told = "\n\n".join(
        [*asked, *before, "What happened:", *lines, f"Now answer with the JSON object: {words} words at most."]
    )
    tokens = size_of(HumanMessage(SUMMARY_SYSTEM)) + size_of(HumanMessage(told))
    if tokens > most_tokens:
        return None
    return ({"role": "system", "content": SUMMARY_SYSTEM}, {"role": "user", "content": told})


def _told(message: AnyMessage) -> str:
    """A message as one who was not there reads it."""
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in message.tool_calls]
        return "AGENT: " + "\n".join(part for part in (message.text, *calls) if part)
    return ("RESULT: " if is_result(message) else "PERSON: ") + message.text
