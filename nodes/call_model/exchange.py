"""A model call as a script of effects: what is shown, what it may cost, what comes of it. Others perform them.

It is a generator, so that the sync and the async node run the very same decisions, and a test can play the endpoint
without one. `paid_call` makes and pays each request; here stands which requests there are: the reply itself, a summary
where the conversation outgrows the window, one more try after the endpoint said that it did, and the account of a run
that a limit ends.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from nodes.call_model.effects import Answer, Effect, Update
from nodes.call_model.fitting import Talk, fit
from nodes.call_model.ledger import WRAP_UP_OUTPUT_TOKENS, Spending
from nodes.call_model.paid_call import Paid, Purse, Request, paid_call
from nodes.call_model.prompt import Prompt
from nodes.call_model.shown_messages import ShownMessages
from nodes.call_model.window import StandIns, Window
from nodes.call_model.wrap_up import WRAPPED_UP, account_of, wrap_up_messages
from nodes.language.project_notes import ProjectNotes
from nodes.language.thoughts import without_thoughts
from nodes.records import (
    Correction,
    FileChange,
    FinishReason,
    ModelReply,
    Plan,
    Profile,
    Protocol,
    StopCause,
    StopReason,
    ToolSpec,
)


class CallModelState(TypedDict, total=False):
    """What the node reads."""

    messages: list[AnyMessage]
    profile: Profile
    corrections: list[Correction]
    spending: Spending
    preload: ModelReply | None
    step: int
    window: Window
    plan: Plan
    changes: list[FileChange]
    notes: tuple[ProjectNotes, ...]


@dataclass(frozen=True)
class CallSettings:
    """How calls of this run are made. `window_tokens` is the model's window, None where nobody knows it.

    `cache` and `stand_ins` remember what was sent and shown before.
    """

    purse: Purse = field(default_factory=Purse)
    temperature: float | None = None
    seed: int | None = None
    window_tokens: int | None = None
    cache: ShownMessages = field(default_factory=ShownMessages)
    stand_ins: StandIns = field(default_factory=dict)


MOST_SEEDS = 2**31
"""Seeds are smaller than this in every endpoint that takes one."""


def exchange(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec]
) -> Generator[Effect, Answer, Update]:
    """Yield the effects of one model call; return the update of the state.

    A preloaded reply costs nothing. A call that does not fit into the budget is never sent: the update then names
    the limit in `stop`, as it names the endpoint's failure when the last try failed, or who stopped the run.
    """
    step = {"step": state.get("step", 0) + 1}
    if preload := state.get("preload"):
        return {"reply": preload, "preload": None, **step}
    spending, purse = state["spending"], settings.purse
    window = state.get("window") or Window()
    talk = Talk(
        history=state["messages"],
        profile=state["profile"],
        specs=specs,
        corrections=state.get("corrections") or (),
        temperature=settings.temperature,
        asked_again=spending.mending.asked_again,
        plan=state.get("plan") or Plan(),
        changed=tuple(dict.fromkeys(change.path for change in state.get("changes") or ())),
        cache=settings.cache,
        stand_ins=settings.stand_ins,
        notes=state.get("notes") or (),
    )
    shown, paid = yield from _reply(talk, window, spending, settings)
    kept: Update = {} if shown == window else {"window": shown}
    if paid.reply is not None and paid.reply.without_tools:
        kept["profile"] = state["profile"].model_copy(update={"protocol": Protocol.TEXT})
    if paid.reply is not None:
        return {"reply": paid.reply, "spending": paid.spending, **kept, **step}
    cause, spending = paid.stop, paid.spending
    if cause is not None and cause.reason in WRAPPED_UP and purse.limits.wrap_up:
        cause, spending = yield from _wrapped_up(state, cause, spending, purse)
    return {"reply": None, "spending": spending, "stop": cause, **kept}


def _reply(
    talk: Talk, window: Window, spending: Spending, settings: CallSettings
) -> Generator[Effect, Answer, tuple[Window, Paid]]:
    """The reply to what is shown of the conversation, and what that is.

    After an overflow the conversation is made smaller once; a reply that holds nothing but cut off thoughts is asked
    for once more, with all the room that the budget has.
    """
    overflow: str | None = None
    purse, cramped = settings.purse, 0
    while True:
        fitted = yield from fit(talk, window, spending, purse, settings.window_tokens, overflow)
        window, spending = fitted.window, fitted.spending
        if fitted.prompt is None:
            said = () if overflow is None else (overflow,)
            return window, Paid(spending, stop=_with(fitted.stop, said))
        seed = None if settings.seed is None else (settings.seed + fitted.prompt.failed_tries) % MOST_SEEDS
        paid = yield from paid_call(Request(fitted.prompt, seed, most_output=fitted.most_output), spending, purse)
        if paid.reply is not None and is_only_thought(paid.reply):
            spending, room = paid.spending, paid.room
            if 0 < paid.reply.allowed_tokens < room:
                return window, Paid(spending, stop=thought_too_long(paid.reply.allowed_tokens, of_chat_model=True))
            if cramped or purse.limits.max_output_tokens_per_call is None:
                return window, Paid(spending, stop=thought_too_long(room))
            purse = replace(purse, limits=purse.limits.model_copy(update={"max_output_tokens_per_call": None}))
            cramped = room
            continue
        if cramped and paid.stop is not None and paid.stop.reason is StopReason.MAX_OUTPUT_TOKENS:
            return window, replace(paid, stop=thought_too_long(cramped))
        if not paid.overflow or overflow is not None:
            return window, paid
        overflow, spending = paid.overflow, paid.spending


def is_only_thought(reply: ModelReply) -> bool:
    """Whether a reply ended at its token limit before the model had said anything: its thoughts took all the room."""
    if reply.finish_reason is not FinishReason.LENGTH or reply.calls:
        return False
    said = without_thoughts(reply)
    return not said.text.strip() and bool(said.reasoning or reply.reasoning_tokens)


def thought_too_long(room: int, *, of_chat_model: bool = False) -> StopCause:
    """Why a run ends whose model thinks longer than the budget lets it, or than its chat model was set up for."""
    message = f"The model's thoughts took all {room:,} output tokens of its reply, " + (
        "which is the limit of the chat model itself. Raise its max_tokens where it is set, or lower reasoning_effort."
        if of_chat_model
        else "and the budget has no more room. Raise max_output_tokens_per_session (and max_output_tokens_per_call "
        "where it is set), or lower reasoning_effort."
    )
    return StopCause(reason=StopReason.MAX_OUTPUT_TOKENS, message=message)


def _with(cause: StopCause | None, diagnostics: tuple[str, ...]) -> StopCause | None:
    return cause and cause.model_copy(update={"diagnostics": (*cause.diagnostics, *diagnostics)})


def _wrapped_up(
    state: CallModelState, cause: StopCause, spending: Spending, purse: Purse
) -> Generator[Effect, Answer, tuple[StopCause, Spending]]:
    """The cause with the model's own account of the turn, for which a call was held back; without one, as it was."""
    if not spending.usage.calls_in_current_turn:
        return cause, spending
    messages = wrap_up_messages(state["messages"], cause, state.get("plan") or Plan(), state.get("changes") or ())
    request = Request(Prompt(messages=messages), purpose="wrap_up", most_output=WRAP_UP_OUTPUT_TOKENS, wrapping_up=True)
    paid = yield from paid_call(request, spending, replace(purse, retries=0))
    if paid.stop is not None and paid.stop.reason is StopReason.CANCELLED:
        return paid.stop, paid.spending
    account = account_of(without_thoughts(paid.reply)) if paid.reply else ""
    return cause.model_copy(update={"account": account}), paid.spending
