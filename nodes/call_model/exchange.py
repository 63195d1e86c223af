"""A model call as a script of effects: what is shown, what it may cost, what comes of it. Others perform them.

It is a generator, so that the sync and the async node run the very same decisions, and a test can play the endpoint
without one. `paid_call` makes and pays each request; here stands which requests there are: the reply itself, a summary
where the conversation outgrows the window, one more try after the endpoint said that it did, and the account of a run
that a limit ends.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from langchain_core.messages import AIMessage, AnyMessage
from typing_extensions import TypedDict

from mendgraph.nodes.call_model.effects import Answer, Effect, Update
from mendgraph.nodes.call_model.fitting import Talk, fit
from mendgraph.nodes.call_model.ledger import WRAP_UP_OUTPUT_TOKENS, RunLimits, Spending, exhausted_limit
from mendgraph.nodes.call_model.paid_call import CallBudget, Paid, Request, paid_call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.prompts.shown_messages import ShownMessages, message_of
from mendgraph.nodes.call_model.window import StandIns, Window
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.language.thoughts import without_thoughts
from mendgraph.nodes.records import (
    Correction,
    FileChange,
    FinishReason,
    JsonMap,
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

    budget: CallBudget = field(default_factory=CallBudget)
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
    spending, budget = state["spending"], settings.budget
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
    if cause is not None and cause.reason in WRAPPED_UP and budget.limits.wrap_up:
        cause, spending = yield from _wrapped_up(state, cause, spending, budget)
    return {"reply": None, "spending": spending, "stop": cause, **kept}


def _reply(
    talk: Talk, window: Window, spending: Spending, settings: CallSettings
) -> Generator[Effect, Answer, tuple[Window, Paid]]:
    """The reply to what is shown of the conversation, and what that is.

    After an overflow the conversation is made smaller once; a reply that holds nothing but cut off thoughts is asked
    for once more, with all the room that the budget has.
    """
    overflow: str | None = None
    budget, cramped = settings.budget, 0
    while True:
        fitted = yield from fit(talk, window, spending, budget, settings.window_tokens, overflow)
        window, spending = fitted.window, fitted.spending
        if fitted.prompt is None:
            said = () if overflow is None else (overflow,)
            return window, Paid(spending, stop=_with(fitted.stop, said))
        seed = None if settings.seed is None else (settings.seed + fitted.prompt.failed_tries) % MOST_SEEDS
        paid = yield from paid_call(Request(fitted.prompt, seed, most_output=fitted.most_output), spending, budget)
        if paid.reply is not None and is_only_thought(paid.reply):
            spending, room = paid.spending, paid.room
            if 0 < paid.reply.allowed_tokens < room:
                return window, Paid(spending, stop=thought_too_long(paid.reply.allowed_tokens, of_chat_model=True))
            if cramped or budget.limits.max_output_tokens_per_call is None:
                return window, Paid(spending, stop=thought_too_long(room))
            budget = replace(budget, limits=budget.limits.model_copy(update={"max_output_tokens_per_call": None}))
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
    state: CallModelState, cause: StopCause, spending: Spending, budget: CallBudget
) -> Generator[Effect, Answer, tuple[StopCause, Spending]]:
    """The cause with the model's own account of the turn, for which a call was held back; without one, as it was."""
    if not spending.usage.calls_in_current_turn:
        return cause, spending
    messages = wrap_up_messages(state["messages"], cause, state.get("plan") or Plan(), state.get("changes") or ())
    request = Request(Prompt(messages=messages), purpose="wrap_up", most_output=WRAP_UP_OUTPUT_TOKENS, wrapping_up=True)
    paid = yield from paid_call(request, spending, replace(budget, retries=0))
    if paid.stop is not None and paid.stop.reason is StopReason.CANCELLED:
        return paid.stop, paid.spending
    account = account_of(without_thoughts(paid.reply)) if paid.reply else ""
    return cause.model_copy(update={"account": account}), paid.spending


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
