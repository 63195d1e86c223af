"""The rooms, which tell the run at work what they decide: what no model call and no tool can tell by itself."""

from dataclasses import replace

from langchain_core.language_models import BaseChatModel
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime

from graph.calling import Prepared
from graph.context import AgentContext
from graph.gateway import Gateway
from graph.rooms import Rooms
from graph.slices import BeginTurnSlice, CallModelSlice, GuardSlice, HealSlice, LoopCheckSlice, StopSlice
from graph.state import Update
from graph.stop_request import StopRequest
from graph.telemetry import conventions as names
from graph.telemetry.active import CURRENT_RUN
from graph.telemetry.traced_model import telling
from nodes.call_model.driver import Hands
from nodes.guard.file_rules import FileGuardrailRule
from nodes.records import LoopVerdict, VerdictKind


class TracedRooms(Rooms):
    """Does what the rooms do. Where nobody listens, each node looks once and goes on."""

    def __init__(
        self,
        model: BaseChatModel | str | None,
        rules: tuple[FileGuardrailRule, ...],
        gateway: Gateway,
        stop: StopRequest | None = None,
        context: AgentContext | None = None,
        *,
        served: bool = False,
    ) -> None:
        """As the rooms."""
        super().__init__(model, rules, gateway, stop, context, served=served)
        self._own_model = isinstance(model, BaseChatModel)

    def begin_turn(self, state: BeginTurnSlice, runtime: Runtime[AgentContext]) -> Update:
        """Tell the run's id, which may have been made just now."""
        update = super().begin_turn(state, runtime)
        if run := CURRENT_RUN.get():
            run.set({names.CONVERSATION: self.scrub(update["run_id"]), "mendgraph.mode": update["context"].mode})
        return update

    def heal(self, state: HealSlice) -> Update:
        """Tell that the reply could not be used, and what of it was wrong."""
        update = super().heal(state)
        if run := CURRENT_RUN.get():
            attempts = update.get("healing_attempts") or ()
            errors = tuple(error.error_type.value for error in attempts[-1].errors) if attempts else ()
            name = "mendgraph.reply.rescued" if "reading" in update else "mendgraph.reply.healing"
            run.event(name, {"mendgraph.healing.attempt": len(attempts) or None, "mendgraph.healing.errors": errors})
        return update

    def guard(self, state: GuardSlice) -> Update:
        """Tell which calls were denied, by which rule; or that a person is asked."""
        run = CURRENT_RUN.get()
        try:
            update = super().guard(state)
        except GraphBubbleUp:
            if run:
                run.set({"mendgraph.waiting_for_approval": True})
                run.event("mendgraph.approval.asked", {})
            raise
        for item, verdict in zip(state["items"], update["verdicts"], strict=False) if run else ():
            if run and verdict.kind is VerdictKind.DENY:
                code = verdict.error.code.value if verdict.error else ""
                told = {names.TOOL_NAME: self.scrub(item.tool), names.TOOL_CALL: self.scrub(item.call_id)}
                run.event("mendgraph.call.denied", {**told, "mendgraph.rule": verdict.rule, names.ERROR_TYPE: code})
        return update

    def loop_check(self, state: LoopCheckSlice) -> Update:
        """Tell which action came too often."""
        update = super().loop_check(state)
        loop, run = update.get("loop"), CURRENT_RUN.get()
        if run and loop is not None and loop.verdict is LoopVerdict.OVERRIDE:
            for override in loop.overrides:
                told = {names.TOOL_NAME: self.scrub(override.tool), "mendgraph.loop.repeats": override.repeats}
                run.event("mendgraph.loop.override", told)
        return update

    def finish(self, state: StopSlice) -> Update:
        """Tell how the run ended."""
        return _told(super().finish(state))

    def budget_stop(self, state: StopSlice) -> Update:
        """Tell how the run ended."""
        return _told(super().budget_stop(state))

    def system_error(self, state: StopSlice) -> Update:
        """Tell how the run ended."""
        return _told(super().system_error(state))

    def _hands(self, state: CallModelSlice, ready: Prepared) -> Hands:
        hands, run = super()._hands(state, ready), CURRENT_RUN.get()
        if run is None:
            return hands
        return replace(hands, connect=telling(hands.connect, run, self.scrub, own_model=self._own_model))


def _told(update: Update) -> Update:
    if run := CURRENT_RUN.get():
        run.ended(update["outcome"])
    return update
