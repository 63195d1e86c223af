"""One visit of a model call: what is shown, which request there is, what comes of it.

`paid_call` pays the request; here stands which one it is: the reply itself, or a summary where the conversation
outgrows the window. After an endpoint said that it did, the next visit shows less.

Nothing is done, and nothing is counted, while the whole conversation fits. Otherwise old results are cleared, then the
model sums up what was first, which is a request that is paid like any other, and where that does not help the window
slides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Final

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from mendgraph.nodes import records
from mendgraph.nodes.call_model import window as windows
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, Spending
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.paid_call import CallBudget, PaidCall, Request, stopped
from mendgraph.nodes.call_model.pending_call import FIRST_TRY, MOST_ROUNDS, PendingCall
from mendgraph.nodes.call_model.prompts import block_prompt
from mendgraph.nodes.call_model.prompts.estimates import estimate_input, estimate_tokens
from mendgraph.nodes.call_model.prompts.profiles import SMALL_STOP
from mendgraph.nodes.call_model.prompts.prompt import (
    Known,
    Prompt,
    ShownMessages,
    from_map,
    message_of,
    size_of,
    text_size,
)
from mendgraph.nodes.call_model.prompts.turn_view import view_turn
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.language.history import without_thoughts
from mendgraph.nodes.language.project_notes import ProjectNotes

Tell = Callable[[str, records.JsonMap], None]
"""Hears the name of an event and its payload."""


class CallModelState(TypedDict, total=False):
    """What the node reads."""

    messages: list[AnyMessage]
    profile: records.Profile
    corrections: list[records.Correction]
    spending: Spending
    preload: records.ModelReply | None
    pending_call: PendingCall | None
    step: int
    window: windows.Window
    plan: records.Plan
    changes: list[records.FileChange]
    notes: tuple[ProjectNotes, ...]
    system_prompt: list[str]


@dataclass(frozen=True)
class CallSettings:
    """How calls of this run are made. `window_tokens` is the model's window, None where nobody knows it.

    `system` is said after our own system prompt. `cache` and `stand_ins` remember what was sent and shown before.
    """

    budget: CallBudget = field(default_factory=CallBudget)
    temperature: float | None = None
    seed: int | None = None
    window_tokens: int | None = None
    cache: ShownMessages = field(default_factory=ShownMessages)
    stand_ins: windows.StandIns = field(default_factory=dict)
    system: str = ""


MOST_SEEDS = 2**31  # seeds are smaller than this in every endpoint that takes one
SHORTENED: Final = "conversation shortened"
"""The edge to another visit, which shows less: after a summary, and after an endpoint's refusal of so long a prompt."""


class Exchange:
    """One visit of the node: which request it makes, what is shown by then, and what came of it.

    A call that does not fit into the budget is never sent: the update then names the limit in `stop`, as it names the
    endpoint's failure when the last try failed, or who stopped the run. Where another visit follows, `pending_call`
    says how the call stands.
    """

    def __init__(
        self, state: CallModelState, settings: CallSettings, specs: Sequence[records.ToolSpec], services: CallServices
    ) -> None:
        """Nothing is looked at before the wait of `pending` is over."""
        self._state = state
        self._settings = settings
        self._specs = specs
        self._services = services
        self.pending = state.get("pending_call") or FIRST_TRY
        self._window = state.get("window", windows.WHOLE)
        self._step = {"step": state.get("step", 0) + 1}
        self._fitting: Fitting
        self.update: Update = {}

    def next_call(self) -> PaidCall | None:
        """The request of this visit: a summary, or the reply. None where `update` says what came of the visit.

        Where somebody wants the run to stop, nothing that was prepared is used up. A preloaded reply costs nothing.
        """
        state = self._state
        settings = self._settings
        spending = self._state["spending"]

        if self._services.stop.reason:
            self._end(spending, stopped(self._services.stop.reason))
            return None

        if preload := state.get("preload"):
            self.update = {"reply": preload, "preload": None, **self._step}
            return None

        spending = spending.model_copy(update={"seconds": spending.seconds + self.pending.wait_s})
        self._fitting = Fitting(state, settings, self._specs, self._services.on_tell, spending, self.pending)
        request = self._fitting.request()
        self._window = self._fitting.window

        if isinstance(request, records.StopCause):
            overflow = filter(None, (self.pending.overflow,))
            self._end(spending, request.model_copy(update={"diagnostics": (*request.diagnostics, *overflow)}))
            return None

        call = PaidCall(request, spending, settings.budget, self._services, self.pending)
        if call.fits():
            return call

        self.take(call)
        return None

    def take(self, call: PaidCall) -> Update:
        """Take what came of the request. After an overflow the conversation is made smaller once."""
        pending = call.pending
        stop = call.stop
        before = self.pending
        is_cancelled = stop is not None and stop.reason is records.StopReason.CANCELLED

        if pending is not None:
            pending = pending.model_copy(update={"is_too_long": self._fitting.is_too_long})
        elif call.request.purpose == "summary" and not is_cancelled:
            self._fitting.take_summary(call.reply)
            self._window = self._fitting.window
            pending = PendingCall(edge=SHORTENED, summaries=self._fitting.rounds, overflow=before.overflow)
        elif stop is not None and stop.reason is records.StopReason.CONTEXT_OVERFLOW and not before.overflow:
            tokens = _estimate(call.request.prompt, call.spending)
            self._window = self._window.model_copy(update={"tokens": tokens})
            pending = PendingCall(edge=SHORTENED, overflow=stop.message, is_too_long=True)

        if pending is None and call.reply is not None and is_only_thought(call.reply):
            stop = thought_too_long(call.reply.allowed_tokens, call.entry.output_tokens)

        self._end(call.spending, pending or stop or call.reply)
        return self.update

    def _end(self, spending: Spending, end: records.ModelReply | records.StopCause | PendingCall | None) -> None:
        state = self._state
        self.update = {"reply": None, "spending": spending}
        if self._window != state.get("window", windows.WHOLE):
            self.update["window"] = self._window

        if state.get("pending_call"):
            self.update["pending_call"] = None

        if isinstance(end, PendingCall):
            self.update["pending_call"] = end
        elif isinstance(end, records.StopCause):
            self.update["stop"] = end
        elif end is not None:
            self.update |= {"reply": end, **self._step}
            if end.without_tools:
                self.update["profile"] = state["profile"].model_copy(update={"protocol": records.Protocol.TEXT})


