"""Makes the shown part of the history smaller when it outgrows the model's window.

Old results are cleared first, then the beginning gives way to a summary, or slides out. One compaction is a large step,
so that there are few of them: each costs the endpoint its cached prefix. The current request is never given up, and a
call is never parted from its results.
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
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import JsonMap, Plan, PlanStatus, StopCause, StopReason

TARGET: Final = 0.6  # a compaction brings the view down to this share of its maximum
CUT: Final = 0.65
"""Where the beginning is cut off, what stays fills at most this share of the target: the next one is far away."""

KEPT_EXCHANGES: Final = 3  # the last exchanges, which keep their results; fewer where they are too large
LEAST_CLEARED: Final = 40  # tokens that clearing a result has to save; half of it, where that is more
REFUSED: Final = 0.9  # after a refusal the request shrinks at least to this share of its size
LEAST_SAVING: Final = 0.3  # the share by which a view has to shrink for its summary to count
MOST_EARLIER: Final = 5  # earlier requests of the thread that are quoted, the latest ones
MOST_CHANGED: Final = 40  # changed files that are named, the latest ones
SUMMARY_TITLE: Final = "From an automatic summary of what was before, not the person's words:"
"""Above what a model wrote in a message that otherwise speaks for the person."""

_MARKS: Final = {PlanStatus.DONE: "[x]", PlanStatus.IN_PROGRESS: "[>]", PlanStatus.PENDING: "[ ]"}


class Budget(NamedTuple):
    """What a request has to fit in: the window (None where nobody knows it), and what is not history, in tokens.

    `fixed_tokens` are system prompt, tools and corrections, `output_tokens` are those that the reply may have.
    """

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
    """A summary is worth a model call: `messages` ask for it. `fallback` applies if there is no reply.

    `conclude` takes the text of the reply: the view with the summary if it counts, else the fallback, after which no
    other summary is requested.
    """

    messages: tuple[JsonMap, ...]
    fallback: Compacted
    conclude: Callable[[str], Compacted] = field(repr=False)
    most_tokens: int = SUMMARY_TOKENS
    kind: Literal["needs summary"] = "needs summary"


class _Limits(NamedTuple):
    """Of a view, in tokens: it is brought down to `aim`, may grow to `most`, and cannot pass `hard`."""

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
    """Decide what to do before the next request; None means that it fits.

    `forced` is for a request that the endpoint has refused as too long: it is brought down to half of itself, or of
    the window. A stop means that not even the request and its last exchange fit.
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
    """The limits of a view that has `total` tokens; None where nobody knows the window."""
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
    """One search for the best way to make the view smaller. Places are those in `tail`: the history that is shown."""

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
        """The place of the tail in the history."""
        return len(self.history) - len(self.tail)

    @cached_property
    def starts(self) -> list[int]:
        """The places of all messages but results, which stay with their call."""
        return [place for place, message in enumerate(self.tail) if not is_result(message)]

    @cached_property
    def sizes(self) -> list[int]:
        """The tokens of the messages of the tail as they are shown."""
        view = shown_after(self.history, self.window.cleared, self.start, self.stand_ins)
        return [self.size_of(message) for message in view]

    def best(self) -> Compacted | NeedsSummary | None:
        """The mildest step that reaches the aim, else the one that makes the view as small as it has to be."""
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
        """The view that slides to the last exchange; its results are cleared last. None where that saves too little."""
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
        """The ids of the results before this place to clear until the aim is reached, with their new sizes.

        Oldest and largest first: the worth of clearing one is the tokens that it saves, times its age.
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
        """The first place to show, `latest` at most, so that all fits the aim with a head and a summary; else 0.

        It is the earliest place that leaves no more than `CUT`, and `latest` where none does.
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

        requests = [message.text for message in self.history if is_request(message)]
        request = requests[-1] if requests else ""
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
        """The text that stands for all before this place; `summary` is a new one of the part that is given up now.

        A `bare` one holds only what a run cannot go on without: the request, and that something is missing.
        """
        end = self.start + cut
        if not end:
            return ""

        parts = ["The beginning of this conversation is not shown any more, to save room; files can be read again."]
        requests = [(place, message.text) for place, message in enumerate(self.history) if is_request(message)]
        hidden_requests = [text for place, text in requests if place < end]
        current_request = None
        if hidden_requests and requests[-1][0] < end:
            current_request = hidden_requests.pop()

        if not bare:
            if summary is None:
                summary = self.window.summary

            parts += self._facts(hidden_requests, summary)

        if current_request is not None:
            parts.append(f"The request, which you are working on:\n{current_request}")

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
