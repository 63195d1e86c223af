"""The nodes of one machine, bound to its tools and its models.

Each method is one node: it takes the node's slice of the state with the turn's stored context, and calls its package.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.messages import AnyMessage
from langchain_core.runnables import Runnable
from langgraph.config import get_stream_writer
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.begin_turn import CallPlan, ContextPolicy, TurnServices, begin_turn, trace_event
from mendgraph.graph.machine.guard_runtime import judge_calls, known_files, settle_limit
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.models import MachineModels, TurnModel, book_thread
from mendgraph.graph.machine.options import MachineOptions
from mendgraph.graph.machine.reply_reader import foreign_formats, log_heal, log_loop_check, log_parse, reply_reader
from mendgraph.graph.machine.small_models import fallback_form, is_in_blocks, unread_files
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_step import InLoop, restore_files, run_tools, settle_jobs, with_changes_of_jobs
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.graph.machine.workspace import WorkspaceFiles, WorkspaceRecords, marks_of
from mendgraph.graph.telemetry.spans import count_events
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.policy.alerts import Alert, Vitals, observe_cost, observe_reply, observe_tool
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.guard.scope import unnamed
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.language.history import added_messages, person_requests
from mendgraph.nodes.language.media import without_media
from mendgraph.nodes.loop_check.node import check
from mendgraph.nodes.loop_check.repetition import signature_of
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.written_calls import is_shortened
from mendgraph.nodes.records import (
    CHANGING,
    Effect,
    LoopRecord,
    LoopVerdict,
    Mark,
    ModelReply,
    OutcomeKind,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolSpec,
    net_changes,
)
from mendgraph.nodes.stop.node import finish, give_up, is_failed_work
from mendgraph.nodes.workspace.files.deadline import CancellationScope, await_call, calls_in_loop
from mendgraph.nodes.workspace.files.workspace import FileContent

if TYPE_CHECKING:
    from mendgraph.graph.langchain.chat_models import ChatModels
    from mendgraph.graph.langchain.hooks import Hooks
    from mendgraph.graph.machine.children import Children

MOST_TURNS: Final = 1_000
"""Turns whose services are kept for their next steps."""

_REPORTED_REPLIES: Final = 2
"""Replies in one foreign call format that a run reports; the model will keep using it."""


class BoundNodes:
    """All nodes of one machine. Holds no state of a run."""

    def __init__(
        self,
        options: MachineOptions,
        tools: MachineTools,
        contexts: ContextPolicy,
        compile_children: "Callable[[BoundNodes], Any]",
        *,
        stop: StopRequest | None = None,
        added: "SimpleQueue[str] | None" = None,
    ) -> None:
        """Bind the nodes; nothing is opened or connected yet.

        `compile_children` compiles the machine of a run's children from their nodes. `stop` requests an early end of a
        run, `added` holds what a person adds while it works.
        """
        self._name = options["name"]
        self._stop = stop
        self._added = added
        self._contexts = contexts
        self._bind(tools, MachineModels(options["model"], tools.redactor, stop))
        self._compile_children = compile_children
        self.hooks = None
        if options["middleware"]:
            from mendgraph.graph.langchain.hooks import Hooks  # LangChain's agents take a second to import

            self.hooks = Hooks(options["middleware"], tools.redactor)

        self.servers_outlive_turns = False
        """Whether a session closes these nodes. Otherwise a thread's MCP servers end with its turn."""

    def _bind(self, tools: MachineTools, models: MachineModels) -> None:
        self._tools = tools
        self._models = models
        self._services: dict[int, TurnServices] = {}

    def for_children(self, records: WorkspaceRecords, stop: StopRequest) -> "BoundNodes":
        """Return these nodes for the children of a step, which `stop` ends; they share tools, connections, circuits."""
        tools = copy(self._tools)
        tools.records = records
        models = copy(self._models)
        models.stop = stop

        nodes = copy(self)
        nodes._bind(tools, models)  # noqa: SLF001 - a copy of these nodes
        nodes._stop = stop  # noqa: SLF001
        nodes._added = None  # noqa: SLF001
        nodes._contexts = self._contexts.for_children()  # noqa: SLF001
        return nodes

    @property
    def records(self) -> WorkspaceRecords:
        """The records of the workspaces that this machine works in."""
        return self._tools.records

    def end_jobs(self) -> None:
        """End the jobs of all runs."""
        self._tools.end_jobs()

    def close(self) -> None:
        """Close the connections of sync calls, and end the MCP servers."""
        self._models.close()
        self.end_jobs()
        self._tools.end_servers()

    async def aclose(self) -> None:
        """Close the connections of this event loop and of sync calls, and end the MCP servers."""
        try:
            await self._models.aclose()
        finally:
            await asyncio.to_thread(self.end_jobs)
            await asyncio.to_thread(self._tools.end_servers)

    def book_turn(self, context: AgentContext, run_id: str, *, first: bool) -> None:
        """Enter the beginning of a turn, whose request has an id of the store's, in the spending book."""
        self._models.book.begin(book_thread(context, run_id), first=first)

    def scrub(self, text: str) -> str:
        """Return the text without secrets."""
        return self._tools.redactor().text(text)

    def read_file(self, context: AgentContext, path: str) -> bytes | None:
        """Return the bytes of a file of the run's workspace; None if a tool may not have them."""
        content = self._services_of(context).tools.workspace().read_file(path)
        return content.data if isinstance(content, FileContent) else None

    # --- The nodes

    def begin_turn(self, state: AgentState, runtime: Runtime[AgentContext]) -> Update:
        """Begin a turn."""
        return begin_turn(state, runtime, self._contexts, self._services_of, self.scrub)

    def call_model(self, state: AgentState) -> Update:
        """Make the next model call."""
        with self._ending_jobs_of(state):
            turn = self._turn(state)
            plan = turn.call_plan(state)
            if self.hooks:
                update = self.hooks.run(self._call_model_with_hooks(self.hooks, state, turn, plan, in_loop=False))
            else:
                update = call_model(state, plan.settings, plan.tools, self._call_services(state, plan))

            return self._after_model_call(state, update)

    async def acall_model(self, state: AgentState) -> Update:
        """Make the next model call without blocking the event loop."""
        with self._ending_jobs_of(state):
            turn = self._turn(state)
            plan = await asyncio.to_thread(turn.call_plan, state)
            if self.hooks:
                update = await self._call_model_with_hooks(self.hooks, state, turn, plan, in_loop=True)
            else:
                update = await acall_model(state, plan.settings, plan.tools, self._call_services(state, plan))

            return self._after_model_call(state, update)

    async def _call_model_with_hooks(
        self, hooks: "Hooks", state: AgentState, turn: TurnServices, plan: CallPlan, *, in_loop: bool
    ) -> Update:
        async def send(part: Any, system: str, tools: Sequence[ToolSpec], other: Runnable[Any, Any] | None) -> Update:
            settings = replace(plan.settings, system=system)
            models = None
            if other is not None:
                models = self._models.connections(other)
                settings = turn.model.settings_of_other(models, settings)

            services = self._call_services(state, plan, models)
            update: Update = {}
            while not update or update.get("pending_call"):  # a hook's handler returns a reply, or fails
                visit: Any = {**part, **update}
                if in_loop:
                    update |= await acall_model(visit, settings, tools, services)
                else:
                    update |= await await_call(partial(call_model, visit, settings, tools, services))

            return update

        model = self._models.run_chat_model or turn.model.display_name()
        return await hooks.call_model(state, model, plan.tools, send, in_loop=in_loop)

    def _call_services(self, state: AgentState, plan: CallPlan, models: "ChatModels | None" = None) -> CallServices:
        tell = partial(trace_event, state["run_id"], step=state.get("step", 0) + 1)
        return self._models.services(plan.settings.budget.limits, tell, models)

    def _after_model_call(self, state: AgentState, update: Update) -> Update:
        trouble = self._models.book.trouble()
        if trouble:
            trace_event(state["run_id"], "spending.unbooked", {"reason": trouble.message})

        update = self._tools.literals.mask(state["run_id"], update, "reply", "window")
        reply = update.get("reply")
        stop = update.get("stop")
        if stop is not None:  # its message may quote an exception of a user's model, or an address with a login
            return {**update, "stop": stop.model_copy(update={"message": self.scrub(stop.message)})}
        if reply is None or reply.preloaded:
            return update

        tokens = reply.input_tokens + reply.output_tokens
        return self._observe(state, update, lambda vitals: observe_cost(vitals, tokens, "tokens"))

    def parse(self, state: AgentState) -> Update:
        """Read the reply."""
        run_id = state["run_id"]
        turn = self._turn(state)
        written = self._with_literals(state, "reply")
        update = parse(written, reply_reader(turn, state))
        if state["context"].mode == "ask" and update["items"]:
            update["known_files"] = known_files(turn.tools, update["items"])

        formats = foreign_formats(update["items"])
        reply = written.get("reply") or ModelReply()
        is_cut = "reply" in update and not formats and is_shortened(reply, update["reply"])
        update = self._tools.literals.mask(run_id, update, "reply", "items", "errors", "answer")
        if reply.preloaded:
            return update

        if is_cut:
            trace_event(run_id, "reply.cut", {})

        counts = {**log_parse(self._log(state), state, update), "cut": int(is_cut)}
        update = _count_repairs(state, update, counts, formats)
        is_valid = not update["errors"]
        return self._observe(state, update, lambda vitals: observe_reply(vitals, is_valid))

    def heal(self, state: AgentState) -> Update:
        """Repair the reply or ask for it again."""
        run_id = state["run_id"]
        context = state["context"]
        profile = state["profile"]
        state = self._with_literals(state, "reply")
        may_switch = context.protocol == "auto"
        update = heal(state, context.healing(profile), brief=is_in_blocks(profile), may_switch=may_switch)
        if "profile" in update:
            trace_event(run_id, "protocol.switched", {"protocol": update["profile"].protocol.value})

        if "reading" in update:
            for name in foreign_formats(state["items"]):
                if state["spending"].mending.in_format.get(name, 0) <= _REPORTED_REPLIES:
                    trace_event(run_id, "reply.rescued", {"format": name})

        counts = log_heal(self._log(state), state, update)
        update = self._tools.literals.mask(run_id, update, "corrections", "healing_attempts", "stop")
        return _count_repairs(state, update, counts)

    def guard(self, state: AgentState) -> Update:
        """Judge the calls, or let a person raise the limit that was reached."""
        cause = state.get("stop")
        if cause is not None:
            return settle_limit(self._turn(state).tools, state, cause)

        judgement = judge_calls(self._turn(state).tools, self._with_literals(state, "items"))
        update = self._tools.literals.mask(state["run_id"], judgement, "items", "verdicts", "results")

        if update["results"]:
            log = self._log(state)
            items = update.get("items", state["items"])
            for item, verdict, result in zip(items, update["verdicts"], update["results"], strict=True):
                log.call(state.get("step", 0), item, verdict, result)

        return update

    def execute_tools(self, state: AgentState) -> Update:
        """Run the allowed calls, and charge the time to the turn; after a stop request no further call begins."""
        with self._ending_jobs_of(state), self._step_cancellation() as cancellation:
            update = self._run_step(state, cancellation)

        return self._after_tools(state, update)

    async def aexecute_tools(self, state: AgentState) -> Update:
        """Run the allowed calls, async tools in this event loop; a cancelled run changes nothing more."""
        with (
            self._ending_jobs_of(state),
            self._step_cancellation() as cancellation,
            calls_in_loop() as in_loop,
        ):
            run_step = partial(self._run_step, state, cancellation, in_loop)
            update = await await_call(run_step, scope=cancellation)

        return self._after_tools(state, update)

    def _run_step(self, state: AgentState, cancellation: CancellationScope, in_loop: InLoop | None = None) -> Update:
        """Run the calls of a step, in this thread."""
        tools = self._turn(state).tools
        open_children = partial(self._open_children, state, in_loop)
        run_calls = partial(run_tools, tools, cancellation=cancellation, open_children=open_children, in_loop=in_loop)
        return with_changes_of_jobs(tools, run_calls, state)

    @contextmanager
    def _ending_jobs_of(self, state: AgentState) -> Iterator[None]:
        """End the jobs of the turn if the block fails or is cancelled: nothing else may follow in the turn."""
        try:
            yield
        except GraphBubbleUp:  # a child of the run waits for a person
            raise
        except BaseException:
            self._tools.end_jobs(state.get("run_id", ""))
            raise

    @contextmanager
    def _step_cancellation(self) -> Iterator[CancellationScope]:
        """Yield the cancellation of one step, which a stop request closes."""
        cancellation = CancellationScope()
        stop = self._stop

        def close() -> None:
            if stop and stop.in_step:
                cancellation.close()

        with stop.listening(close) if stop else nullcontext():
            yield cancellation

    def _open_children(
        self, state: AgentState, in_loop: InLoop | None, counts: dict[str, int], records: WorkspaceRecords
    ) -> "Children":
        """Return the children of a step; `counts` are the calls of this turn by tool."""
        from mendgraph.graph.machine.children import Children

        def compile_machine(stop: StopRequest) -> Any:
            return self._compile_children(self.for_children(records, stop))

        return Children(state, counts, self._turn(state).tools, compile_machine, self._stop, in_loop)

    def _after_tools(self, state: AgentState, update: Update) -> Update:
        truncated = 0
        for result in update["results"]:
            spec = self._tools.specs.get(result.tool)
            data = result.result.data
            if spec is not None and spec.effect is Effect.READ and (data.get("has_more") or data.get("clipped")):
                truncated += 1

            error = result.result.error
            if error is None or error.code is not ToolErrorCode.CANCELLED:  # a cancelled call did not run
                update = self._observe(state, update, partial(observe_tool, ok=error is None))

        return _count_repairs(state, update, {"truncated": truncated})

    def loop_check(self, state: AgentState) -> Update:
        """Judge the step and settle it into the history."""
        run_id = state["run_id"]
        context = state["context"]
        literals = self._tools.literals

        def signature(call: ToolCall, spec: ToolSpec) -> str:
            return signature_of(literals.restore(run_id, call), spec, context.workspace)

        update = check(
            state,
            context.loop(),
            signature,
            self._tools.specs,
            context.workspace,
            in_blocks=is_in_blocks(state["profile"]),
            fallback_form=fallback_form(state["profile"]),
        )
        literals.forget(run_id)

        # A result may hold an image that the model does not take.
        model = self._turn(state).model
        update["messages"] = [without_media(message, model.refused_media(message)) for message in update["messages"]]
        update["messages"] += self._added_messages(state, update["loop"].verdict)

        update["items"] = []
        spending = state["spending"]
        if not (state.get("reply") or ModelReply()).preloaded:
            spending = spending.model_copy(update={"steps": spending.steps + 1})

        update["spending"] = spending
        return _count_repairs(state, update, log_loop_check(self._log(state), state, update))

    def _added_messages(self, state: AgentState, verdict: LoopVerdict) -> list[AnyMessage]:
        """Return what a person has added during the step, if the model is called again and sees the history."""
        if self._added is None or verdict not in {LoopVerdict.FRESH, LoopVerdict.OVERRIDE}:
            return []
        if is_in_blocks(state["profile"]):  # such a request shows one request alone
            return []

        return added_messages([self.scrub(text) for text in take_added(self._added)])

    # --- The terminals

    def finish(self, state: AgentState) -> Update:
        """End with the answer."""
        state, changed = self._without_jobs(state)
        context = state["context"]
        checking = context.evidence or bool(context.checks)
        changing = any(spec.effect in CHANGING for spec in self._tools.specs.values())
        usage = ledger.usage_report(state["spending"])
        update = finish(self._with_marks(state), usage, checking=checking, changing=changing)
        if context.response_format is not None:
            update["structured_response"] = update["outcome"].value

        return self._end_turn(state, update | changed)

    def budget_stop(self, state: AgentState) -> Update:
        """End on a limit: the one that a node named, or the one that the router saw."""
        state, changed = self._without_jobs(state)
        cause = state.get("stop") or ledger.exhausted_limit(state["spending"], state["context"].limits())
        return self._end_without_answer(state, OutcomeKind.BUDGET_STOP, cause) | changed

    def system_error(self, state: AgentState) -> Update:
        """End on a failure. The files that failed work has changed are restored, unless the context keeps them."""
        state, changed = self._without_jobs(state)
        cause = state.get("stop")
        restores = is_failed_work(state) and "first_step" in state and not state["context"].keep_failed_edits
        if cause is None or not restores:
            return self._end_without_answer(state, OutcomeKind.SYSTEM_ERROR, cause) | changed

        restored = restore_files(self._turn(state).tools, state)
        cause = cause.model_copy(update={"message": f"{cause.message} {restored.sentence}"})
        update = self._end_without_answer(state, OutcomeKind.SYSTEM_ERROR, cause, restored.paths)
        return {**update, "changes": [*changed.get("changes", []), *restored.changes]}

    def _end_without_answer(
        self, state: AgentState, kind: OutcomeKind, cause: StopCause | None, restored: Sequence[str] = ()
    ) -> Update:
        cause = cause or StopCause(reason=StopReason.CANCELLED, message="The run was stopped.")
        usage = ledger.usage_report(state["spending"])
        return self._end_turn(state, give_up(self._with_marks(state), kind, cause, usage, restored))

    def _without_jobs(self, state: AgentState) -> tuple[AgentState, Update]:
        """End the jobs of the turn; returns the state and the update with what they have changed."""
        run_id = state.get("run_id", "")
        if self._tools.jobs(run_id) is None:
            return state, {}

        changed = settle_jobs(self._turn(state).tools, state, end=True)
        self._tools.end_jobs(run_id)
        if not changed:
            return state, {}

        return {**state, "changes": [*(state.get("changes") or ()), *changed]}, {"changes": changed}

    def _with_marks(self, state: AgentState) -> AgentState:
        """Return the state with marks of changed files, and of those that a model in block form was not shown."""
        changes = net_changes(state.get("changes") or ())
        context = state.get("context")  # missing if the first request is refused
        profile = state.get("profile")
        is_shown_files = context is not None and context.read_ahead and profile is not None and is_in_blocks(profile)
        if not changes and not is_shown_files:
            return state

        workspace = self._turn(state).tools.workspace()
        marks = [*marks_of(workspace, changes)]
        if is_shown_files:
            marks += unread_files(state.get("messages") or [], WorkspaceFiles(workspace))

        for path in unnamed(person_requests(state.get("messages") or []), changes):
            _, hash_after = changes[path]
            if hash_after:
                marks.append(Mark(kind="not_named", path=path))

        loop = state.get("loop") or LoopRecord()
        return {**state, "loop": loop.model_copy(update={"marks": tuple(marks)})}

    def _end_turn(self, state: AgentState, update: Update) -> Update:
        """Store the spending and how the turn ended, and release what the turn used."""
        run_id = state.get("run_id", "")
        self._models.book.flush()
        self._log(state).ended(state.get("step", 0), update["outcome"])
        self._tools.literals.forget(run_id)
        if not (self.servers_outlive_turns or self._contexts.of_child):
            self._tools.end_servers(run_id)
        if self._name:  # as create_agent does: a supervisor distinguishes its agents by it
            update["messages"] = [message.model_copy(update={"name": self._name}) for message in update["messages"]]

        return update

    # --- What the nodes share

    def _turn(self, state: AgentState) -> TurnServices:
        return self._services_of(state["context"])

    def _services_of(self, context: AgentContext) -> TurnServices:
        """Return the services of the turn with this context: each turn has a context object of its own."""
        services = self._services.get(id(context))
        if services is not None and services.context is context:
            return services

        while len(self._services) >= MOST_TURNS:
            with suppress(KeyError, RuntimeError):  # another thread may have removed it
                del self._services[next(iter(self._services))]

        services = TurnServices(context, TurnTools(self._tools, context), TurnModel(self._models, context))
        self._services[id(context)] = services
        return services

    def _log(self, state: AgentState) -> RunLog:
        """Return the audit log of the run; one that writes nothing if the thread has no context."""
        context = state.get("context") or AgentContext(audit=False)
        return self._services_of(context).tools.log(state.get("run_id", ""))

    def _with_literals(self, state: AgentState, channel: str) -> AgentState:
        """Return the state with a channel as the model wrote it, instead of with marks for its literals."""
        value: Any = state.get(channel)
        if not value:
            return state
        return cast("AgentState", {**state, channel: self._tools.literals.restore(state["run_id"], value)})

    def _observe(
        self, state: AgentState, update: Update, observe: Callable[[Vitals], tuple[Vitals, Alert | None]]
    ) -> Update:
        """Return the update with the run's new vital signs; an alert is streamed and logged."""
        vitals, alert = observe(update.get("vitals") or state.get("vitals") or Vitals())
        if alert is not None:
            get_stream_writer()({"type": "alert", **asdict(alert)})
            self._log(state).alert(state.get("step", 0), asdict(alert))

        return {**update, "vitals": vitals}


def take_added(added: "SimpleQueue[str]") -> list[str]:
    """Return and remove what a person has added."""
    return [added.get_nowait() for _ in range(added.qsize())]


def _count_repairs(state: AgentState, update: Update, counts: Mapping[str, int], formats: Sequence[str] = ()) -> Update:
    """Return the update with its repairs counted in the spending, and count them for telemetry."""
    events = {name: count for name, count in counts.items() if count}
    if not events and not formats:
        return update

    count_events(events)
    spending = update.get("spending") or state["spending"]
    return {**update, "spending": ledger.count_mending(spending, formats, **events)}
