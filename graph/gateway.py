"""The `execute_tools` room of one machine: its tools, what a run may do with them, and where that is written down.

A run's own permissions come from the context that is stored in its state. What outlives a run (circuits, rates) is
kept here, by name or by run.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from math import inf
from os.path import join
from typing import Any

from langchain_core.messages import AnyMessage

from graph.configuration.user_rule import user_settings_rule
from graph.context import AgentContext
from graph.current_redactor import CurrentRedactor
from graph.judged_workspace import judged_workspace
from graph.record_rules import RecordRules
from graph.run_log import RunLog
from graph.slices import ExecuteToolsSlice
from graph.tool_step import Execution, ToolStep, calls_made, changes_something
from graph.workspace_records import WorkspaceRecords
from graph.written_words import WrittenWords
from nodes.call_model.offered_tools import offered_tools
from nodes.execute_tools.cache import ToolCache
from nodes.execute_tools.engine import Engine, EngineConfig
from nodes.execute_tools.environment.artifacts import Artifacts
from nodes.execute_tools.environment.audit_log import AuditLog
from nodes.execute_tools.environment.checks import CheckRules, Checks, open_checks
from nodes.execute_tools.environment.command_rules import CommandRules
from nodes.execute_tools.environment.commands import Commands, open_commands
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.deadline import monotonic_s
from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.judged_paths import ContentJudge
from nodes.execute_tools.environment.lease import Lease
from nodes.execute_tools.environment.network import Network
from nodes.execute_tools.environment.run_folder import run_folder, workspace_folder
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.node import execute_tools
from nodes.execute_tools.policy.call_policy import CallPolicy, PolicyMemory
from nodes.execute_tools.policy.circuit_breaker import BreakerConfig
from nodes.execute_tools.policy.idempotency import idempotency_key
from nodes.execute_tools.policy.roles import allowed_tools
from nodes.execute_tools.redact import Redactor
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from nodes.execute_tools.tool_run import ToolRun
from nodes.execute_tools.tools import default_tools
from nodes.execute_tools.trace import TraceEvent, TraceSink
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.own_settings import OWN_SETTINGS_RULE
from nodes.guard.policy import judge_content, judge_path
from nodes.guard.verdicts import results_of_denied, told_of_edit
from nodes.language.closest import closest_names
from nodes.language.history import is_request
from nodes.records import (
    CallError,
    CallResult,
    EditForm,
    JsonMap,
    Plan,
    Profile,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSpec,
)

Update = dict[str, Any]
Write = Callable[[Any], None]
"""LangGraph's stream writer: what it is given reaches whoever streams the run with mode "custom"."""

InLoop = Callable[[Coroutine[Any, Any, ToolRun]], ToolRun]
"""Runs a coroutine in the event loop of the run, from another thread, and waits for it."""

_COMMAND_TOOL, _NETWORK_TOOL = "run_command", "http_get"
_NO_PATH = "\0"
"""Named instead of paths that nobody knows: no file can have this name, so guard denies the call."""
_PUBLIC_CERTIFICATES = "site-packages/certifi/cacert.pem"
_ANSWERS = frozenset({"ai", "tool"})
"""Types of messages that no person has written."""
_MOST_COMMANDS = 64
"""Workspaces whose sandboxes are remembered."""
_MOST_CACHES, _MOST_CACHED = 32, 32
"""Turns whose results are remembered, and how many of each; a result has 64 kB at most."""


