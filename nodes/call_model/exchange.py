"""One visit of a model call: the request that it makes, and the update that follows.

The request is for the reply, or for a summary if the conversation exceeds the window. `PaidCall` reserves and charges
it. After the endpoint has refused a prompt as too long, the next visit shows less.

A conversation that fits is not shortened. Otherwise old results are cleared, then the model summarises the beginning,
in a request that is charged like any other. If that does not help, the window slides.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Final

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
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

OUTPUT_SHARE: Final = 4  # a reply may have a quarter of the window
MOST_SEEDS: Final = 2**31  # every endpoint accepts smaller seeds
SHORTENED: Final = "conversation shortened"
"""The edge to another visit with less history: after a summary, or after a refusal of a too long prompt."""


class CallVisit:
    """One visit of the node: the request that it makes, and the update that follows.

    A call that does not fit into the budget is never sent. `stop` in the update names the limit, the endpoint's failure
    or the stop request; `pending_call` is set if another visit follows.
    """

    def __init__(
        self, state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec], services: CallServices
    ) -> None:
        """The caller waits as `pending` says before `next_call`."""
        self._state = state
        self._settings = settings
        self._specs = specs
        self._services = services
        self.pending = state.get("pending_call") or FIRST_TRY
        self.update: Update = {}

        self._window = state.get("window", WHOLE)
        self._is_too_long = self.pending.is_too_long  # since the endpoint's refusal, nothing was left out
        self._rounds = self.pending.summaries  # compactions of this visit, and summaries
        self._needed_summary: NeedsSummary
        limits = [tokens for tokens in (settings.window_tokens, self._window.tokens) if tokens is not None]
        self._window_tokens = min(limits, default=None)
        self._output_tokens = self._tokens_for_reply()

    def next_call(self) -> PaidCall | None:
        """Return the call of this visit, for a reply or a summary; None if `update` ends the visit without a call.

        A stop request comes before a preloaded reply, which costs nothing.
        """
        state = self._state
        pending = self.pending
        spending = state["spending"]

        if self._services.stop.reason:
            self._end(spending, stopped(self._services.stop.reason))
            return None

        preload = state.get("preload")
        if preload:
            self.update = {"reply": preload, "preload": None, "step": state.get("step", 0) + 1}
            return None

        spending = spending.model_copy(update={"seconds": spending.seconds + pending.wait_s})
        request = self._compaction_request() if pending.compacts else self._next_request()

        if isinstance(request, StopCause):
            if pending.overflow:
                diagnostics = (*request.diagnostics, pending.overflow)
                request = request.model_copy(update={"diagnostics": diagnostics})

            self._end(spending, request)
            return None

        call = PaidCall(request, spending, self._settings.budget, self._services, pending)
        if call.fits():
            return call

        self.finish(call)
        return None

    def finish(self, call: PaidCall) -> Update:
        """Return the update after the call: a reply, a stop or another visit.

        A first refusal of a too long prompt leads to a visit that shows less; a second one is the stop.
        """
        pending = call.pending
        stop = call.stop
        reason = None if stop is None else stop.reason
        overflow = self.pending.overflow

        if pending is not None:
            pending = pending.model_copy(update={"is_too_long": self._is_too_long})
        elif call.request.purpose == "summary" and reason is not StopReason.CANCELLED:
            self._apply_summary(call.reply)
            pending = PendingCall(edge=SHORTENED, summaries=self._rounds, overflow=overflow)
        elif stop is not None and reason is StopReason.CONTEXT_OVERFLOW and not overflow:
            self._window = self._window.model_copy(update={"tokens": call.estimated_tokens})
            pending = PendingCall(edge=SHORTENED, overflow=stop.message, is_too_long=True)

        if pending is None and call.reply is not None and is_only_thought(call.reply):
            stop = thought_too_long(call.reply.allowed_tokens, call.entry.output_tokens)

        self._end(call.spending, pending or stop or call.reply)
        return self.update

    def _end(self, spending: Spending, end: ModelReply | StopCause | PendingCall | None) -> None:
        """Set the update of a visit that ends with a reply, a stop or another visit."""
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
            self.update |= {"reply": end, "step": state.get("step", 0) + 1}

            if end.without_tools:
                self.update["profile"] = state["profile"].model_copy(update={"protocol": Protocol.TEXT})

    # --- Fitting the request into the window

    def _tokens_for_reply(self) -> int:
        limit = self._settings.budget.limits.max_output_tokens_per_call
        if self._window_tokens is None:
            return limit or 0

        share = self._window_tokens // OUTPUT_SHARE
        return share if limit is None else min(limit, share)

    def _next_request(self) -> Request | StopCause:
        """Return the request for the reply, or for a summary if that does not fit, or a stop cause."""
        if self._settings.blocks is not None:
            return self._block_request(self._settings.blocks)

        while True:
            view = shown(self._state["messages"], self._window, self._settings.stand_ins)
            prompt = turn_prompt(self._state, self._settings, self._specs, view)
            estimated = self._estimate(prompt)

            if self._fits(estimated) or self._rounds == MOST_ROUNDS:
                return self._reply_request(prompt)

            self._rounds += 1
            step = self._compact(prompt, estimated)

            if step is None:  # nothing can be left out
                return self._reply_request(prompt)

            if isinstance(step, StopCause) and not self._state.get("notes"):
                return step

            if isinstance(step, StopCause):  # leave out the notes instead
                self._state = {**self._state, "notes": ()}
            elif step.kind != "needs summary":
                self._apply(step)
            elif self.pending.summaries:  # one summary is enough
                self._apply(step.fallback)
            else:
                self._needed_summary = step
                return Request(Prompt(step.messages), purpose="summary", most_output=step.most_tokens)

    def _compaction_request(self) -> Request | StopCause:
        """Return the request for a summary that a person wants now, or a stop cause if no request is needed."""
        step = None
        if self._settings.blocks is None:
            view = shown(self._state["messages"], self._window, self._settings.stand_ins)
            prompt = turn_prompt(self._state, self._settings, self._specs, view)
            step = self._compact(prompt, self._estimate(prompt))

        if step is None or isinstance(step, StopCause) or step.kind == "slid":
            return StopCause(reason=StopReason.CANCELLED, message="The conversation is too short for a summary.")
        if step.kind != "needs summary":
            self._apply(step)
            return StopCause(reason=StopReason.CANCELLED, message="Old results are left out, which is enough.")

        self._needed_summary = step
        return Request(Prompt(step.messages), purpose="summary", most_output=step.most_tokens)

    def _apply_summary(self, reply: ModelReply | None) -> None:
        step = self._needed_summary.fallback
        if reply is not None:
            step = self._needed_summary.conclude(without_thoughts(reply).text)

        if step.kind == "summarised" or not self.pending.compacts:  # a person loses nothing without a summary
            self._apply(step)

    def _estimate(self, prompt: Prompt) -> int:
        return estimate_input(prompt.size, len(prompt.messages), self._state["spending"].gauge)

    def _block_request(self, blocks: "BlockRequests") -> Request | StopCause:
        """Build a request in the block form, which omits what does not fit; after a refusal, half of the window."""
        state = self._state
        most_tokens = None
        if self._window_tokens is not None and self.pending.overflow:
            most_tokens = self._window_tokens // 2
        elif self._window_tokens is not None:
            most_tokens = max(self._window_tokens - self._output_tokens, 1)

        prompt = turn_prompt(state, self._settings, self._specs, state["messages"], most_tokens)
        cause = blocks.exhausted(prompt.failed_tries, state["messages"], state.get("corrections") or ())
        if cause is not None:
            return cause

        return self._reply_request(prompt)

    def _fits(self, estimated: int) -> bool:
        if self._is_too_long:
            return False

        return self._window_tokens is None or estimated + self._output_tokens <= self._window_tokens * TRIGGER

    def _reply_request(self, prompt: Prompt) -> Request:
        seed = self._settings.seed
        if seed is not None:
            seed = (seed + prompt.failed_tries) % MOST_SEEDS

        most_output = None
        if self._window_tokens is not None:
            most_output = max(MIN_OUTPUT_TOKENS, self._window_tokens - self._estimate(prompt))

        return Request(prompt, seed, most_output=most_output)

    def _apply(self, compacted: "Compacted") -> None:
        self._is_too_long = False
        self._window = compacted.window
        tokens = {"tokens_before": compacted.tokens_before, "tokens_after": compacted.tokens_after}
        self._services.on_event("context.compacted", {"kind": compacted.kind, **tokens})

    def _compact(self, prompt: Prompt, estimated: int) -> "Compacted | NeedsSummary | StopCause | None":
        """Shorten a request of `estimated` tokens; messages are measured at its ratio of tokens to bytes."""
        from mendgraph.nodes.call_model.compaction import Budget, compact  # most runs fit their window

        state = self._state
        history = state["messages"]
        stand_ins = self._settings.stand_ins
        native = state["profile"].protocol is Protocol.NATIVE
        tokens_per_byte = estimated / max(prompt.size, 1)

        def tokens_of(message: AnyMessage) -> int:
            if message.id:
                size = self._settings.cache.messages([message], native=native)[0].size
            else:  # a candidate that the history does not have
                size = text_size(message.text)

            return ceil(size * tokens_per_byte)

        view_tokens = sum(map(tokens_of, shown(history, self._window, stand_ins)))
        budget = Budget(
            window_tokens=self._window_tokens,
            fixed_tokens=max(0, estimated - view_tokens),
            output_tokens=self._output_tokens,
        )
        changed = tuple(dict.fromkeys(change.path for change in state.get("changes") or ()))

        return compact(
            history,
            self._window,
            state.get("plan"),
            changed,
            tokens_of,
            budget,
            forced=self._is_too_long,
            stand_ins=stand_ins,
        )


def is_only_thought(reply: ModelReply) -> bool:
    """Return whether reasoning used up all tokens of a reply, so that it has no text."""
    if reply.finish_reason is not FinishReason.LENGTH or reply.calls:
        return False

    answer = without_thoughts(reply)
    return not answer.text.strip() and bool(answer.reasoning or reply.reasoning_tokens)


def thought_too_long(allowed: int, reserved: int) -> StopCause:
    """Return the stop cause if reasoning used up the tokens that the chat model allowed or the call reserved."""
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
