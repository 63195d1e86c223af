"""The nodes of one machine, bound to its tools and its models.

Each method is one node: it takes the node's slice of the state with the turn's stored context, and calls its package.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from langchain_core.runnables import Runnable
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import (
    Admission,
    client_context,
    configurable_settings,
    given_context,
    run_id_of,
)
from mendgraph.graph.machine import repairs
from mendgraph.graph.machine.guard_runtime import is_judged_by_words, judge_calls, with_known_files
from mendgraph.graph.machine.memory import Memory, Note
from mendgraph.graph.machine.model_runtime import ModelRuntime, Prepared, book_thread
from mendgraph.graph.machine.reply_reader import reply_reader
from mendgraph.graph.machine.run_records import REQUEST_ID, is_resuming
from mendgraph.graph.machine.small_models import fallback_form, is_in_blocks, preload_of
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.graph.machine.workspace import WorkspaceFiles, WorkspaceRecords, marks_of
from mendgraph.graph.telemetry.spans import count_events
from mendgraph.nodes.begin_turn.node import begin_turn
from mendgraph.nodes.begin_turn.turn_start import Made, TurnResources
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, calls_in_loop
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.workspace import FileContent
from mendgraph.nodes.execute_tools.policy.alerts import Alert, Vitals, observe_cost, observe_reply, observe_tool
from mendgraph.nodes.execute_tools.run_call import Execution
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.guard.policy import edited_result, judge_workspace
from mendgraph.nodes.guard.scope import unnamed
from mendgraph.nodes.heal.node import heal
from mendgraph.nodes.language.history import asked_in, last_request, without_media
from mendgraph.nodes.language.project_notes import most_bytes
from mendgraph.nodes.loop_check.node import check
from mendgraph.nodes.loop_check.repetition import signature_of
from mendgraph.nodes.parse.answers import schema_problem
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.reading import ANSWER_TOOL
from mendgraph.nodes.parse.written_calls import was_cut
from mendgraph.nodes.records import (
    CHANGING,
    CallError,
    JsonMap,
    LoopRecord,
    Mark,
    ModelReply,
    OutcomeKind,
    Protocol,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolSpec,
    net_changes,
)
from mendgraph.nodes.stop.node import finish, give_up, is_failed_work

if TYPE_CHECKING:
    from mendgraph.graph.langchain.hooks import Hooks
    from mendgraph.graph.machine.children import Children

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
QUICKLY_READ: Final = 8_192
"""Characters of a reply that the event loop itself reads: the worst of them take 100 ms, ordinary ones one or two."""
_TOLD_FORMATS: Final = 2
"""Replies in a format of its own of which a run tells; the model will go on to write so."""
_SAID_OF_REPLIES = ("corrections", "healing_attempts", "stop")


class BoundNodes:
    """All nodes of one machine. Holds no state of a run."""

    def __init__(
        self,
        model: Runnable[Any, Any] | str | None,
        tools: ToolRuntime,
        stop: StopRequest | None = None,
        context: AgentContext | None = None,
        *,
        served: bool = False,
        middleware: Sequence[Any] = (),
        name: str | None = None,
        own: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Bind the nodes; nothing is opened or connected yet.

        `stop` is how somebody lets a run end early, `context` that of runs that are given none. With `served` all runs
        are those of a server's clients, whichever server it is. `middleware` has the hooks around their steps. `name`
        is the agent's in its last message. `own` are fields of every context, whoever gives it.
        """
        self._name = name
        self._own = own
        self._stop = stop
        self._bound = context
        self._served = served
        self._tools = tools
        self._specs = tools.specs
        self._models = ModelRuntime(model, tools, stop)
        self.hooks = _hooks_of(middleware, tools.redactor) if middleware else None
        self.compile: Callable[[BoundNodes], Any] | None = None
        """Makes a machine of nodes like these: that of the children of a run."""
        self._of_child = False
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
        """A person's words without secrets."""
        return self._tools.redactor().text(text)

    def read_file(self, context: AgentContext, path: str) -> bytes | None:
        """The bytes of a file of the run's workspace, None where a tool may not have them."""
        content = self._tools.workspace(context).read_file(path)
        return content.data if isinstance(content, FileContent) else None

    def begin_turn(self, state: AgentState, runtime: Runtime[AgentContext]) -> Update:
        """Store the turn's context, start its counters, and check what can be checked before anything is spent."""
        context_source = given_context(self._asked(runtime), self._bound, state.get("context"))
        if isinstance(context_source, StopCause):
            return self._refused(state, context_source)
        context = context_source if isinstance(context_source, AgentContext) else AgentContext()
        prompt = state.get("system_prompt") if context is state.get("context") else None
        context = context.model_copy(update=self._own)
        words = [context.system_prompt] if context.system_prompt or not prompt else prompt
        root = check_workspace(context.workspace)
        problem = root.message if isinstance(root, ToolError) else self._context_problem(context, root)
        problem = problem if isinstance(context_source, AgentContext) else context_source
        folder = {} if isinstance(root, ToolError) else {"workspace": root}
        context = context.model_copy(update={"system_prompt": "", **folder, **self._of_strangers(runtime)})
        run_id = run_id_of(runtime) or state.get("run_id") or uuid4().hex
        memory = Memory(runtime.store, context.workspace) if context.memory and not problem else None

        if isinstance(remembered := memory.notes() if memory else [], ToolError):
            _trace_event(run_id, "memory.unavailable", {"reason": remembered.message})
            context = context.model_copy(update={"memory": False})
            remembered = []

        messages = state.get("messages") or []
        ended = state.get("outcome")
        if ended is not None and ended.changed_files and is_resuming(last_request(messages)):
            context = context.model_copy(update={"require_changes": False})  # there may be nothing left to change
        marked = bool(messages) and str(messages[-1].id).startswith(REQUEST_ID)
        spent = self._models.spent_before(state.get("spending"), context, run_id, marked=marked)
        update = begin_turn(state, self._turn_resources(state, context, problem or None, run_id, remembered))
        window = state.get("window") or WHOLE
        if window.tokens is not None:  # the model may be another one now
            update["window"] = window.model_copy(update={"tokens": None})
        for name, reason in ({} if update["stop"] else self._tools.lacks(context, run_id)).items():
            _trace_event(run_id, name, {"reason": reason})
        update |= {"context": context, "system_prompt": words, "run_id": run_id, "tool_counts": {}}
        update["spending"] = ledger.begin_turn(spent)
        return {**update, "first_step": state.get("step", 0) + 1}

    def _refused(self, state: AgentState, cause: StopCause) -> Update:
        """End the turn where it begins: nothing was looked at, and nothing is touched. Its context is the last one's.

        A thread that has none gets none: a client of a server could go on with defaults, past what its operator allows.
        """
        profile = self._models.profile(AgentContext())
        update = begin_turn(state, TurnResources(profile, cause.message, Overwrite, self.scrub, None))
        spending = ledger.begin_turn(state.get("spending") or ledger.Spending())
        run_id = state.get("run_id") or uuid4().hex
        update |= {"stop": cause, "run_id": run_id, "spending": spending, "tool_counts": {}}
        update |= {"context": state["context"]} if state.get("context") else {}
        return update

    def _turn_resources(
        self, state: AgentState, context: AgentContext, problem: str | None, run_id: str, noted: Sequence[Note]
    ) -> TurnResources:
        profile = self._models.profile(context)
        tools = self._tools.usable(context)
        before = state.get("profile")
        if context.protocol == "auto" and before == profile.model_copy(update={"protocol": Protocol.TEXT}):
            profile = before  # the thread has gone over to the text protocol

        def calls_made(items: list[ToolCall | CallError]) -> Made:
            runs = self._tools.calls_made(context, Execution(run_id, "", state.get("step", 0)), items)
            verdicts = state.get("verdicts") or []
            results = {at: edited_result(items[at], verdicts[at], run.as_record()) for at, run in runs.items()}
            return results, {path: sha256 for run in runs.values() for path, sha256 in run.output.files_read.items()}

        reads_ahead = context.read_ahead and "read_file" in tools
        checked = profile.small and "run_checks" in tools and self._tools.can_check(context)
        files = None if problem else WorkspaceFiles(self._tools.workspace(context))
        return TurnResources(
            profile,
            problem,
            Overwrite,
            self.scrub,
            files,
            root=context.workspace,
            model_name=partial(self._models.model_name, context),
            refused_media=partial(self._models.refused_media, context),
            calls_made=calls_made,
            specs=self._specs,
            preload=preload_of(profile, checked=checked) if reads_ahead else None,
            most_notes=(
                most_bytes(profile, self._models.window_tokens(context, profile)) if context.project_notes else 0
            ),
            skills=chain(files.skills() if files and "read_file" in tools else (), self._tools.user_skills(context)),
            remembered=() if profile.small else [note.text for note in noted],
            tell=partial(_trace_event, run_id),
        )

    def call_model(self, state: AgentState) -> Update:
        """Make the next model call."""
        ready = self._models.prepared(state) or self._models.prepare(state)
        if self.hooks:
            return self._costed(state, self.hooks.run(self._hooked(state, ready, self.hooks, in_loop=False)))
        return self._costed(state, call_model(state, ready.settings, ready.tools, self._services(state, ready)))

    async def acall_model(self, state: AgentState) -> Update:
        """Make the next model call without blocking the event loop."""
        ready = self._models.prepared(state)
        if ready is None:
            ready = await asyncio.to_thread(self._models.prepare, state)
        if self.hooks:
            return self._costed(state, await self._hooked(state, ready, self.hooks, in_loop=True))
        return self._costed(state, await acall_model(state, ready.settings, ready.tools, self._services(state, ready)))

    async def _hooked(self, state: AgentState, ready: Prepared, hooks: "Hooks", *, in_loop: bool) -> Update:
        async def send(part: Any, system: str, tools: Sequence[ToolSpec], other: Runnable[Any, Any] | None) -> Update:
            settings = replace(ready.settings, system=system)
            services = self._services(state, ready)
            if other is not None:
                settings, services = self._models.of_other(other, ready.context, settings, services)
            update: Update = {}
            while not update or update.get("pending_call"):  # a hook's handler gives a reply, or fails
                visited: Any = {**part, **update}
                if in_loop:
                    update |= await acall_model(visited, settings, tools, services)
                else:
                    update |= await await_call(partial(call_model, visited, settings, tools, services))
            return update

        model = self._models.given or self._models.model_name(ready.context)
        return await hooks.call_model(state, model, ready.tools, send, in_loop=in_loop)

    def parse(self, state: AgentState) -> Update:
        """Read the reply."""
        reply = self._as_written(state, "reply")
        ready = self._models.prepared(state)
        reader = reply_reader(self._tools, state, ready and ready.tools)
        update = with_known_files(self._tools, state["context"], parse(reply, reader))
        formats = {item.format for item in update["items"] if isinstance(item, ToolCall) and item.format}
        cut = "reply" in update and not formats and was_cut(reply.get("reply") or ModelReply(), update["reply"])
        update = self._tools.words.hidden(state["run_id"], update, "reply", "items", "errors", "answer")
        if (state.get("reply") or ModelReply()).preloaded:
            return update
        if cut:
            _trace_event(state["run_id"], "reply.cut", {})
        counts = repairs.after_parse(partial(self._log, state), state, update)
        update = _counted(state, update, {**counts, "cut": int(cut)}, sorted(formats))
        valid = not update["errors"]
        return self._watched(state, update, lambda vitals: observe_reply(vitals, valid))

    def is_quickly_read(self, state: AgentState) -> bool:
        """Whether `parse` takes a moment and asks no disk: for a short reply without blocks that heals nothing."""
        reply = state.get("reply") or ModelReply()
        size = len(reply.text) + len(reply.reasoning) + sum(len(call.arguments) for call in reply.calls)
        plain = state["context"].mode != "ask" and not is_in_blocks(state["profile"])
        plain = plain and not state.get("corrections")  # whose end is written into the log
        return plain and size <= QUICKLY_READ and self._models.prepared(state) is not None

    def heal(self, state: AgentState) -> Update:
        """Repair the reply or ask for it again."""
        state = self._as_written(state, "reply")
        context = state["context"]
        brief = is_in_blocks(state["profile"])
        update = heal(state, context.healing(state["profile"]), brief=brief, may_switch=context.protocol == "auto")
        if "profile" in update:
            _trace_event(state["run_id"], "protocol.switched", {"protocol": update["profile"].protocol.value})
        formats = {item.format for item in state["items"] if isinstance(item, ToolCall) and item.format}
        for name in sorted(formats if "reading" in update else ()):
            if state["spending"].mending.in_format.get(name, 0) <= _TOLD_FORMATS:
                _trace_event(state["run_id"], "reply.rescued", {"format": name})
        counts = repairs.after_heal(partial(self._log, state), state, update)
        return _counted(state, self._tools.words.hidden(state["run_id"], update, *_SAID_OF_REPLIES), counts)

    def guard(self, state: AgentState) -> Update:
        """Judge the calls."""
        judged = judge_calls(self._tools, self._as_written(state, "items"))
        update = self._tools.words.hidden(state["run_id"], judged, "items", "verdicts", "results")
        if update["results"]:
            log = self._log(state)
            items = update.get("items", state["items"])
            for item, verdict, result in zip(items, update["verdicts"], update["results"], strict=True):
                log.call(state.get("step", 0), item, verdict, result)
        return update

    def is_quickly_judged(self, state: AgentState) -> bool:
        """Whether `guard` asks neither the disk nor a person."""
        return is_judged_by_words(self._tools, state)

    def execute_tools(self, state: AgentState) -> Update:
        """Run the allowed calls, and charge the time to the turn; once a stop is asked for, no further call begins."""
        with self._scope() as scope:
            wrap = partial(self.hooks.around, state, self._specs, None) if self.hooks else None
            children = self._children(state)
            update = self._tools.run(state, get_stream_writer(), scope, _task(), wrap=wrap, children=children)
        return self._tools_watched(state, update)

    async def aexecute_tools(self, state: AgentState) -> Update:
        """The same for an event loop, in which async tools run; a cancelled run changes nothing any more."""
        with self._scope() as scope, calls_in_loop() as in_loop:
            wrap = partial(self.hooks.around, state, self._specs, in_loop) if self.hooks else None
            children = self._children(state, in_loop)
            run = partial(self._tools.run, state, get_stream_writer(), scope, _task(), in_loop, wrap, children)
            update = await await_call(run, scope=scope)
        return self._tools_watched(state, update)

    def loop_check(self, state: AgentState) -> Update:
        """Judge the step and settle it into the history."""
        context = state["context"]
        words = partial(self._tools.words.written, state["run_id"])
        update = check(
            state,
            context.loop(),
            lambda call, spec: signature_of(words(call), spec, context.workspace),
            self._specs,
            context.workspace,
            in_blocks=is_in_blocks(state["profile"]),
            fallback_form=fallback_form(state["profile"]),
        )
        update["messages"] = [  # a result may hold an image that the model does not take
            without_media(message, self._models.refused_media(context, message)) for message in update["messages"]
        ]
        self._tools.words.forget(state["run_id"])
        paid = not (state.get("reply") or ModelReply()).preloaded
        spending = state["spending"]
        update |= {"items": [], "spending": spending.model_copy(update={"steps": spending.steps + paid})}
        return _counted(state, update, repairs.after_loop_check(partial(self._log, state), state, update))

    def finish(self, state: AgentState) -> Update:
        """End with the answer."""
        context = state["context"]
        checking = context.evidence or bool(context.checks)
        changing = any(spec.effect in CHANGING for spec in self._specs.values())
        usage = ledger.usage_report(state["spending"])
        update = finish(self._marked(state), usage, checking=checking, changing=changing)
        if context.response_format is not None:
            update["structured_response"] = update["outcome"].value
        return self._stopped(state, update)

    def budget_stop(self, state: AgentState) -> Update:
        """End on a limit: the one that a node named, or the one that the router saw."""
        cause = state.get("stop") or ledger.exhausted_limit(state["spending"], state["context"].limits())
        return self._given_up(state, OutcomeKind.BUDGET_STOP, cause)

    def system_error(self, state: AgentState) -> Update:
        """End on a failure that the machine could not mend. What failed work has changed is taken back."""
        cause = state.get("stop")
        if (
            cause is None
            or not is_failed_work(state)
            or state["context"].keep_failed_edits
            or "first_step" not in state
        ):
            return self._given_up(state, OutcomeKind.SYSTEM_ERROR, cause)
        changes = self._tools.take_back(state, get_stream_writer())
        cause = cause.model_copy(update={"message": f"{cause.message} {changes.sentence}"})
        update = self._given_up(state, OutcomeKind.SYSTEM_ERROR, cause, changes.restored)
        return {**update, "changes": [*changes.changes]}

    def _given_up(
        self, state: AgentState, kind: OutcomeKind, cause: StopCause | None, restored: Sequence[str] = ()
    ) -> Update:
        cause = cause or StopCause(reason=StopReason.CANCELLED, message="The run was stopped.")
        usage = ledger.usage_report(state["spending"])
        return self._stopped(state, give_up(self._marked(state), kind, cause, usage, restored))

    def _marked(self, state: AgentState) -> AgentState:
        """The state with what is to be said of single files."""
        if not (changes := net_changes(state.get("changes") or ())):
            return state
        marks = marks_of(self._tools.workspace(state["context"]), changes)
        others = unnamed(asked_in(state.get("messages") or []), changes)
        marks += tuple(Mark(kind="not_named", path=path) for path in others if changes[path][1])
        return {**state, "loop": (state.get("loop") or LoopRecord()).model_copy(update={"marks": marks})}

    def _log(self, state: AgentState) -> RunLog:
        """Where the run is written down; nowhere where the thread has no context."""
        context = state.get("context") or AgentContext(audit=False)
        return self._tools.log(context, state.get("run_id", ""))

    def _stopped(self, state: AgentState, update: Update) -> Update:
        """Write what is left of the spending and how the turn ended, and forget what the model wrote."""
        self._models.book.flush()
        self._log(state).ended(state.get("step", 0), update["outcome"])
        self._tools.words.forget(state.get("run_id", ""))
        if not (self.servers_outlive_turns or self._of_child):
            self._tools.end_servers(state.get("run_id", ""))
        if self._name:  # as create_agent does: others find by it who said what
            update["messages"] = [message.model_copy(update={"name": self._name}) for message in update["messages"]]
        return update

    async def end_turn(self, state: AgentState, update: Update, *, in_loop: bool) -> Update:
        """The update of a terminal after the hooks that come after a turn."""
        return await self.hooks.end_turn(state, update, in_loop=in_loop) if self.hooks else update

    def _asked(self, runtime: Runtime[AgentContext]) -> object:
        """The context that the run was given, or what a client may have of it where it comes through a server.

        LangGraph's servers say who they are in each run's configuration, where no client can take it away.
        """
        context_value: object = runtime.context
        if isinstance(context_value, Admission) or self._of_child or not (self._served or runtime.server_info):
            return context_value

        if context_value is None and not runtime.server_info:  # a server makes a context of it
            context_value = configurable_settings(get_config().get("configurable", {}))
        allowed = client_context(context_value, self._bound)
        return Admission(allowed, "") if isinstance(allowed, StopCause) else allowed

    def _of_strangers(self, runtime: Runtime[AgentContext]) -> JsonMap:
        """What a context has where the words of a request may be somebody's who is not the user."""
        context_value: object = runtime.context
        served = isinstance(context_value, Admission) or self._served or bool(runtime.server_info)
        return {"request_permits": False} if served or os.environ.get("GITHUB_ACTIONS") else {}

    def _children(
        self, state: AgentState, in_loop: Callable[[Any], Any] | None = None
    ) -> "Callable[[dict[str, int], WorkspaceRecords], Children] | None":
        """What runs the children of a step, where the run may have some."""
        if not state["context"].delegation or self.compile is None:
            return None
        from mendgraph.graph.machine.children import Children, Surroundings

        config = get_config()
        write = get_stream_writer()
        context_value = cast("object", get_runtime(AgentContext).context)
        owner = context_value.owner if isinstance(context_value, Admission) else None

        def children(used: dict[str, int], records: WorkspaceRecords) -> Children:
            compiled = partial(self._compiled_for_children, records)
            return Children(Surroundings(state, config, compiled, write, owner, self._stop, in_loop), used)

        return children

    def _compiled_for_children(self, records: WorkspaceRecords, stop: StopRequest) -> Any:
        nodes = copy(self)
        tools = copy(self._tools)
        models = copy(self._models)
        vars(tools).update(records=records)
        vars(models).update(_stop=stop)
        overrides = {name: value for name, value in self._own.items() if name == "system_prompt"}
        vars(nodes).update(_tools=tools, _models=models, _stop=stop, _of_child=True, _own=overrides)
        return self.compile and self.compile(nodes)

    @contextmanager
    def _scope(self) -> Iterator[CancellationScope]:
        """The right of one step, which is closed when somebody wants the run to stop in it."""
        scope = CancellationScope()
        stop = self._stop

        def close() -> None:
            if stop and stop.in_step:
                scope.close()

        with stop.told(close) if stop else nullcontext():
            yield scope

    def _services(self, state: AgentState, ready: Prepared) -> CallServices:
        limits = ready.settings.budget.limits
        return self._models.services(limits, partial(_trace_event, state["run_id"], step=state.get("step", 0) + 1))

    def _costed(self, state: AgentState, update: Update) -> Update:
        if trouble := self._models.book.trouble():
            _trace_event(state["run_id"], "spending.unbooked", {"reason": trouble.message})
        update = self._tools.words.hidden(state["run_id"], update, "reply", "window")
        reply = update.get("reply")
        stop = update.get("stop")
        if stop is not None:  # also what no endpoint said: an exception of a user's own model, an address with a login
            return {**update, "stop": stop.model_copy(update={"message": self.scrub(stop.message)})}
        if reply is None or reply.preloaded:
            return update
        tokens = reply.input_tokens + reply.output_tokens
        return self._watched(state, update, lambda vitals: observe_cost(vitals, tokens, "tokens"))

    def _as_written(self, state: AgentState, channel: str) -> AgentState:
        """The slice with a channel as the model wrote it, which its state holds with marks."""
        written: Any = self._tools.words.written(state["run_id"], state.get(channel))
        return cast("AgentState", {**state, channel: written}) if state.get(channel) else state

    def _watched(
        self, state: AgentState, update: Update, observe: Callable[[Vitals], tuple[Vitals, Alert | None]]
    ) -> Update:
        """The update with the run's vital signs after it; an alert goes to whoever listens, and into the log."""
        vitals, alert = observe(update.get("vitals") or state.get("vitals") or Vitals())
        if alert is not None:
            get_stream_writer()({"type": "alert", **asdict(alert)})
            self._log(state).alert(state.get("step", 0), asdict(alert))
        return {**update, "vitals": vitals}

    def _tools_watched(self, state: AgentState, update: Update) -> Update:
        update = _counted(state, update, repairs.after_tools(update, self._specs))
        for result in update["results"]:
            update = self._watched(state, update, partial(observe_tool, ok=result.result.ok))
        return update

    def _context_problem(self, context: AgentContext, root: str) -> str | None:
        """What no run can be made with, although each field of the context is fine by itself."""
        if (secret := judge_workspace(root, self._tools.rules(context))) is not None:
            return secret
        saver = get_config()["configurable"].get("__pregel_checkpointer", ...)
        if context.mode == "ask" and saver is None:
            return "mode 'ask' needs a checkpointer: without one the run cannot wait for a person's answer."
        allowed = self._tools.allowed(context)
        if isinstance(allowed, ToolError):
            return allowed.message
        checks = self._tools.checks(context) if context.checks else None
        if isinstance(checks, ToolError):
            return f"The checks of this run cannot be run. {checks.message}"
        if context.mode == "read-only" and context.require_changes:
            return "A run in mode 'read-only' changes no file, so it cannot have require_changes."
        if (context.checks or context.require_checks) and "run_checks" not in self._specs:
            return "This agent has no tool run_checks, so no check can be run: add it to its tools."
        unpriced = self._models.problem(context)
        for problem in (*context.network_problems(), self._tools.unknown_tools(context), unpriced):
            if problem:
                return problem
        if context.response_format is not None and not self._specs[ANSWER_TOOL].offered:
            return "This agent has no tool final_answer, so no response_format can be asked for: add it to its tools."
        return schema_problem(context.response_format or {})


def _hooks_of(middleware: Sequence[Any], redactor: Callable[[], Redactor]) -> "Hooks":
    from mendgraph.graph.langchain.hooks import Hooks  # LangChain's agents take a second to import

    return Hooks(middleware, redactor)


def _counted(state: AgentState, update: Update, counts: repairs.Counts, formats: Sequence[str] = ()) -> Update:
    """The update with what is counted of it, which whoever observes the run hears of as well."""
    events = {name: count for name, count in counts.items() if count}
    if not events and not formats:
        return update
    count_events(events)
    spending = update.get("spending") or state["spending"]
    return {**update, "spending": ledger.count_mending(spending, formats, **events)}


def _trace_event(run_id: str, name: str, payload: JsonMap, step: int = 0) -> None:
    """Say what the run has to do without, what a call cost, or how a reply was read, to whoever listens."""
    event = {"name": name, "payload": payload, "run_id": run_id, "step_id": str(step), "ms": 0}
    get_stream_writer()({"type": "trace", **event})


def _task() -> str:
    """What LangGraph calls this execution of the node: the same when it is run again after a kill."""
    info = get_runtime().execution_info
    return "" if info is None else info.task_id