def is_only_thought(reply: records.ModelReply) -> bool:
    """Whether a reply ended at its token limit before the model had said anything: its thoughts took all the room."""
    if reply.finish_reason is not records.FinishReason.LENGTH or reply.calls:
        return False

    answer = without_thoughts(reply)
    return not answer.text.strip() and bool(answer.reasoning or reply.reasoning_tokens)


def thought_too_long(allowed: int, room: int) -> records.StopCause:
    """Why a run ends whose model thinks longer than its chat model was `allowed` to, or than the call had `room`."""
    has_own_limit = 0 < allowed < room
    message = f"The model's thoughts took all {allowed if has_own_limit else room:,} output tokens of its reply, " + (
        "which is the limit of the chat model itself. Raise its max_tokens where it is set, or lower reasoning_effort."
        if has_own_limit
        else "which is what its budget allowed. Raise max_output_tokens_per_call or max_output_tokens_per_session, or "
        "lower reasoning_effort."
    )

    return records.StopCause(reason=records.StopReason.MAX_OUTPUT_TOKENS, message=message)


# --- Three ways of talking: `native` sends the tools as the endpoint's own schemas, `text` describes them in the system
# prompt and is answered in `tool:` lines, and the block form, for small models, has a prompt of its own. A short prompt
# never changes at the front, and nothing in these texts would do harm if it came back as a call.

NATIVE_SYSTEM = """\
You are a coding agent. You work on the files of one workspace through tools.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool call."""

TEXT_SYSTEM = """\
You are a coding agent. You work on the files of one workspace through tools.
To use a tool, write a line of its own:
tool: NAME({{"argument": "value"}})
The argument is one JSON object in compact form. Several lines make several calls; then stop and wait for the results.
Read a file before you change it. Make the smallest change that does the task. Paths are relative to the workspace.
When the task is done, answer in plain text without a tool line.

Tools:
{tools}"""


SMALL_TEMPERATURE: Final = 0.0
"""Of a small model's first try, where nobody asked for another: sampled, it makes more mistakes of form."""