class Gateway:
    """Holds the tools and their policy; every effect of every run goes through `run`."""

    def __init__(
        self,
        tools: Sequence[Tool] | None,
        rules: tuple[FileGuardrailRule, ...],
        roles: Mapping[str, Collection[str]],
        secrets: Iterable[str],
    ) -> None:
        """Nothing is opened yet. `roles` are lists of tool names, `secrets` values that are never shown."""
        self.registry = ActionRegistry(default_tools() if tools is None else tools)
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        self._terminal = frozenset(spec.name for spec in self.specs.values() if spec.terminal)
        self._rules, self._record_rules = rules, RecordRules()
        self._roles, self._redactor = dict(roles), CurrentRedactor(secrets)
        self.words = WrittenWords(self._redactor.now)
        self.records = WorkspaceRecords()
        self._memory = PolicyMemory(monotonic_s, BreakerConfig())
        self._caches: OrderedDict[str, ToolCache] = OrderedDict()
        self._commands: dict[tuple[str, CommandRules], Commands] = {}
        self._checks: dict[tuple[str, CheckRules], Checks] = {}

    def redactor(self) -> Redactor:
        """What takes out secrets: the given values and those of the environment first, then shapes and names."""
        return self._redactor.now()

    def allowed(self, context: AgentContext) -> frozenset[str] | ToolError:
        """The names of the tools that this run's role may use."""
        return allowed_tools(context.role, self._roles, self.specs.values())

    def usable(self, context: AgentContext) -> frozenset[str]:
        """The tools that are worth telling the model of: allowed ones that have what they need."""
        allowed = self.allowed(context)
        names = frozenset[str]() if isinstance(allowed, ToolError) else allowed
        if not isinstance(self.commands(context), Commands):
            names -= {_COMMAND_TOOL}
        return names if context.allowed_hosts else names - {_NETWORK_TOOL}

    def offered(self, context: AgentContext, profile: Profile) -> tuple[ToolSpec, ...]:
        """The tools that the model of a run is told of, by the mode, the role and the permissions of the run."""
        offered = offered_tools(
            self.specs.values(),
            profile.edit_form,
            read_only=context.mode == "read-only",
            answer_schema=context.answer_schema,
            usable=self.usable(context),
            few=context.offer == "few",
            notes=self._notes(context),
        )
        return tuple(offered)

    def _notes(self, context: AgentContext) -> Mapping[str, str]:
        """What the model has to know of this run's permissions, by tool."""
        return {
            _COMMAND_TOOL: f"Allowed: {', '.join(context.allowed_programs)}.",
            _NETWORK_TOOL: f"Allowed hosts: {', '.join(context.allowed_hosts)}.",
        }

    def paths_of(self, call: ToolCall) -> Sequence[str]:
        """The paths that a call names inside of other arguments."""
        tool = self.registry.get(call.tool)
        if tool is None or tool.paths_of is None:
            return ()
        try:
            return tool.paths_of(call.arguments)
        except Exception:  # noqa: BLE001 - a user's function may fail in any way, and none of them opens the way
            return (_NO_PATH,)

    def workspace(self, context: AgentContext, observe: Callable[[JsonMap], None] | None = None) -> Workspace:
        """The only door to the files of the run."""
        extensions = frozenset(context.allowed_extensions)
        return judged_workspace(context.workspace, self.rules(context), observe, extensions)

    def leads_to(
        self, context: AgentContext, path: str, for_write: bool, *, observe: Callable[[JsonMap], None] | None = None
    ) -> str | ToolError:
        """Where a path leads that is not plainly one of the workspace, or the refusal: see `Workspace.leads_to`."""
        try:
            return self.workspace(context, observe).leads_to(path, for_write=for_write)
        except OSError as error:
            return os_failure(error, "look at", context.workspace)

    def tell_refused(self, run_id: str, step: int, write: Write, decision: JsonMap) -> None:
        """Tell of a path that the sandbox refused while its call was judged."""
        sink = TraceSink(run_id, str(step), forward=partial(_forward, write), redactor=self.redactor())
        sink.emit("sandbox.refused", decision)

    def commands(self, context: AgentContext) -> Commands | ToolError | None:
        """What may be started; None where nothing may, and why it cannot where no sandbox starts.

        The same one for the same workspace and rules: it remembers what it has to hide.
        """
        if not context.allowed_programs:
            return None
        seconds = context.tool_timeouts_s.get(_COMMAND_TOOL, context.tool_timeout_s)
        rules = CommandRules(context.allowed_programs, seconds, readable=context.readable_folders)
        key = (context.workspace, rules)
        known = self._commands.get(key)
        if known is None:
            opened = open_commands(context.workspace, rules, *self._hidden(context))
            if isinstance(opened, ToolError):
                return opened
            if len(self._commands) >= _MOST_COMMANDS:
                self._commands.clear()
            known = self._commands.setdefault(key, opened)
        return known

    def checks(self, context: AgentContext) -> Checks | ToolError | None:
        """What the work of the run is judged by; None where nothing is, and why it cannot where no sandbox starts."""
        if not (context.evidence or context.checks):
            return None
        rules = CheckRules(
            context.checks, context.checks_timeout_s, readable=context.readable_folders, evidence=context.evidence
        )
        key = (context.workspace, rules)
        known = self._checks.get(key)
        if known is None:
            opened = open_checks(context.workspace, rules, *self._hidden(context))
            if isinstance(opened, ToolError):
                return opened
            if len(self._checks) >= _MOST_COMMANDS:
                self._checks.clear()
            known = self._checks.setdefault(key, opened)
        return known

    def _hidden(self, context: AgentContext) -> tuple[Callable[[str], bool], ContentJudge]:
        """What no program may see: by its name, and for what it holds."""
        rules = self.rules(context)
        return partial(_is_hidden, rules), partial(judge_content, rules=rules)

    def can_check(self, context: AgentContext) -> bool:
        """Whether the examples of code can be run."""
        return context.evidence and isinstance(self.checks(context), Checks)

    def run(
        self,
        state: ExecuteToolsSlice,
        run_id: str,
        write: Write,
        lease: Lease | None = None,
        task: str = "",
        in_loop: InLoop | None = None,
    ) -> Update:
        """Run the calls that guard allowed, and charge their time to the turn; nothing begins once `lease` is over.

        `task` names this execution of the node: it is the same when a step that was cut off is run again. `in_loop`
        runs what is async in the event loop that the thread of this step works for.
        """
        context, redactor = state["context"], self.redactor()
        execution = Execution(run_id, task, state.get("step", 0))
        sink = TraceSink(run_id, str(execution.step), forward=partial(_forward, write), redactor=redactor)
        gone = check_workspace(context.workspace)
        if isinstance(gone, ToolError):
            return _nothing_done(state, gone)
        wanted = changes_something(state, self.registry)
        with self.records.journal(context.workspace, run_id, sink, wanted=wanted) as journal:
            return self._run(state, execution, sink, journal, lease, redactor, in_loop)

    def _run(
        self,
        state: ExecuteToolsSlice,
        execution: Execution,
        sink: TraceSink,
        journal: Journal | ToolError | None,
        lease: Lease | None,
        redactor: Redactor,
        in_loop: InLoop | None,
    ) -> Update:
        context, spending, run_id = state["context"], state["spending"], execution.run_id
        folder = run_folder(run_id)
        used = dict(state.get("tool_counts", {}))
        allowed = self.allowed(context)
        rules = context.calls(frozenset() if isinstance(allowed, ToolError) else allowed)
        tool_context = self._tool_context(state, folder, sink, lease)
        cache = self._caches.pop(run_id, None) or ToolCache(_MOST_CACHED)
        cache.begin_step(tool_context.workspace, (context, redactor))
        engine = Engine(
            self.registry,
            sink,
            EngineConfig(async_timeout_s=max([context.tool_timeout_s, *context.tool_timeouts_s.values()])),
            cache=cache,
            policy=CallPolicy(rules, self._memory, scope=run_id, used=used),
            redactor=redactor,
        )
        if isinstance(journal, Journal):
            with suppress(StoreError):
                journal.forget_outcomes(run_id, execution.step)
        log = _log(folder if context.audit else None, redactor, run_id)
        run = engine.run_sync if in_loop is None else partial(self._run_in_loop, engine, in_loop)
        step = ToolStep(state, execution, run, self.registry, log, journal, partial(self.words.written, run_id))
        key_of = partial(_key_of, run_id, execution.step)
        update = execute_tools(state, step.run, tool_context, self._terminal, results_of_denied, key_of)
        for place, verdict in enumerate(state["verdicts"]):
            update["results"][place] = told_of_edit(state["items"][place], verdict, update["results"][place])
        step.note_the_rest(update["results"])
        self._caches[run_id] = cache
        while len(self._caches) > _MOST_CACHES:
            self._caches.popitem(last=False)
        seconds = spending.seconds + update.pop("seconds")
        return {**update, "tool_counts": used, "spending": spending.model_copy(update={"seconds": seconds})}

    def _run_in_loop(self, engine: Engine, in_loop: InLoop, call: ToolCall, context: ToolContext) -> ToolRun:
        """An async tool runs in the loop; what a sync one does to files, and around it, keeps none waiting."""
        tool = self.registry.get(call.tool)
        if tool is None or not tool.asynchronous:
            return engine.run_sync(call, context)
        return in_loop(engine.run_async(call, context))

    def forget(self, run_id: str) -> None:
        """The turn has ended: nothing of what it wrote and read is used any more."""
        self.words.forget(run_id)
        self._caches.pop(run_id, None)

    def calls_made(
        self, context: AgentContext, run_id: str, step: int, items: Sequence[ToolCall | CallError]
    ) -> dict[int, ToolRun]:
        """What the calls of a step that was cut off came to, by their places; those that were not made are left out."""
        sink = TraceSink(run_id, str(step), redactor=self.redactor())
        with self.records.journal(context.workspace, run_id, sink, wanted=True) as journal:
            if not isinstance(journal, Journal):
                return {}
            return calls_made(journal, self.registry, self.workspace(context), Execution(run_id, "", step), items)

    def log(self, context: AgentContext, run_id: str) -> RunLog:
        """Where the run is written down."""
        return _log(run_folder(run_id) if context.audit else None, self.redactor(), run_id)

    def lacks(self, context: AgentContext, run_id: str) -> JsonMap:
        """What a run has to do without, and why, by the name of the event that says so."""
        commands, folder, records = self.commands(context), run_folder(run_id), workspace_folder(context.workspace)
        found = {
            "commands.unavailable": commands,
            "evidence.unavailable": self.checks(context),
            "audit.unavailable": folder,
            "journal.unavailable": records,
        }
        return {name: why.message for name, why in found.items() if isinstance(why, ToolError)}

    def unknown_tools(self, context: AgentContext) -> str:
        """What is wrong with the tools that the context names, "" where nothing is: a limit that binds nobody."""
        named = {*context.tool_timeouts_s, *context.tool_quotas, *context.tool_calls_per_minute}
        for name in sorted(named - set(self.specs)):
            meant = closest_names(name, self.specs)
            remedy = f" Did you mean {' or '.join(meant)}?" if meant else ""
            return f"The context limits a tool that there is not, {name!r}.{remedy}"
        return ""

    def rules(self, context: AgentContext) -> tuple[FileGuardrailRule, ...]:
        """The file rules of the run: the agent's settings stay as they are, its records in the workspace are denied."""
        own = (self._record_rules.rule(context.workspace), user_settings_rule(context.workspace))
        return (*self._rules, OWN_SETTINGS_RULE, *(rule for rule in own if rule is not None))

    def _tool_context(
        self, state: ExecuteToolsSlice, folder: str | ToolError, sink: TraceSink, lease: Lease | None
    ) -> ToolContext:
        context, spending = state["context"], state["spending"]
        limit = context.max_seconds
        # A thread may go on in another workspace; what it has kept stays with the one that it was found in.
        kept = f"results-{sha256(context.workspace.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
        return ToolContext(
            workspace=self.workspace(context, partial(sink.emit, "sandbox.refused")),
            files_read=state.get("files_read", {}),
            plan=state.get("plan") or Plan(),
            timeout_s=context.tool_timeout_s,
            max_lines=context.read_max_lines,
            seconds_left=inf if limit is None else limit - spending.seconds,
            kept=Artifacts(join(folder, kept)) if isinstance(folder, str) else None,
            commands=self.commands(context),
            network=Network(context.network()) if context.allowed_hosts else None,
            lease=lease,
            syntax_gate=context.syntax_gate,
            checks=self.checks(context),
            task=last_request(state.get("messages") or []),
            gated=state["profile"].edit_form is EditForm.BLOCKS,
        )


