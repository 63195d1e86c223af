"""Compaction: shortens the shown part of the history if it exceeds the model's window.

Old results are cleared first, then the beginning is replaced by a summary, or slides out. A compaction is a large step,
since each one invalidates the endpoint's cached prefix. The current request is always kept, and calls stay with their
results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.call_model.summary import SUMMARY_TOKENS, SizeOf, quote_bounded, read_summary, summary_request
from mendgraph.nodes.call_model.window import (
    TRIGGER,
    StandIns,
    Window,
    first_shown,
    is_result,
    shown,
    shown_after,
    stand_in,
)
from mendgraph.nodes.language.history import is_request, is_typed
from mendgraph.nodes.language.media import text_without_media
from mendgraph.nodes.records import JsonMap, Plan, PlanStatus, StopCause, StopReason

TARGET: Final = 0.6  # the size after a compaction, as a share of the maximum
CUT: Final = 0.65
"""The size of the remaining part after a cut, as a share of the target."""

KEPT_EXCHANGES: Final = 3  # the last exchanges, which keep their results if they fit
LEAST_CLEARED: Final = 40  # the fewest tokens that clearing a result saves, and at least half of it
REFUSED: Final = 0.9  # the size after a refusal, at most this share of the request
LEAST_SAVING: Final = 0.3  # the share of the view that a summary has to save
MOST_EARLIER: Final = 5  # the latest earlier requests that are quoted
MOST_CHANGED: Final = 40  # the latest changed files that are named
SUMMARY_TITLE: Final = "From an automatic summary of what was before, not the person's words:"
"""The heading of the summary in a message with the role of the person."""

_MARKS: Final = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class Budget(NamedTuple):
    """Tokens of the window (None: unknown), of the reply, and of system prompt, tools and corrections (`fixed`)."""

    window_tokens: int | None
    fixed_tokens: int
    output_tokens: int


CompactionKind = Literal["cleared", "summarised", "slid"]


class Compacted(NamedTuple):
    """The new window, and the estimated input tokens of the request before and after."""

    window: Window
    kind: CompactionKind
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class NeedsSummary:
    """A summary is needed: `messages` request it, and `fallback` applies without a reply.

    `conclude` takes the text of the reply and returns the view with the summary, or the fallback if the summary is
    unusable; then no other summary is requested.
    """

    messages: tuple[JsonMap, ...]
    fallback: Compacted
    conclude: Callable[[str], Compacted] = field(repr=False)
    most_tokens: int = SUMMARY_TOKENS
    kind: Literal["needs summary"] = "needs summary"


class _Limits(NamedTuple):
    """Sizes of a view in tokens: the target, the size that triggers a compaction, and the maximum."""

    aim: int
    most: int
    hard: int


def compact(
    history: Sequence[AnyMessage],
    window: Window,
    plan: Plan | None,
    changed: Sequence[str],
    size_of: SizeOf,
    budget: Budget,
    *,
    forced: bool = False,
    stand_ins: StandIns | None = None,
) -> Compacted | NeedsSummary | StopCause | None:
    """Return how to shorten the next request, or None if it fits.

    `forced` is for a request that the endpoint has refused as too long: it is reduced to half of its size. A stop cause
    means that not even the request and its last exchange fit.
    """
    if stand_ins is None:
        stand_ins = {}

    total = sum(map(size_of, shown(history, window, stand_ins)))
    limits = _limits(budget, total, forced=forced)
    if not forced and (limits is None or total <= limits.most):
        return None

    if limits is None:
        shrunk = int(total * REFUSED)
        limits = _Limits(aim=total // 2, most=shrunk, hard=shrunk)

    tail = history[first_shown(history, window) :]
    compaction = _Compaction(history, tail, window, plan, changed, size_of, budget, stand_ins, limits, total)
    step = compaction.best()
    if step is not None or total <= limits.hard:
        return step

    place = "the endpoint's" if budget.window_tokens is None else f"the model's window of {budget.window_tokens} tokens"
    message = (
        f"The conversation does not fit {place}, and nothing more can be left out. Choose a model with a larger "
        "window, lower max_output_tokens_per_call, or ask for less at a time."
    )
    return StopCause(reason=StopReason.CONTEXT_OVERFLOW, message=message)


def _limits(budget: Budget, total: int, *, forced: bool) -> _Limits | None:
    """Return the limits of a view with `total` tokens, or None if the window is unknown."""
    if budget.window_tokens is None:
        return None

    besides = budget.fixed_tokens + budget.output_tokens
    most = int(budget.window_tokens * TRIGGER) - besides
    limits = _Limits(aim=max(0, int(most * TARGET)), most=most, hard=budget.window_tokens - besides)
    if not forced:
        return limits

    shrunk = int(total * REFUSED)
    return _Limits(min(limits.aim, total // 2), min(limits.most, shrunk), min(limits.hard, shrunk))


@dataclass(frozen=True)
class _Compaction:
    """The search for the best way to shorten the view. Places are indexes in `tail`, the shown history."""

    history: Sequence[AnyMessage]
    tail: Sequence[AnyMessage]
    window: Window
    plan: Plan | None
    changed: Sequence[str]
    size_of: SizeOf
    budget: Budget
    stand_ins: StandIns
    limits: _Limits
    total: int

    @property
    def start(self) -> int:
        """The index of the tail in the history."""
        return len(self.history) - len(self.tail)

    @cached_property
    def starts(self) -> list[int]:
        """The places of all messages except results, which stay with their calls."""
        return [place for place, message in enumerate(self.tail) if not is_result(message)]

    @cached_property
    def sizes(self) -> list[int]:
        """The tokens of the shown messages of the tail."""
        view = shown_after(self.history, self.window.cleared, self.start, self.stand_ins)
        return [self.size_of(message) for message in view]

    @cached_property
    def _current(self) -> int:
        """The index of the current request in the history; 0 if there is none."""
        requests = [place for place, message in enumerate(self.history) if is_request(message)]
        return max(requests, default=0)

    def _typed(self, first: int, end: int) -> list[str]:
        """Return what a person typed between these places of the history."""
        return [text_without_media(message) for message in self.history[first:end] if is_typed(message)]

    def best(self) -> Compacted | NeedsSummary | None:
        """Return the mildest step that reaches the target, else one that fits the maximum."""
        replies = [place for place in self.starts if isinstance(self.tail[place], AIMessage)]
        head = self._tokens(self.window.head if self.start else "")

        for latest in replies[-KEPT_EXCHANGES:]:
            cleared = self._cleared(latest, head)
            sizes = [cleared.get(message.id or "", size) for message, size in zip(self.tail, self.sizes, strict=True)]
            if cleared and head + sum(sizes) <= self.limits.aim:
                return self._compacted("cleared", 0, cleared, self.window.head)

            cut = self._cut(latest, sizes)
            if cut:
                return self._shortened(cut, cleared)

        return self._smallest(replies[-1:], head)

    def _smallest(self, last_reply: Sequence[int], head: int) -> Compacted | None:
        """Return the view from the last exchange on, if necessary with cleared results, or None if it is too large."""
        requests = [place for place in self.starts if is_request(self.tail[place])]
        request = max(requests, default=-1)
        last = max(request, *last_reply, 0)
        only_request_before = not self.start and request == 0 and last == 1
        if only_request_before or not self.tail or not self.tail[last].id:
            last = 0

        most_tokens = self.budget.fixed_tokens + self.limits.hard
        for before, bare in ((last, False), (len(self.tail), True)):
            cleared = self._cleared(before, self.total if bare else head)
            step = self._compacted("slid", last, cleared, self._head(last, bare=bare))
            if step.tokens_after <= most_tokens and step.tokens_after < step.tokens_before:
                return step

        return None

    def _cleared(self, before: int, head: int) -> dict[str, int]:
        """Return the results before this place to clear until the target is reached: ids and new sizes.

        Results with the largest product of saved tokens and age are cleared first.
        """
        candidates = []
        cleared_before = frozenset(self.window.cleared)

        for place, message in enumerate(self.tail[:before]):
            if not message.id or message.id in cleared_before:
                continue

            replacement = stand_in(message, self.stand_ins)
            if replacement is None:
                continue

            size = self.size_of(replacement)
            saved = self.sizes[place] - size
            if saved >= max(LEAST_CLEARED, self.sizes[place] // 2):
                age = len(self.tail) - place
                candidates.append((saved * age, saved, message.id, size))

        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        tokens = head + sum(self.sizes)
        chosen: dict[str, int] = {}

        for _, saved, name, size in candidates:
            if tokens <= self.limits.aim:
                break

            tokens -= saved
            chosen[name] = size

        return chosen

    def _cut(self, latest: int, sizes: Sequence[int]) -> int:
        """Return the first place to show so that all fits the target with a head and a summary, or 0.

        It is the earliest place that leaves at most `CUT` of the target, or else `latest`.
        """
        needed = self._tokens(self._head(len(self.tail))) + SUMMARY_TOKENS + sum(sizes[latest:])
        if needed > self.limits.aim or not self.tail[latest].id:
            return 0

        cut = latest
        end = latest
        earlier = [place for place in self.starts if 0 < place < latest]

        for place in reversed(earlier):
            needed += sum(sizes[place:end])
            end = place
            if needed > self.limits.aim * CUT:
                break

            if self.tail[place].id:
                cut = place

        return cut

    def _shortened(self, cut: int, cleared: dict[str, int]) -> Compacted | NeedsSummary:
        slid = self._compacted("slid", cut, cleared, self._head(cut))
        if self.window.no_summary:
            return slid

        request = "\n\n".join(self._typed(self._current, len(self.history)))
        most = self.limits.aim if self.budget.window_tokens is None else self.limits.most
        messages = summary_request(self.tail[:cut], request, self.window.summary, self.size_of, most)
        if messages is None:
            return slid

        def conclude(reply: str) -> Compacted:
            summary = read_summary(reply)
            if summary:
                step = self._compacted("summarised", cut, cleared, self._head(cut, summary), summary)
                after = step.tokens_after - self.budget.fixed_tokens
                if after <= self.limits.aim and after <= self.total * (1 - LEAST_SAVING):
                    return step

            return slid._replace(window=slid.window.model_copy(update={"no_summary": True}))

        return NeedsSummary(messages, slid, conclude)

    def _head(self, cut: int, summary: str | None = None, *, bare: bool = False) -> str:
        """Return the text that replaces everything before this place; `summary` is the new one, if any.

        A `bare` head contains only the request and a note that something is missing.
        """
        end = self.start + cut
        if not end:
            return ""

        parts = ["The beginning of this conversation is not shown any more, to save room; files can be read again."]
        earlier = self._typed(0, min(self._current, end))
        current = self._typed(self._current, end)

        if not bare:
            if summary is None:
                summary = self.window.summary

            parts += self._facts(earlier, summary)

        if current:
            parts.append(f"The request, which you are working on:\n{current[0]}")
        for text in current[1:]:
            parts.append(f"The person added since:\n{text}")

        return "\n\n".join(parts)

    def _facts(self, earlier_requests: Sequence[str], summary: str) -> list[str]:
        facts = []
        if earlier_requests:
            quoted = [f"- {quote_bounded(text)}" for text in earlier_requests[-MOST_EARLIER:]]
            facts.append("\n".join(["Earlier requests:", *quoted]))

        if summary:
            facts.append(f"{SUMMARY_TITLE}\n{summary}")

        if self.changed:
            paths = [*dict.fromkeys(self.changed)][-MOST_CHANGED:]
            facts.append(f"Changed files: {', '.join(paths)}")

        if self.plan is not None and self.plan.steps:
            steps = [f"{_MARKS[step.status]} {step.title}" for step in self.plan.steps]
            facts.append("\n".join(["The plan:", *steps]))

        return facts

    def _compacted(
        self, kind: CompactionKind, cut: int, cleared: dict[str, int], head: str, summary: str | None = None
    ) -> Compacted:
        cleared_ids = {*self.window.cleared, *cleared}
        update: JsonMap = {
            "head": head,
            "cleared": tuple(message.id for message in self.tail[cut:] if message.id in cleared_ids),
        }
        if cut:
            update["first"] = self.tail[cut].id or ""
        else:
            kind = "cleared"

        if summary is not None:
            update["summary"] = summary

        window = self.window.model_copy(update=update)
        after = sum(map(self.size_of, shown(self.history, window, self.stand_ins)))
        fixed = self.budget.fixed_tokens
        return Compacted(window, kind, fixed + self.total, fixed + after)

    def _tokens(self, text: str) -> int:
        return self.size_of(HumanMessage(text)) if text else 0