def build_prompt(
    profile: records.Profile,
    specs: Sequence[records.ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[records.Correction],
    temperature: float | None,
    asked_again: int = 0,
    shown: ShownMessages | None = None,
    most_tokens: int | None = None,
) -> Prompt:
    """Build the next request from what is shown of the history and the open corrections of this turn.

    `asked_again` counts all corrections of the turn, those that are settled as well. `shown` knows what was sent
    before. The block form leaves out what passes `most_tokens`; others are made to fit before, by `exchange`.
    """
    shown = shown or ShownMessages()
    native = profile.protocol is records.Protocol.NATIVE
    # Where a reply in text is cut: a small model writes its tool's result itself. Some endpoints refuse such words.
    stop = SMALL_STOP if profile.small and not native else ()

    if temperature is None and profile.small:
        temperature = SMALL_TEMPERATURE

    if profile.edit_form is records.EditForm.BLOCKS:
        blocks = block_prompt.block_request(
            specs, history, corrections, native=native, asked=asked_again, most_tokens=most_tokens
        )

        if profile.small and blocks.failed_tries >= block_prompt.LAST_TRY:
            temperature = max(temperature or 0.0, block_prompt.RETRY_TEMPERATURE)

        return replace(blocks, stop=stop, temperature=temperature)

    offered = shown.tools(specs)

    if native:
        system = NATIVE_SYSTEM
    else:
        system = TEXT_SYSTEM.format(tools=offered.lines)

    front = message_of("system", system)
    sent = shown.messages(history, native=native)
    questions = [
        message
        for correction in corrections
        for message in (message_of("assistant", correction.reply or "(empty)"), message_of("user", correction.prompt))
    ]

    return Prompt(
        messages=(front, *(message.map for message in sent), *questions),
        tools=offered.maps if native else (),
        stop=stop,
        temperature=temperature,
        known=Known(
            (from_map(front), *(message.message for message in sent), *map(from_map, questions)),
            size_of(front) + sum(message.size for message in sent) + sum(map(size_of, questions)),
            offered.size if native else 0,
        ),
    )


# --- Making a request fit the window of its model


OUTPUT_SHARE: Final = 4  # a reply is given room for all of its tokens, or for this part of the window, if that is less


class Fitting:
    """Makes the next request fit the window. `window` is what is shown by now.

    `is_too_long` says that the endpoint called the last request too long, and nothing was left out since. Where nobody
    knows the window, only that makes the conversation smaller. `rounds` counts compactions of this visit and summaries.
    """

    def __init__(
        self,
        state: CallModelState,
        settings: CallSettings,
        specs: Sequence[records.ToolSpec],
        tell: Tell,
        spending: Spending,
        pending: PendingCall,
    ) -> None:
        self._state = state
        self._settings = settings
        self._specs = specs
        self._tell = tell
        self._spending = spending
        self.window = state.get("window", windows.WHOLE)
        self.is_too_long = pending.is_too_long
        self.rounds = pending.summaries
        self._refused = bool(pending.overflow)
        self._is_summed_up = pending.summaries > 0
        self._known = min(
            (window for window in (settings.window_tokens, self.window.tokens) if window is not None), default=None
        )
        output = settings.budget.limits.max_output_tokens_per_call
        share = 0 if self._known is None else self._known // OUTPUT_SHARE

        if output is None:
            output = share
        elif self._known is not None:
            output = min(output, share)

        self._output = output
        self._needed: windows.NeedsSummary

    def request(self) -> Request | records.StopCause:
        """The request for the reply, or for the summary without which that does not fit; or why there is none."""
        if self._state["profile"].edit_form is records.EditForm.BLOCKS:
            return self._in_blocks()

        while True:
            view = windows.shown(self._state["messages"], self.window, self._settings.stand_ins)
            prompt = _prompt(self._state, self._settings, self._specs, view)
            estimated = _estimate(prompt, self._spending)

            if self._fits(estimated) or self.rounds == MOST_ROUNDS:
                return self._reply(prompt)

            self.rounds += 1
            compacted = self._compacted(prompt, estimated)
            if compacted is None:  # it cannot be made smaller
                return self._reply(prompt)

            if isinstance(compacted, windows.NeedsSummary):
                if self._is_summed_up:  # another summary costs as much as the first one
                    self._take(compacted.fallback)
                    continue

                self._needed = compacted
                summary = Prompt(messages=compacted.messages)
                return Request(summary, purpose="summary", most_output=windows.SUMMARY_TOKENS)

            if isinstance(compacted, windows.Compacted):
                self._take(compacted)
            elif self._state.get("notes"):
                self._state = {**self._state, "notes": ()}  # the request itself comes first
            else:
                return compacted

    def take_summary(self, reply: records.ModelReply | None) -> None:
        """Take the summary, or do without it."""
        needed = self._needed
        self._take(needed.fallback if reply is None else needed.conclude(without_thoughts(reply).text))

    def _in_blocks(self) -> Request | records.StopCause:
        """The block form is made anew for each request, and omits what does not fit; after a refusal half of it."""
        state = self._state
        known_limits = self._known
        most = None

        if known_limits is not None:
            if self._refused:
                most = known_limits // 2
            else:
                most = max(known_limits - self._output, 1)

        prompt = _prompt(state, self._settings, self._specs, state["messages"], most)
        # A model that has stepped down has failed in another form: loop control counts its tries in this one.
        if prompt.failed_tries > block_prompt.LAST_TRY and not state["profile"].steps_down:
            return _used_up(state)

        return self._reply(prompt)

    def _fits(self, estimated: int) -> bool:
        if self.is_too_long:
            return False
        return self._known is None or estimated + self._output <= self._known * windows.TRIGGER

    def _reply(self, prompt: Prompt) -> Request:
        seed = self._settings.seed
        if seed is not None:
            seed = (seed + prompt.failed_tries) % MOST_SEEDS

        most_output = None
        if self._known is not None:
            most_output = max(MIN_OUTPUT_TOKENS, self._known - _estimate(prompt, self._spending))

        return Request(prompt, seed, most_output=most_output)

    def _take(self, compacted: windows.Compacted) -> None:
        self.is_too_long = False
        self.window = compacted.window
        tokens = {"tokens_before": compacted.tokens_before, "tokens_after": compacted.tokens_after}
        self._tell("context.compacted", {"kind": compacted.kind, **tokens})

    def _compacted(
        self, prompt: Prompt, estimated: int
    ) -> windows.Compacted | windows.NeedsSummary | records.StopCause | None:
        """What to do about a request of `estimated` tokens; messages are measured at the rate of the whole."""
        state = self._state
        settings = self._settings
        rate = estimated / max(prompt.size, 1)
        native = state["profile"].protocol is records.Protocol.NATIVE
        history = state["messages"]
        stand_ins = settings.stand_ins

        def tokens_of(message: AnyMessage) -> int:
            if not message.id:  # one that is only being considered
                return ceil(text_size(message.text) * rate)
            return ceil(settings.cache.messages([message], native=native)[0].size * rate)

        view = sum(map(tokens_of, windows.shown(history, self.window, stand_ins)))
        fixed = max(0, estimated - view)
        budget = windows.Budget(window_tokens=self._known, fixed_tokens=fixed, output_tokens=self._output)
        changed = tuple(dict.fromkeys(change.path for change in state.get("changes") or ()))
        plan = state.get("plan")

        return windows.compact(
            history, self.window, plan, changed, tokens_of, budget, forced=self.is_too_long, made=stand_ins
        )


def _used_up(state: CallModelState) -> records.StopCause:
    """Why a run ends whose model would have to be asked in words that it was asked in before."""
    failures = view_turn(state["messages"]).failures
    notices = (*failures, *(correction.prompt for correction in state.get("corrections") or ()))

    return records.StopCause(
        reason=records.StopReason.EDITS_FAILED,
        message=f"No reply could be used after {block_prompt.LAST_TRY + 1} tries.",
        diagnostics=notices[-1:],
    )


def _estimate(prompt: Prompt, spending: Spending) -> int:
    return estimate_input(prompt.size, len(prompt.messages), spending.gauge)


def _prompt(
    state: CallModelState,
    settings: CallSettings,
    specs: Sequence[records.ToolSpec],
    view: Sequence[AnyMessage],
    most_tokens: int | None = None,
) -> Prompt:
    profile = state["profile"]
    notes = state.get("notes") or ()
    blocks = profile.edit_form is records.EditForm.BLOCKS
    room = most_tokens
    words = "\n\n".join(filter(None, ("".join(state.get("system_prompt") or ()), settings.system)))

    if room is not None and (notes or words):
        added = text_size(windows.notes_before(notes, "") if notes else "") + text_size(words)
        room = max(1, room - estimate_tokens(added, 1))

    prompt = build_prompt(
        profile,
        specs,
        view if blocks else windows.with_notes(view, notes, settings.stand_ins),
        state.get("corrections") or (),
        settings.temperature,
        state["spending"].mending.asked_again,
        settings.cache,
        room,
    )

    if blocks and notes:
        *others, last = prompt.messages
        noted_request = {**last, "content": windows.notes_before(notes, str(last["content"]))}
        prompt = replace(prompt, messages=(*others, noted_request))

    if words:
        prompt = _with_words(prompt, words)

    if profile.protocol is records.Protocol.TEXT:
        return prompt

    text_state: CallModelState = {**state, "profile": profile.model_copy(update={"protocol": records.Protocol.TEXT})}
    return replace(prompt, without_tools=partial(_prompt, text_state, settings, specs, view, most_tokens))


def _with_words(prompt: Prompt, words: str) -> Prompt:
    """The prompt with the user's own words after ours, which say how tools are called."""
    front, *others = prompt.messages
    front = {**front, "content": f"{front['content']}\n\n{words}"}
    if (hidden_text := prompt.known) is not None:
        size = hidden_text.size - size_of(prompt.messages[0]) + size_of(front)
        hidden_text = hidden_text._replace(messages=(from_map(front), *hidden_text.messages[1:]), size=size)

    return replace(prompt, messages=(front, *others), known=hidden_text)
