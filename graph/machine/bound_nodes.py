"""The nodes of one machine, bound to its tools and its models.

Each method is one node: it takes the node's slice of the state with the turn's stored context, and calls its package.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.runnables import Runnable
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import Runtime, get_runtime

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.machine.guard_runtime import judge_calls, needs_no_disk, with_known_files
from mendgraph.graph.machine.machine_services import MachineModels, MachineTools
from mendgraph.graph.machine.new_turn import ContextPolicy, start_turn, trace_event
from mendgraph.graph.machine.reply_reader import (
    Counts,
    count_heal,
    count_loop_check,
    count_parse,
    count_tools,
    foreign_formats,
    reply_reader,
)
from mendgraph.graph.machine.small_models import fallback_form, is_in_blocks
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_step import OpenChildren, restore_files, run_tools
from mendgraph.graph.machine.turn_services import CallPlan, Turns, TurnServices, book_thread
from mendgraph.graph.machine.workspace import WorkspaceRecords, marks_of
from mendgraph.graph.telemetry.spans import count_events
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, calls_in_loop
from mendgraph.nodes.execute_tools.files.workspace import FileContent
from mendgraph.nodes.execute_tools.policy.alerts import Alert, Vitals, observe_cost, observe_reply, observe_tool
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.guard.scope import unnamed
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.language.history import person_requests
from mendgraph.nodes.language.media import without_media
from mendgraph.nodes.loop_check.node import check
from mendgraph.nodes.loop_check.repetition import signature_of
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.written_calls import is_shortened
from mendgraph.nodes.records import (
    CHANGING,
    LoopRecord,
    Mark,
    ModelReply,
    OutcomeKind,
    StopCause,
    StopReason,
    ToolCall,
    ToolSpec,
    net_changes,
)
from mendgraph.nodes.stop.node import finish, give_up, is_failed_work

if TYPE_CHECKING:
    from mendgraph.graph.langchain.hooks import Hooks

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
QUICKLY_READ: Final = 8_192
"""Characters of a reply up to which the event loop parses it itself: ordinary ones take 2 ms, the worst 100 ms."""
_REPORTED_REPLIES: Final = 2
"""Replies in one foreign call format that a run reports; the model will keep using it."""
_TEXTS_OF_HEALING = ("corrections", "healing_attempts", "stop")


class BoundNodes:
    """All nodes of one machine. Holds no state of a run."""

    def __init__(
        self,
        model: Runnable[Any, Any] | str | None,
        tools: MachineTools,
        stop: StopRequest | None = None,
        context: AgentContext | None = None,
        *,
        served: bool = False,
        middleware: Sequence[Any] = (),
        name: str | None = None,
        overrides: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Bind the nodes; nothing is opened or connected yet.

        `stop` requests an early end of a run. `context` is for runs that are given none. With `served` all runs are
        those of a server's clients. `middleware` has the hooks around steps, `name` is the agent's in its last message.
        `overrides` are fields of the context of every turn.
        """
        self._name = name
        self._stop = stop
        self._contexts = ContextPolicy(context, overrides, served=served)
        self._tools = tools
        self._specs = tools.specs
        self._literals = tools.literals
        self._models = MachineModels(model, tools.redactor, stop)
        self._turns = Turns(tools, self._models)
        self.hooks = _load_hooks(middleware, tools.redactor) if middleware else None
        self.compile: Callable[[BoundNodes], Any] | None = None
        """Compiles the machine of the children of a run from their nodes."""
        self.servers_outlive_turns = False
        """Whether a session closes these nodes. Without one a thread's MCP servers end with its turn."""

    @property
    def records(self) -> WorkspaceRecords:
        """The records of the workspaces that this machine works in."""
        return self._tools.records

    def close(self) -> None:
        """Close the connections that the nodes opened for sync calls, and end the MCP servers."""
        self._models.close()
        self._tools.end_servers()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls, and end the MCP servers."""
        try:
            await self._models.aclose()
        finally:
            await asyncio.to_thread(self._tools.end_servers)

    def mark_turn(self, context: AgentContext, run_id: str, *, first: bool) -> None:
        """Mark that a turn begins whose request has an id of the store's: see `REQUEST_ID`."""
        self._models.book.begin(book_thread(context, run_id), first=first)

    def scrub(self, text: str) -> str:
        """The text without secrets."""
        return self._tools.redactor().text(text)

    def read_file(self, context: AgentContext, path: str) -> bytes | None:
        """The bytes of a file of the run's workspace, None where a tool may not have them."""
        content = self._turns.services(context).tools.workspace().read_file(path)
        return content.data if isinstance(content, FileContent) else None

    def begin_turn(self, state: AgentState, runtime: Runtime[AgentContext]) -> Update:
        """Store the turn's context, start its counters, and check what can be checked before anything is spent."""
        return start_turn(state, runtime, self._contexts, self._turns, self.scrub)

    def call_model(self, state: AgentState) -> Update:
        """Make the next model call."""
        turn = self._turns.services(state["context"])
        plan = turn.plan_calls(state["profile"], state.get("run_id", ""))
        if self.hooks:
            return self._after_model_call(
                state, self.hooks.run(self._call_model_with_hooks(state, turn, plan, self.hooks, in_loop=False))
            )

        return self._after_model_call(state, call_model(state, plan.settings, plan.tools, self._services(state, plan)))

    async def acall_model(self, state: AgentState) -> Update:
        """Make the next model call without blocking the event loop."""
        turn = self._turns.services(state["context"])
        profile = state["profile"]
        plan = turn.planned(profile)
        if plan is None:
            plan = await asyncio.to_thread(turn.plan_calls, profile, state.get("run_id", ""))

        if self.hooks:
            return self._after_model_call(
                state, await self._call_model_with_hooks(state, turn, plan, self.hooks, in_loop=True)
            )

        return self._after_model_call(
            state, await acall_model(state, plan.settings, plan.tools, self._services(state, plan))
        )

    async def _call_model_with_hooks(
        self, state: AgentState, turn: TurnServices, plan: CallPlan, hooks: "Hooks", *, in_loop: bool
    ) -> Update:
        async def send(part: Any, system: str, tools: Sequence[ToolSpec], other: Runnable[Any, Any] | None) -> Update:
            settings = replace(plan.settings, system=system)
            services = self._services(state, plan)
            if other is not None:
                settings, services = turn.model.of_other(other, settings, services)

            update: Update = {}
            while not update or update.get("pending_call"):  # a hook's handler gives a reply, or fails
                visit: Any = {**part, **update}
                if in_loop:
                    update |= await acall_model(visit, settings, tools, services)
                else:
                    update |= await await_call(partial(call_model, visit, settings, tools, services))

            return update

        model = self._models.run_chat_model or turn.model.display_name()
        return await hooks.call_model(state, model, plan.tools, send, in_loop=in_loop)

    def parse(self, state: AgentState) -> Update:
        """Read the reply."""
        run_id = state["run_id"]
        turn = self._turns.services(state["context"])
        plan = turn.planned(state["profile"])
        reader = reply_reader(turn.tools, state, plan and plan.tools)

        state_as_written = self._with_literals(state, "reply")
        update = with_known_files(turn.tools, parse(state_as_written, reader))
        formats = foreign_formats(update["items"])
        reply = state_as_written.get("reply") or ModelReply()
        is_cut = "reply" in update and not formats and is_shortened(reply, update["reply"])
        update = self._literals.mask(run_id, update, "reply", "items", "errors", "answer")
        if reply.preloaded:
            return update

        if is_cut:
            trace_event(run_id, "reply.cut", {})

        counts = count_parse(partial(self._log, state), state, update)
        update = _count_repairs(state, update, {**counts, "cut": int(is_cut)}, formats)
        is_valid = not update["errors"]
        return self._observe(state, update, lambda vitals: observe_reply(vitals, is_valid))

    def parses_quickly(self, state: AgentState) -> bool:
        """Whether `parse` takes a moment and reads no disk: for a short reply without blocks that heals nothing."""
        profile = state["profile"]
        if state["context"].mode == "ask" or is_in_blocks(profile):
            return False
        if state.get("corrections"):  # their end is written to the log
            return False
        if self._turns.services(state["context"]).planned(profile) is None:
            return False

        reply = state.get("reply") or ModelReply()
        size = len(reply.text) + len(reply.reasoning)
        for call in reply.calls:
            size += len(call.arguments)

        return size <= QUICKLY_READ

    def heal(self, state: AgentState) -> Update:
        """Repair the reply or ask for it again."""
        run_id = state["run_id"]
        context = state["context"]
        state = self._with_literals(state, "reply")
        profile = state["profile"]
        may_switch = context.protocol == "auto"
        update = heal(state, context.healing(profile), brief=is_in_blocks(profile), may_switch=may_switch)
        if "profile" in update:
            trace_event(run_id, "protocol.switched", {"protocol": update["profile"].protocol.value})

        if "reading" in update:
            for name in foreign_formats(state["items"]):
                if state["spending"].mending.in_format.get(name, 0) <= _REPORTED_REPLIES:
                    trace_event(run_id, "reply.rescued", {"format": name})

        counts = count_heal(partial(self._log, state), state, update)
        return _count_repairs(state, self._literals.mask(run_id, update, *_TEXTS_OF_HEALING), counts)

    def guard(self, state: AgentState) -> Update:
        """Judge the calls."""
        turn = self._turns.services(state["context"])
        judgement = judge_calls(turn.tools, self._with_literals(state, "items"))
        update = self._literals.mask(state["run_id"], judgement, "items", "verdicts", "results")

        if update["results"]:
            log = self._log(state)
            items = update.get("items", state["items"])
            for item, verdict, result in zip(items, update["verdicts"], update["results"], strict=True):
                log.call(state.get("step", 0), item, verdict, result)

        return update

    def guards_quickly(self, state: AgentState) -> bool:
        """Whether `guard` asks neither the disk nor a person."""
        return needs_no_disk(self._turns.services(state["context"]).tools, state)

    def execute_tools(self, state: AgentState) -> Update:
        """Run the allowed calls, and charge the time to the turn; once a stop is asked for, no further call begins."""
        with self._step_scope() as scope:
            children = self._open_children(state)
            tools = self._turns.services(state["context"]).tools
            update = run_tools(tools, state, get_stream_writer(), scope, _task_id(), open_children=children)

        return self._after_tools(state, update)

    async def aexecute_tools(self, state: AgentState) -> Update:
        """Do so in an event loop, which runs the async tools; a cancelled run changes nothing any more."""
        with self._step_scope() as scope, calls_in_loop() as in_loop:
            children = self._open_children(state, in_loop)
            tools = self._turns.services(state["context"]).tools
            run = partial(run_tools, tools, state, get_stream_writer(), scope, _task_id(), in_loop, children)
            update = await await_call(run, scope=scope)

        return self._after_tools(state, update)

    def loop_check(self, state: AgentState) -> Update:
        """Judge the step and settle it into the history."""
        run_id = state["run_id"]
        context = state["context"]
        spending = state["spending"]

        def signature(call: ToolCall, spec: ToolSpec) -> str:
            return signature_of(self._literals.restore(run_id, call), spec, context.workspace)

        update = check(
            state,
            context.loop(),
            signature,
            self._specs,
            context.workspace,
            in_blocks=is_in_blocks(state["profile"]),
            fallback_form=fallback_form(state["profile"]),
        )
        self._literals.forget(run_id)

        # A result may hold an image that the model does not take.
        model = self._turns.services(context).model
        update["messages"] = [without_media(message, model.refused_media(message)) for message in update["messages"]]
        update["items"] = []

        if not (state.get("reply") or ModelReply()).preloaded:
            spending = spending.model_copy(update={"steps": spending.steps + 1})

        update["spending"] = spending
        return _count_repairs(state, update, count_loop_check(partial(self._log, state), state, update))

    def finish(self, state: AgentState) -> Update:
        """End with the answer."""
        context = state["context"]
        checking = context.evidence or bool(context.checks)
        changing = any(spec.effect in CHANGING for spec in self._specs.values())
        usage = ledger.usage_report(state["spending"])
        update = finish(self._with_marks(state), usage, checking=checking, changing=changing)
        if context.response_format is not None:
            update["structured_response"] = update["outcome"].value

        return self._end_turn(state, update)

    def budget_stop(self, state: AgentState) -> Update:
        """End on a limit: the one that a node named, or the one that the router saw."""
        cause = state.get("stop") or ledger.exhausted_limit(state["spending"], state["context"].limits())
        return self._end_without_answer(state, OutcomeKind.BUDGET_STOP, cause)

    def system_error(self, state: AgentState) -> Update:
        """End on a failure. The files that failed work has changed are restored, unless the context keeps them."""
        cause = state.get("stop")
        restores = is_failed_work(state) and "first_step" in state and not state["context"].keep_failed_edits
        if cause is None or not restores:
            return self._end_without_answer(state, OutcomeKind.SYSTEM_ERROR, cause)

        changes = restore_files(self._turns.services(state["context"]).tools, state, get_stream_writer())
        cause = cause.model_copy(update={"message": f"{cause.message} {changes.sentence}"})
        update = self._end_without_answer(state, OutcomeKind.SYSTEM_ERROR, cause, changes.restored)
        return {**update, "changes": [*changes.changes]}

    def _end_without_answer(
        self, state: AgentState, kind: OutcomeKind, cause: StopCause | None, restored: Sequence[str] = ()
    ) -> Update:
        cause = cause or StopCause(reason=StopReason.CANCELLED, message="The run was stopped.")
        usage = ledger.usage_report(state["spending"])
        return self._end_turn(state, give_up(self._with_marks(state), kind, cause, usage, restored))

    def _with_marks(self, state: AgentState) -> AgentState:
        """The state with the marks of the files that the turn has changed."""
        changes = net_changes(state.get("changes") or ())
        if not changes:
            return state

        marks = [*marks_of(self._turns.services(state["context"]).tools.workspace(), changes)]
        for path in unnamed(person_requests(state.get("messages") or []), changes):
            _, hash_after = changes[path]
            if hash_after:
                marks.append(Mark(kind="not_named", path=path))

        loop = state.get("loop") or LoopRecord()
        return {**state, "loop": loop.model_copy(update={"marks": tuple(marks)})}

    def _log(self, state: AgentState) -> RunLog:
        """The audit log of the run; one that writes nothing where the thread has no context."""
        context = state.get("context") or AgentContext(audit=False)
        return self._turns.services(context).tools.log(state.get("run_id", ""))

    def _end_turn(self, state: AgentState, update: Update) -> Update:
        """Store the spending and how the turn ended, and release what the turn used."""
        self._models.book.flush()
        self._log(state).ended(state.get("step", 0), update["outcome"])
        self._literals.forget(state.get("run_id", ""))
        if not (self.servers_outlive_turns or self._contexts.of_child):
            self._tools.end_servers(state.get("run_id", ""))
        if self._name:  # as create_agent does: a supervisor tells its agents apart by it
            update["messages"] = [message.model_copy(update={"name": self._name}) for message in update["messages"]]

        return update

    def _open_children(self, state: AgentState, in_loop: Callable[[Any], Any] | None = None) -> OpenChildren | None:
        """What runs the children of a step, where the run may have some."""
        if not state["context"].delegation or self.compile is None:
            return None

        from mendgraph.graph.machine.children import Children, ParentRun

        config = get_config()
        write = get_stream_writer()
        context = cast("object", get_runtime(AgentContext).context)
        owner = context.owner if isinstance(context, Admission) else None

        def open_children(counts: dict[str, int], records: WorkspaceRecords) -> Children:
            compile_machine = partial(self._compile_for_children, records)
            return Children(ParentRun(state, config, compile_machine, write, owner, self._stop, in_loop), counts)

        return open_children

    def _compile_for_children(self, records: WorkspaceRecords, stop: StopRequest) -> Any:
        return self.compile and self.compile(self.for_children(records, stop))

    def for_children(self, records: WorkspaceRecords, stop: StopRequest) -> "BoundNodes":
        """These nodes for the children of a step, which `stop` ends: they share tools, connections and circuits."""
        tools = copy(self._tools)
        tools.records = records
        models = copy(self._models)
        models.stop = stop

        nodes = copy(self)
        nodes.bind(tools, models)
        nodes._stop = stop  # noqa: SLF001 - a copy of these nodes
        nodes._contexts = self._contexts.for_children()  # noqa: SLF001
        return nodes

    def bind(self, tools: MachineTools, models: MachineModels) -> None:
        """Use these tools and models from here on."""
        self._tools = tools
        self._models = models
        self._turns = Turns(tools, models)

    @contextmanager
    def _step_scope(self) -> Iterator[CancellationScope]:
        """The cancellation scope of one step, which a stop request closes."""
        scope = CancellationScope()
        stop = self._stop

        def close() -> None:
            if stop and stop.in_step:
                scope.close()

        with stop.told(close) if stop else nullcontext():
            yield scope

    def _services(self, state: AgentState, plan: CallPlan) -> CallServices:
        limits = plan.settings.budget.limits
        return self._models.services(limits, partial(trace_event, state["run_id"], step=state.get("step", 0) + 1))

    def _after_model_call(self, state: AgentState, update: Update) -> Update:
        trouble = self._models.book.trouble()
        if trouble:
            trace_event(state["run_id"], "spending.unbooked", {"reason": trouble.message})

        update = self._literals.mask(state["run_id"], update, "reply", "window")
        reply = update.get("reply")
        stop = update.get("stop")
        if stop is not None:  # its message may quote an exception of a user's model, or an address with a login
            return {**update, "stop": stop.model_copy(update={"message": self.scrub(stop.message)})}
        if reply is None or reply.preloaded:
            return update

        tokens = reply.input_tokens + reply.output_tokens
        return self._observe(state, update, lambda vitals: observe_cost(vitals, tokens, "tokens"))

    def _with_literals(self, state: AgentState, channel: str) -> AgentState:
        """The slice with a channel as the model wrote it; its state holds marks in place of secret literals."""
        if not state.get(channel):
            return state

        restored: Any = self._literals.restore(state["run_id"], state.get(channel))
        return cast("AgentState", {**state, channel: restored})

    def _observe(
        self, state: AgentState, update: Update, observe: Callable[[Vitals], tuple[Vitals, Alert | None]]
    ) -> Update:
        """The update with the run's vital signs after it; an alert is streamed and logged."""
        vitals, alert = observe(update.get("vitals") or state.get("vitals") or Vitals())
        if alert is not None:
            get_stream_writer()({"type": "alert", **asdict(alert)})
            self._log(state).alert(state.get("step", 0), asdict(alert))

        return {**update, "vitals": vitals}

    def _after_tools(self, state: AgentState, update: Update) -> Update:
        update = _count_repairs(state, update, count_tools(update, self._specs))
        for result in update["results"]:
            update = self._observe(state, update, partial(observe_tool, ok=result.result.ok))

        return update


def _load_hooks(middleware: Sequence[Any], redactor: Callable[[], Redactor]) -> "Hooks":
    from mendgraph.graph.langchain.hooks import Hooks  # LangChain's agents take a second to import

    return Hooks(middleware, redactor)


def _count_repairs(state: AgentState, update: Update, counts: Counts, formats: Sequence[str] = ()) -> Update:
    """The update with its repairs counted in the spending; the run's observer counts them as well."""
    events = {name: count for name, count in counts.items() if count}
    if not events and not formats:
        return update

    count_events(events)
    spending = update.get("spending") or state["spending"]
    return {**update, "spending": ledger.count_mending(spending, formats, **events)}


def _task_id() -> str:
    """What LangGraph calls this execution of the node: the same when it is run again after a kill."""
    info = get_runtime().execution_info
    return "" if info is None else info.task_id
