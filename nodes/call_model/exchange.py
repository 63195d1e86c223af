"""One visit of a model call: which request it makes, and what follows from its outcome.

`Fitting` finds the request: the reply itself, or a summary where the conversation outgrows the window. `PaidCall` pays
it. After an endpoint has called a request too long, the next visit shows less.
"""

from collections.abc import Sequence
from typing import Final

from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.fitting import Fitting
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.model import Update
from mendgraph.nodes.call_model.paid_call import PaidCall, stopped
from mendgraph.nodes.call_model.pending_call import FIRST_TRY, PendingCall
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.language.history import without_thoughts
from mendgraph.nodes.records import FinishReason, ModelReply, Protocol, StopCause, StopReason, ToolSpec

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
        """The update after a request. After an overflow the conversation is made smaller once."""
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
