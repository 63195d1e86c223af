"""One visit of a model call: which request it makes, and what follows from its outcome.

`Fitting` finds the request: the reply itself, or a summary where the conversation outgrows the window. `PaidCall` pays
it. After an endpoint has called a request too long, the next visit shows less.

While the whole conversation fits, nothing is shortened. Otherwise old results are cleared, then the model summarises
the beginning, in a request that is paid like any other. Where that does not help, the window slides.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Final

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings, Tell
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, Spending
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.paid_call import PaidCall, Request, stopped
from mendgraph.nodes.call_model.pending_call import FIRST_TRY, MOST_ROUNDS, PendingCall
from mendgraph.nodes.call_model.prompts.estimates import estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.turn_prompt import turn_prompt
from mendgraph.nodes.call_model.window import TRIGGER, WHOLE, shown
from mendgraph.nodes.language.chat_messages import text_size
from mendgraph.nodes.language.provider_state import without_thoughts
from mendgraph.nodes.records import FinishReason, ModelReply, Protocol, StopCause, StopReason, ToolSpec

if TYPE_CHECKING:
    from mendgraph.nodes.call_model.compaction import Compacted, NeedsSummary
    from mendgraph.nodes.language.block_form import BlockRequests

OUTPUT_SHARE: Final = 4  # a reply may have all of its tokens, or this part of the window, if that is less
MOST_SEEDS: Final = 2**31  # seeds are smaller than this in every endpoint that takes one
SHORTENED: Final = "conversation shortened"
"""The edge to another visit, which shows less: after a summary, and after an endpoint's refusal of so long a prompt."""


class Exchange:
    """One visit of the node: the request that it makes, and the update that follows from it.

    A call that does not fit into the budget is never sent: the update then names the limit in `stop`, as it names the
    endpoint's failure when the last try failed, or who stopped the run. Where another visit follows, `pending_call`
    says how the call stands.
    """

    def __init__(
        self, state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
    ) -> None:
        """`pending` is how the call stands; its wait comes before `next_call`."""
        self._state = state
        self._settings = settings
        self._specs = specs
        self._services = services
        self.pending = state.get("pending_call") or FIRST_TRY
        self._window = state.get("window", WHOLE)
        self._step = {"step": state.get("step", 0) + 1}
        self._fitting: Fitting
        self.update: Update = {}

    def next_call(self) -> PaidCall | None:
        """The request of this visit: a summary, or the reply. None where `update` ends the visit without a request.

        Once a stop is requested, nothing that was prepared is used up. A preloaded reply costs nothing.
        """
        state = self._state
        pending = self.pending
        spending = state["spending"]

        if self._services.stop.reason:
            self._end(spending, stopped(self._services.stop.reason))
            return None

        preload = state.get("preload")
        if preload:
            self.update = {"reply": preload, "preload": None, **self._step}
            return None

        spending = spending.model_copy(update={"seconds": spending.seconds + pending.wait_s})
        self._fitting = Fitting(state, self._settings, self._specs, self._services.on_tell, spending, pending)
        request = self._fitting.request()
        self._window = self._fitting.window

        if isinstance(request, StopCause):
            if pending.overflow:
                diagnostics = (*request.diagnostics, pending.overflow)
                request = request.model_copy(update={"diagnostics": diagnostics})

            self._end(spending, request)
            return None

        call = PaidCall(request, spending, self._settings.budget, self._services, pending)
        if call.fits():
            return call

        self.take(call)
        return None

    def take(self, call: PaidCall) -> Update:
        """Turn the call that ended into the update: a reply, a stop, or another visit.

        A first refusal of a too long prompt leads to a visit that shows less; a second one is the stop.
        """
        pending = call.pending
        stop = call.stop
        overflow = self.pending.overflow

        if pending is not None:
            pending = pending.model_copy(update={"is_too_long": self._fitting.is_too_long})
        elif call.request.purpose == "summary" and not _has_reason(stop, StopReason.CANCELLED):
            self._fitting.take_summary(call.reply)
            self._window = self._fitting.window
            pending = PendingCall(edge=SHORTENED, summaries=self._fitting.rounds, overflow=overflow)
        elif stop is not None and _has_reason(stop, StopReason.CONTEXT_OVERFLOW) and not overflow:
            tokens = call.estimated_tokens
            self._window = self._window.model_copy(update={"tokens": tokens})
            pending = PendingCall(edge=SHORTENED, overflow=stop.message, is_too_long=True)

        if pending is None and call.reply is not None and is_only_thought(call.reply):
            stop = thought_too_long(call.reply.allowed_tokens, call.entry.output_tokens)

        self._end(call.spending, pending or stop or call.reply)
        return self.update

    def _end(self, spending: Spending, end: ModelReply | StopCause | PendingCall | None) -> None:
        """Write the update of a visit that ends with a reply, a stop or another visit."""
        state = self._state
        self.update = {"reply": None, "spending": spending}

        if self._window != state.get("window", WHOLE):
            self.update["window"] = self._window

        if state.get("pending_call"):
            self.update["pending_call"] = None

        if isinstance(end, PendingCall):
            self.update["pending_call"] = end
        elif isinstance(end, StopCause):
            self.update["stop"] = end
        elif end is not None:
            self.update |= {"reply": end, **self._step}

            if end.without_tools:
                self.update["profile"] = state["profile"].model_copy(update={"protocol": Protocol.TEXT})


