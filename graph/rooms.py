"""The nodes of one machine, bound to its tools, its rules and its model.

Each method is one node: it takes the node's slice of the state with the turn's stored context, and calls the room.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from graph.calling import Calling, Prepared
from graph.configuration.client_context import client_context
from graph.context import AgentContext
from graph.gateway import Gateway
from graph.given_context import Admission, given_context
from graph.judging import judge_calls, with_known_files
from graph.refused_turn import refused_turn, run_id_of
from graph.reply_reader import reply_reader, rescue
from graph.run_records import REQUEST_ID
from graph.slices import (
    BeginTurnSlice,
    CallModelSlice,
    ExecuteToolsSlice,
    GuardSlice,
    HealSlice,
    LoopCheckSlice,
    ParseSlice,
    StopSlice,
    Watched,
)
from graph.state import Update
from graph.stop_request import StopRequest
from graph.workspace_records import WorkspaceRecords
from nodes.begin_turn.cut_off_step import close_step, cut_off_items
from nodes.begin_turn.named_files import Ahead
from nodes.begin_turn.node import begin_turn
from nodes.begin_turn.noted_files import MOST_READ, find_notes, most_bytes, note_text
from nodes.begin_turn.scrubbed_messages import scrubbed
from nodes.call_model import ledger
from nodes.call_model.driver import Hands
from nodes.call_model.node import acall_model, call_model
from nodes.call_model.window import WHOLE
from nodes.execute_tools.environment.deadline import CancellationScope, await_call, calls_in_loop
from nodes.execute_tools.environment.file_reads import FileContent, OpenedFile
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.execute_tools.environment.url_rules import rule_problems
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.policy.alerts import Alert, Vitals, observe_cost, observe_reply, observe_tool
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.policy import judge_workspace, told_of_edit
from nodes.heal.node import heal
from nodes.language.media import media_problem, without_media
from nodes.loop_check.node import check
from nodes.loop_check.signature import signature_of
from nodes.parse.answer_schema import schema_problem
from nodes.parse.cutting import was_cut
from nodes.parse.node import parse
from nodes.parse.reading import foreign_calls
from nodes.records import (
    CHANGING,
    JsonMap,
    ModelReply,
    OutcomeKind,
    Profile,
    StopCause,
    StopReason,
    ToolError,
)
from nodes.stop.node import finish, give_up

Slice = TypeVar("Slice", ParseSlice, HealSlice, GuardSlice)
_SAID_OF_REPLIES = ("corrections", "healing_attempts", "stop")


class Rooms:
    """All nodes of one machine. Holds no state of a run."""

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
        """Bind the nodes; nothing is opened or connected yet.

        `stop` is how somebody lets a run end early, `context` that of runs that are given none. With `served` all runs
        are those of a server's clients, whichever server it is.
        """
        self._stop, self._bound, self._served = stop, context, served
        self._gateway = gateway
        self._specs = gateway.specs
        self._writing = frozenset(spec.name for spec in self._specs.values() if spec.effect in CHANGING)
        self._rules = rules
        self._calling = Calling(model, gateway, stop)

    @property
    def records(self) -> WorkspaceRecords:
        """The records of the workspaces that this machine works in."""
        return self._gateway.records

    def close(self) -> None:
        """Close the connections that the nodes opened for sync calls."""
        self._calling.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls."""
        await self._calling.aclose()

    def mark_turn(self, context: AgentContext, run_id: str, *, first: bool) -> None:
        """Mark that a turn begins whose request has an id of the store's: see `REQUEST_ID`."""
        self._calling.begin(context, run_id, first=first)

    def scrub(self, text: str) -> str:
        """A person's words without secrets."""
        return self._gateway.redactor().text(text)

    def read_file(self, context: AgentContext, path: str) -> bytes | None:
        """The bytes of a file of the run's workspace, None where a tool may not have them."""
        content = self._gateway.workspace(context).read_file(path)
        return content.data if isinstance(content, FileContent) else None

    def begin_turn(self, state: BeginTurnSlice, runtime: Runtime[AgentContext]) -> Update:
        """Store the turn's context, start its counters, and check what can be checked before anything is spent."""
        given = given_context(self._asked(runtime), self._bound, state.get("context"))
        if isinstance(given, StopCause):
            return refused_turn(state, given, self._calling.profile(AgentContext()), self.scrub)
        context = given if isinstance(given, AgentContext) else AgentContext()
        root = check_workspace(context.workspace)
        problem = root.message if isinstance(root, ToolError) else self._context_problem(context, root)
        problem = problem if isinstance(given, AgentContext) else given
        told, shown = ("", None) if problem else self._refused_media(state.get("messages") or [], context)
        problem = problem or told or None
        state = state if shown is None else BeginTurnSlice({**state, "messages": shown})
        context = context if isinstance(root, ToolError) else context.model_copy(update={"workspace": root})
        workspace = None if problem else self._gateway.workspace(context)
        exists = workspace.exists if workspace else lambda _: False
        files = partial(_readable_files, workspace)
        run_id = run_id_of(runtime) or state.get("run_id") or uuid4().hex
        spent = self._spent_before(state, context, run_id)
        messages, files_read = self._closed_history(state, None if problem else context, run_id)
        messages = shown if messages is None else messages
        seen = state if messages is None else BeginTurnSlice({**state, "messages": messages})
        window = state.get("window") or WHOLE
        profile = self._calling.profile(context)
        tools = self._gateway.usable(context)
        checked = profile.small and "run_checks" in tools and self._gateway.can_check(context)
        reads = context.read_ahead and "read_file" in tools
        ahead = Ahead(files=reads, checked=checked, size_of=partial(_size_of, workspace))
        update = begin_turn(seen, profile, problem, exists, files, ahead, Overwrite)
        if messages is not None:
            update.setdefault("messages", Overwrite(messages))
        if files_read:
            update["files_read"] = files_read
        if workspace is not None:
            update |= self._notes(seen, context, workspace, profile, run_id)
        if window.tokens is not None:  # the model may be another one now
            update["window"] = window.model_copy(update={"tokens": None})
        for name, reason in ({} if problem else self._gateway.lacks(context, run_id)).items():
            _tell(run_id, name, {"reason": reason})
        return {**update, "context": context, "spending": ledger.begin_turn(spent), "run_id": run_id, "tool_counts": {}}

    def call_model(self, state: CallModelSlice) -> Update:
        """Make the next model call."""
        ready = self._calling.prepared(state) or self._calling.prepare(state)
        return self._costed(state, call_model(state, ready.settings, ready.tools, self._hands(state, ready)))

    async def acall_model(self, state: CallModelSlice) -> Update:
        """Make the next model call without blocking the event loop."""
        ready = self._calling.prepared(state)
        if ready is None:
            ready = await asyncio.to_thread(self._calling.prepare, state)
        return self._costed(state, await acall_model(state, ready.settings, ready.tools, self._hands(state, ready)))

    def parse(self, state: ParseSlice) -> Update:
        """Read the reply."""
        said = self._as_written(state, "reply")
        update = with_known_files(self._gateway, state["context"], parse(said, reply_reader(self._gateway, state)))
        cut = "reply" in update and was_cut(said.get("reply") or ModelReply(), update["reply"])
        update = self._gateway.words.hidden(state["run_id"], update, "reply", "items", "errors", "answer")
        if (state.get("reply") or ModelReply()).preloaded:
            return update
        if cut:
            _tell(state["run_id"], "reply.cut", {})
            update["spending"] = ledger.count_mending(state["spending"], cut=1)
        valid = not update["errors"]
        return self._watched(state, update, lambda vitals: observe_reply(vitals, valid))

    def heal(self, state: HealSlice) -> Update:
        """Repair the reply or ask for it again."""
        reader = reply_reader(self._gateway, state, told=False)
        state = self._as_written(state, "reply")
        update = heal(state, state["context"].healing(state["profile"]), partial(rescue, reader))
        rescued = "reading" in update
        update = with_known_files(self._gateway, state["context"], update)
        if rescued:
            found = foreign_calls((state.get("reply") or ModelReply()).text, reader)
            _tell(state["run_id"], "reply.rescued", {"dialect": found.dialect if found else ""})
        asked = int(not rescued and "corrections" in update)
        update = self._gateway.words.hidden(state["run_id"], update, "reply", "items", *_SAID_OF_REPLIES)
        return {**update, "spending": ledger.count_mending(state["spending"], rescued=int(rescued), asked_again=asked)}

    def guard(self, state: GuardSlice) -> Update:
        """Judge the calls."""
        judged = judge_calls(self._gateway, self._as_written(state, "items"))
        update = self._gateway.words.hidden(state["run_id"], judged, "items", "verdicts", "results")
        if update["results"]:
            log, items = self._gateway.log(state["context"], state["run_id"]), update.get("items", state["items"])
            for item, verdict, result in zip(items, update["verdicts"], update["results"], strict=True):
                log.call(state.get("step", 0), item, verdict, result)
        return update

    def execute_tools(self, state: ExecuteToolsSlice) -> Update:
        """Run the allowed calls, and charge the time to the turn; once a stop is asked for, no further call begins."""
        with self._scope() as scope:
            update = self._gateway.run(state, state["run_id"], get_stream_writer(), scope, _task())
        return self._tools_watched(state, update)

    async def aexecute_tools(self, state: ExecuteToolsSlice) -> Update:
        """The same for an event loop, in which async tools run; a cancelled run changes nothing any more."""
        with self._scope() as scope, calls_in_loop() as in_loop:
            run = partial(self._gateway.run, state, state["run_id"], get_stream_writer(), scope, _task(), in_loop)
            update = await await_call(run, scope=scope)
        return self._tools_watched(state, update)

    def loop_check(self, state: LoopCheckSlice) -> Update:
        """Judge the step and settle it into the history."""
        context, words = state["context"], partial(self._gateway.words.written, state["run_id"])
        update = check(
            state,
            context.loop(),
            lambda call, spec: signature_of(words(call), spec, context.workspace),
            self._specs,
            context.workspace,
        )
        self._gateway.words.forget(state["run_id"])
        paid = not (state.get("reply") or ModelReply()).preloaded
        spending = state["spending"]
        return {**update, "items": [], "spending": spending.model_copy(update={"steps": spending.steps + paid})}

    async def aloop_check(self, state: LoopCheckSlice) -> Update:
        """The same in the event loop: nothing is waited for."""
        return self.loop_check(state)

    def finish(self, state: StopSlice) -> Update:
        """End with the answer."""
        self._let_go(state)
        return finish(state, _usage(state))

    def budget_stop(self, state: StopSlice) -> Update:
        """End on a limit: the one that a node named, or the one that the router saw."""
        self._let_go(state)
        cause = state.get("stop") or ledger.exhausted_limit(state["spending"], state["context"].limits())
        return give_up(state, OutcomeKind.BUDGET_STOP, cause or _UNNAMED, _usage(state))

    def system_error(self, state: StopSlice) -> Update:
        """End on a failure that the machine could not mend."""
        self._let_go(state)
        return give_up(state, OutcomeKind.SYSTEM_ERROR, state.get("stop") or _UNNAMED, _usage(state))

    def _let_go(self, state: StopSlice) -> None:
        """Write what is left of the spending, and forget what the model wrote."""
        self._calling.flush()
        self._gateway.forget(state.get("run_id", ""))

    def _asked(self, runtime: Runtime[AgentContext]) -> object:
        """The context that the run was given, or what a client may have of it where it comes through a server.

        LangGraph's servers say who they are in each run's configuration, where no client can take it away.
        """
        given: object = runtime.context
        if isinstance(given, Admission) or not (self._served or runtime.server_info):
            return given
        allowed = client_context(given, self._bound)
        return Admission(allowed, "") if isinstance(allowed, StopCause) else allowed

    def _closed_history(
        self, state: BeginTurnSlice, context: AgentContext | None, run_id: str
    ) -> tuple[list[AnyMessage] | None, dict[str, str]]:
        """The history without secrets and with the step that was cut off, None where it is as it should be.

        The second value is what the calls of that step have read and written.
        """
        messages = state.get("messages") or []
        clean = scrubbed(messages, self._gateway.redactor().text)
        items = cut_off_items(state)
        if context is None or not items:
            return clean, {}
        judged = bool(state.get("verdicts"))
        made = self._gateway.calls_made(context, run_id, state.get("step", 0), items) if judged else {}
        told = state.get("verdicts") or []
        results = {place: told_of_edit(items[place], told[place], run.as_record()) for place, run in made.items()}
        files_read = {path: sha256 for run in made.values() for path, sha256 in run.output.files_read.items()}
        history = messages if clean is None else clean
        return close_step(history, state, results, self._specs, context.workspace), files_read

    def _refused_media(
        self, messages: Sequence[AnyMessage], context: AgentContext
    ) -> tuple[str, list[AnyMessage] | None]:
        """Why the request cannot be shown to its model, "" where it can; and the messages without such content.

        Else one image would keep a thread from ever going on. The second value is None where nothing is omitted.
        """
        refused = [self._calling.refused_media(context, each) for each in messages]
        if not any(refused):
            return "", None
        told = media_problem(refused[-1], self._calling.model_name(context))
        return told, [without_media(each, kinds) for each, kinds in zip(messages, refused, strict=True)]

    def _notes(
        self, state: BeginTurnSlice, context: AgentContext, workspace: Workspace, profile: Profile, run_id: str
    ) -> Update:
        """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
        messages = state.get("messages") or []
        wanted = context.project_notes and bool(messages)
        most = most_bytes(profile, self._calling.window_tokens(context, profile)) if wanted else 0
        request = messages[-1].text.replace(f"{workspace.root}/", "") if messages else ""
        found = find_notes(request, partial(self._note, workspace), most)
        for path, reason in found.unread:
            _tell(run_id, "notes.unread", {"path": path, "reason": reason})
        if found.notes == tuple(state.get("notes") or ()):
            return {}
        if found.notes:
            files = [{"path": each.path, "lines": each.lines, "cut": each.cut} for each in found.notes]
            _tell(run_id, "notes.read", {"files": files})
        return {"notes": found.notes}

    def _note(self, workspace: Workspace, path: str) -> str | ToolError | None:
        if not workspace.exists(path):
            return workspace.denied(path)
        opened = workspace.open_file(path)
        if isinstance(opened, ToolError):
            return opened
        with opened:
            text = note_text(opened.path, opened.stream.read(MOST_READ + 1))
        return text if isinstance(text, ToolError) else self.scrub(text)

    def _spent_before(self, state: BeginTurnSlice, context: AgentContext, run_id: str) -> ledger.Spending:
        messages = state.get("messages") or []
        marked = bool(messages) and str(messages[-1].id).startswith(REQUEST_ID)
        return self._calling.spent_before(state.get("spending"), context, run_id, marked=marked)

    @contextmanager
    def _scope(self) -> Iterator[CancellationScope]:
        """The right of one step, which is closed when somebody wants the run to stop in it."""
        scope, stop = CancellationScope(), self._stop

        def close() -> None:
            if stop and stop.in_step:
                scope.close()

        with stop.told(close) if stop else nullcontext():
            yield scope

    def _hands(self, state: CallModelSlice, ready: Prepared) -> Hands:
        limits = ready.settings.purse.limits
        return self._calling.hands(limits, partial(_tell, state["run_id"], step=state.get("step", 0) + 1))

    def _costed(self, state: CallModelSlice, update: Update) -> Update:
        if trouble := self._calling.unbooked():
            _tell(state["run_id"], "spending.unbooked", {"reason": trouble})
        update = self._gateway.words.hidden(state["run_id"], update, "reply", "window")
        reply, stop = update.get("reply"), update.get("stop")
        if stop is not None:  # also what no endpoint said: an exception of a user's own model, an address with a login
            return {**update, "stop": stop.model_copy(update={"message": self.scrub(stop.message)})}
        if reply is None or reply.preloaded:
            return update
        tokens = reply.input_tokens + reply.output_tokens
        return self._watched(state, update, lambda vitals: observe_cost(vitals, tokens, "tokens"))

    def _as_written(self, state: Slice, channel: str) -> Slice:
        """The slice with a channel as the model wrote it, which its state holds with marks."""
        written: Any = self._gateway.words.written(state["run_id"], state.get(channel))
        return cast("Slice", {**state, channel: written}) if state.get(channel) else state

    def _watched(
        self, state: Watched, update: Update, observe: Callable[[Vitals], tuple[Vitals, Alert | None]]
    ) -> Update:
        """The update with the run's vital signs after it; an alert goes to whoever listens, and into the log."""
        vitals, alert = observe(update.get("vitals") or state.get("vitals") or Vitals())
        if alert is not None:
            get_stream_writer()({"type": "alert", **alert.as_map()})
            self._gateway.log(state["context"], state["run_id"]).alert(alert.as_map())
        return {**update, "vitals": vitals}

    def _tools_watched(self, state: ExecuteToolsSlice, update: Update) -> Update:
        for result in update["results"]:
            update = self._watched(state, update, partial(observe_tool, ok=result.result.ok))
        return update

    def _context_problem(self, context: AgentContext, root: str) -> str | None:
        """What no run can be made with, although each field of the context is fine by itself."""
        secret = judge_workspace(root, self._gateway.rules(context))
        if secret is not None:
            return secret
        saver = get_config()["configurable"].get("__pregel_checkpointer", ...)
        if context.mode == "ask" and saver is None:
            return "mode 'ask' needs a checkpointer: without one the run cannot wait for a person's answer."
        allowed = self._gateway.allowed(context)
        if isinstance(allowed, ToolError):
            return allowed.message
        checks = self._gateway.checks(context) if context.checks else None
        if isinstance(checks, ToolError):
            return f"The checks of this run cannot be run. {checks.message}"
        unpriced = self._calling.problem(context)
        for problem in (*rule_problems(context.network()), self._gateway.unknown_tools(context), unpriced):
            if problem:
                return problem
        return schema_problem(context.answer_schema or {})