def _is_hidden(rules: tuple[FileGuardrailRule, ...], path: str) -> bool:
    """Whether a command may not see this file. Certificates of public authorities look like keys, and are none."""
    return not path.endswith(_PUBLIC_CERTIFICATES) and judge_path(path, for_write=False, rules=rules) is not None


def _nothing_done(state: ExecuteToolsSlice, problem: ToolError) -> Update:
    """The step of a run whose workspace is no more: it ends with that."""
    error = problem.model_copy(update={"fatal": True})
    results = [
        CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult(ok=False, error=error))
        for item in state["items"]
    ]
    return {"results": results}


def _key_of(run_id: str, step: int, index: int, call: ToolCall) -> str:
    return idempotency_key(run_id, step, index, call.tool, call.arguments)


def _log(folder: str | ToolError | None, redactor: Redactor, run_id: str) -> RunLog:
    return RunLog(AuditLog(folder) if isinstance(folder, str) else None, redactor, run_id)


def last_request(messages: Sequence[AnyMessage]) -> str:
    """What the person asked for last. A long turn has hundreds of messages after it, which their type tells apart."""
    return next((each.text for each in reversed(messages) if each.type not in _ANSWERS and is_request(each)), "")


def _forward(write: Write, event: TraceEvent) -> None:
    write({"type": "trace", **vars(event)})