def _has_reason(stop: StopCause | None, reason: StopReason) -> bool:
    return stop is not None and stop.reason is reason


def is_only_thought(reply: ModelReply) -> bool:
    """Whether the thoughts of a reply took all of its tokens, so that it has no text."""
    if reply.finish_reason is not FinishReason.LENGTH or reply.calls:
        return False

    answer = without_thoughts(reply)
    return not answer.text.strip() and bool(answer.reasoning or reply.reasoning_tokens)


def thought_too_long(allowed: int, reserved: int) -> StopCause:
    """Why a run ends whose model thinks longer than its chat model `allowed`, or than the call had `reserved`."""
    if 0 < allowed < reserved:
        tokens = f"{allowed:,}"
        advice = "the limit of the chat model itself. Raise its max_tokens where it is set, or lower reasoning_effort."
    else:
        tokens = f"{reserved:,}"
        advice = (
            "what its budget allowed. Raise max_output_tokens_per_call or max_output_tokens_per_session, or lower "
            "reasoning_effort."
        )

    message = f"The model's thoughts took all {tokens} output tokens of its reply, which is {advice}"
    return StopCause(reason=StopReason.MAX_OUTPUT_TOKENS, message=message)


# --- Making a request fit the window of its model


class Fitting:
    """Finds the next request that fits. `window` is the part of the history that is shown by now.

    `is_too_long` says that the endpoint called the last request too long, and nothing was left out since. Where nobody
    knows the window, only that makes the conversation smaller. `rounds` counts compactions of this visit and summaries.
    """

    def __init__(
        self,
        state: CallModelState,
        settings: CallSettings,
        specs: Sequence[ToolSpec],
        tell: Tell,
        spending: Spending,
        pending: PendingCall,
    ) -> None:
        """`pending` is how the call stands; events of compactions go to `tell`."""
        self._state = state
        self._settings = settings
        self._specs = specs
        self._tell = tell
        self._spending = spending
        self.window = state.get("window", WHOLE)
        self.is_too_long = pending.is_too_long
        self.rounds = pending.summaries
        self._was_refused = bool(pending.overflow)
        self._is_summarised = pending.summaries > 0
        limits = [tokens for tokens in (settings.window_tokens, self.window.tokens) if tokens is not None]
        self._window_tokens = min(limits, default=None)
        self._output_tokens = self._tokens_for_reply()
        self._needed: NeedsSummary

    def _tokens_for_reply(self) -> int:
        limit = self._settings.budget.limits.max_output_tokens_per_call
        if self._window_tokens is None:
            return limit or 0

        share = self._window_tokens // OUTPUT_SHARE
        if limit is None:
            return share

        return min(limit, share)

    def request(self) -> Request | StopCause:
        """The request for the reply, or for the summary without which that does not fit; or why there is none."""
        if self._settings.blocks is not None:
            return self._block_request(self._settings.blocks)

        while True:
            view = shown(self._state["messages"], self.window, self._settings.stand_ins)
            prompt = turn_prompt(self._state, self._settings, self._specs, view)
            estimated = self.estimate(prompt)

            if self._fits(estimated) or self.rounds == MOST_ROUNDS:
                return self._reply_request(prompt)

            self.rounds += 1
            step = self._compact(prompt, estimated)

            if step is None:  # it cannot be made smaller
                return self._reply_request(prompt)

            if isinstance(step, StopCause) and not self._state.get("notes"):
                return step

            if isinstance(step, StopCause):  # the request itself comes before the notes
                self._state = {**self._state, "notes": ()}
            elif step.kind != "needs summary":
                self._take(step)
            elif self._is_summarised:  # another summary costs as much as the first one
                self._take(step.fallback)
            else:
                self._needed = step
                return Request(Prompt(step.messages), purpose="summary", most_output=step.most_tokens)

    def take_summary(self, reply: ModelReply | None) -> None:
        """Take the summary of a reply; None does without it."""
        if reply is None:
            self._take(self._needed.fallback)
        else:
            self._take(self._needed.conclude(without_thoughts(reply).text))

    def estimate(self, prompt: Prompt) -> int:
        """The estimated input tokens of a request."""
        return estimate_input(prompt.size, len(prompt.messages), self._spending.gauge)

    def _block_request(self, blocks: "BlockRequests") -> Request | StopCause:
        """The block form builds each request from facts, and omits what does not fit; after a refusal half of it."""
        state = self._state
        most_tokens = None
        if self._window_tokens is not None and self._was_refused:
            most_tokens = self._window_tokens // 2
        elif self._window_tokens is not None:
            most_tokens = max(self._window_tokens - self._output_tokens, 1)

        prompt = turn_prompt(state, self._settings, self._specs, state["messages"], most_tokens)
        cause = blocks.exhausted(prompt.failed_tries, state["messages"], state.get("corrections") or ())
        if cause is not None:
            return cause

        return self._reply_request(prompt)

    def _fits(self, estimated: int) -> bool:
        if self.is_too_long:
            return False

        return self._window_tokens is None or estimated + self._output_tokens <= self._window_tokens * TRIGGER

    def _reply_request(self, prompt: Prompt) -> Request:
        seed = self._settings.seed
        if seed is not None:
            seed = (seed + prompt.failed_tries) % MOST_SEEDS

        most_output = None
        if self._window_tokens is not None:
            most_output = max(MIN_OUTPUT_TOKENS, self._window_tokens - self.estimate(prompt))

        return Request(prompt, seed, most_output=most_output)

    def _take(self, compacted: "Compacted") -> None:
        self.is_too_long = False
        self.window = compacted.window
        tokens = {"tokens_before": compacted.tokens_before, "tokens_after": compacted.tokens_after}
        self._tell("context.compacted", {"kind": compacted.kind, **tokens})

    def _compact(self, prompt: Prompt, estimated: int) -> "Compacted | NeedsSummary | StopCause | None":
        """How a request of `estimated` tokens becomes smaller; messages are measured at its rate of tokens to bytes."""
        from mendgraph.nodes.call_model.compaction import Budget, compact  # most runs fit their window

        state = self._state
        history = state["messages"]
        stand_ins = self._settings.stand_ins
        native = state["profile"].protocol is Protocol.NATIVE
        tokens_per_byte = estimated / max(prompt.size, 1)

        def tokens_of(message: AnyMessage) -> int:
            if message.id:
                size = self._settings.cache.messages([message], native=native)[0].size
            else:  # one that is only being considered
                size = text_size(message.text)

            return ceil(size * tokens_per_byte)

        view_tokens = sum(map(tokens_of, shown(history, self.window, stand_ins)))
        budget = Budget(
            window_tokens=self._window_tokens,
            fixed_tokens=max(0, estimated - view_tokens),
            output_tokens=self._output_tokens,
        )
        changed = tuple(dict.fromkeys(change.path for change in state.get("changes") or ()))

        return compact(
            history,
            self.window,
            state.get("plan"),
            changed,
            tokens_of,
            budget,
            forced=self.is_too_long,
            stand_ins=stand_ins,
        )
