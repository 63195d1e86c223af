"""Making a request fit the model's window before it is sent: the script around the decisions of `compaction`.

Nothing is done, and nothing is counted, while the whole fits. Otherwise old results are cleared, then the model sums up
what was first, which is a request that is paid like any other, and where that does not help the window slides.
"""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import ceil
from typing import Final

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.compaction import TRIGGER, Budget, Compacted, NeedsSummary, compact
from mendgraph.nodes.call_model.effects import Answer, Effect, Tell
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, Spending
from mendgraph.nodes.call_model.paid_call import CallBudget, Request, paid_call
from mendgraph.nodes.call_model.prompts.estimates import Gauge, estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt, build_prompt
from mendgraph.nodes.call_model.prompts.shown_messages import ShownMessages
from mendgraph.nodes.call_model.window import StandIns, Window, noted_request, notes_tokens, shown, with_notes
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.language.thoughts import without_thoughts
from mendgraph.nodes.records import Correction, EditForm, Plan, Profile, Protocol, StopCause, StopReason, ToolSpec


@dataclass(frozen=True)
class Talk:
    """A turn's conversation, and everything that a prompt is made of besides."""

    history: Sequence[AnyMessage]
    profile: Profile
    specs: Sequence[ToolSpec] = ()
    corrections: Sequence[Correction] = ()
    temperature: float | None = None
    asked_again: int = 0
    plan: Plan = field(default_factory=Plan)
    changed: tuple[str, ...] = ()
    cache: ShownMessages = field(default_factory=ShownMessages)
    stand_ins: StandIns = field(default_factory=dict)
    notes: tuple[ProjectNotes, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits, with the most that its reply may have; or why there is none. And what is shown by now."""

    window: Window
    spending: Spending
    prompt: Prompt | None = None
    most_output: int | None = None
    stop: StopCause | None = None


MOST_ROUNDS: Final = 3
"""Compactions before one request: one brings the view far below the window, unless its estimate was far off."""

OUTPUT_SHARE: Final = 4
"""A reply is given room for all of its tokens, or for this part of the window, if that is less."""


def fit(
    talk: Talk,
    window: Window,
    spending: Spending,
    budget: CallBudget,
    window_tokens: int | None,
    overflow: str | None = None,
) -> Generator[Effect, Answer, Fitted]:
    """Yield the effects of making the next request fit; `overflow` is what an endpoint said that refused the last one.

    Where nobody knows the window, only an endpoint's refusal makes the conversation smaller.
    """
    named = None if overflow is None else overflow_window(overflow)
    if named is not None:
        window = window.model_copy(update={"tokens": named})
    known = min((each for each in (window_tokens, window.tokens) if each is not None), default=None)
    output = budget.limits.max_output_tokens_per_call
    share = 0 if known is None else known // OUTPUT_SHARE
    output = share if output is None else output if known is None else min(output, share)
    if talk.profile.edit_form is EditForm.BLOCKS:
        return _blocks(talk, window, spending, known, output, overflow)
    forced = overflow is not None
    for _ in range(MOST_ROUNDS):
        prompt = _prompt(talk, shown(talk.history, window, talk.stand_ins))
        estimated = _estimate(prompt, spending)
        if not forced and (known is None or estimated + output <= known * TRIGGER):
            return Fitted(window, spending, prompt, _left(estimated, known))
        found = _compacted(talk, window, prompt, estimated, known, output, forced=forced)
        if isinstance(found, NeedsSummary):
            asked = Request(Prompt(messages=found.messages), purpose="summary", most_output=found.max_output_tokens)
            paid = yield from paid_call(asked, spending, replace(budget, retries=0))
            spending = paid.spending
            if paid.stop is not None and paid.stop.reason is StopReason.CANCELLED:
                return Fitted(window, spending, stop=paid.stop)
            found = found.conclude(without_thoughts(paid.reply).text) if paid.reply else found.fallback
        if isinstance(found, StopCause) and talk.notes:  # the request itself comes first
            talk = replace(talk, notes=())
            continue
        if isinstance(found, StopCause):
            return Fitted(window, spending, stop=found)
        if found is None:
            return Fitted(window, spending, prompt, _left(estimated, known))
        forced, window = False, found.window
        saved = {"tokens_before": found.tokens_before, "tokens_after": found.tokens_after}
        yield Tell(name="context.compacted", payload={"kind": found.kind.value, **saved})
    prompt = _prompt(talk, shown(talk.history, window, talk.stand_ins))
    return Fitted(window, spending, prompt, _left(_estimate(prompt, spending), known))


def _compacted(
    talk: Talk, window: Window, prompt: Prompt, estimated: int, known: int | None, output: int, *, forced: bool
) -> Compacted | NeedsSummary | StopCause | None:
    """What to do about a request of `estimated` tokens; messages are measured at the rate of the whole."""
    rate = estimated / max(prompt.size, 1)
    native = talk.profile.protocol is Protocol.NATIVE

    def size_of(message: AnyMessage) -> int:
        if not message.id:  # one that is only being considered
            return ceil(len(message.text.encode("utf-8", "replace")) * rate)
        return ceil(talk.cache.messages([message], native=native)[0].size * rate)

    view = sum(map(size_of, shown(talk.history, window, talk.stand_ins)))
    budget = Budget(window_tokens=known, fixed_tokens=max(0, estimated - view), output_tokens=output)
    return compact(talk.history, window, talk.plan, talk.changed, size_of, budget, forced=forced, made=talk.stand_ins)


def _blocks(
    talk: Talk, window: Window, spending: Spending, known: int | None, output: int, overflow: str | None
) -> Fitted:
    """The block form makes each request anew, and leaves out what does not fit; after a refusal half of it."""
    prompt = _prompt(talk, talk.history, None if known is None else max(known - output, 1))
    if overflow is not None:
        estimated = estimate_input(prompt.size, len(prompt.messages), Gauge())
        prompt = _prompt(talk, talk.history, estimated // 2)
    return Fitted(window, spending, prompt, _left(_estimate(prompt, spending), known))


def _estimate(prompt: Prompt, spending: Spending) -> int:
    return estimate_input(prompt.size, len(prompt.messages), spending.gauge)


def _prompt(talk: Talk, view: Sequence[AnyMessage], most_tokens: int | None = None) -> Prompt:
    blocks = talk.profile.edit_form is EditForm.BLOCKS
    if most_tokens is not None:
        most_tokens = max(1, most_tokens - notes_tokens(talk.notes))
    prompt = build_prompt(
        talk.profile,
        talk.specs,
        view if blocks else with_notes(view, talk.notes, talk.stand_ins),
        talk.corrections,
        talk.temperature,
        talk.asked_again,
        talk.cache,
        most_tokens,
    )
    if blocks and talk.notes:
        prompt = replace(prompt, messages=noted_request(prompt.messages, talk.notes))
    if talk.profile.protocol is Protocol.TEXT:
        return prompt
    told = replace(talk, profile=talk.profile.model_copy(update={"protocol": Protocol.TEXT}))
    return replace(prompt, without_tools=partial(_prompt, told, view, most_tokens))


def _left(estimated: int, known: int | None) -> int | None:
    """What the window leaves to the reply."""
    return None if known is None else max(MIN_OUTPUT_TOKENS, known - estimated)


_NUMBER = r"(?<!\d)(\d[\d,_]{0,15}+)(?!\d)"
_WORDS = r"(?:(?!exceed|request)[^\d.]){0,40}?"
"""What may stand before the number: nothing that would make it the size of what was sent."""

_PHRASES = tuple(
    re.compile(phrase, re.IGNORECASE)
    for phrase in (
        rf"n_ctx\w{{0,40}}{_WORDS}{_NUMBER}",
        rf"context[ _](?:length|size|window){_WORDS}{_NUMBER}",
        rf"{_NUMBER} maximum context",
        rf"\+ *\d+ *> *{_NUMBER}",
        rf"input length should be \[\d+, *{_NUMBER}\]",
        rf"limit for this model is {_NUMBER}",
        rf"maximum{_WORDS}{_NUMBER}",
        rf"tokens? *> *{_NUMBER}",
        rf"max[ _](?:model|context|seq|prompt|input|total){_WORDS}{_NUMBER}",
        rf"(?:limit|cannot exceed|must (?:be|have) (?:<=|at most|less than))(?: of| is|:)? *{_NUMBER}",
    )
)
"""The first that is found counts: those that say most clearly that a number is the window come first."""

SMALLEST, LARGEST = 256, 100_000_000
"""A number outside of these is no window."""


def overflow_window(message: str) -> int | None:
    """The window in tokens that an error text names, or None."""
    found = chain.from_iterable(phrase.findall(message) for phrase in _PHRASES)
    numbers = (int(re.sub(r"\D", "", number)) for number in found)
    return next((number for number in numbers if SMALLEST <= number <= LARGEST), None)