def _size_of(workspace: Workspace | None, path: str) -> int:
    """The bytes of a file; 0 for what is none, or may not be read: the call will say so."""
    opened = workspace.open_file(path) if workspace else None
    if not isinstance(opened, OpenedFile):
        return 0
    with opened:
        return opened.size


_UNNAMED = StopCause(reason=StopReason.CANCELLED, message="The run was stopped.")


def _readable_files(workspace: Workspace | None) -> Iterator[tuple[str, int]]:
    """Paths and sizes in bytes of the files that guard lets a model read."""
    for entry in workspace.walk() if workspace else ():
        if entry.kind == "file" and workspace and workspace.denied(entry.path) is None:
            yield entry.path, entry.size


def _tell(run_id: str, name: str, payload: JsonMap, step: int = 0) -> None:
    """Say what the run has to do without, what a call cost, or how a reply was read, to whoever listens."""
    event = {"name": name, "payload": payload, "run_id": run_id, "step_id": str(step), "ms": 0}
    get_stream_writer()({"type": "trace", **event})


def _task() -> str:
    """What LangGraph calls this execution of the node: the same when it is run again after a kill."""
    info = get_runtime().execution_info
    return "" if info is None else info.task_id


def _usage(state: StopSlice) -> JsonMap:
    return ledger.usage_report(state["spending"])
