"""The tools of one machine, what a run may do with them, and what a step of `execute_tools` is bound to.

A run's own permissions come from the context that is stored in its state. What outlives a run (circuits, rates) is
kept here, by name or by run.
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import inf
from os.path import join
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import user_places
from mendgraph.graph.configuration.permissions import keep_permission, list_permissions
from mendgraph.graph.langchain.callbacks import reported_tool_call
from mendgraph.graph.machine.memory import Memory
from mendgraph.graph.machine.permits import COMMAND_TOOL, NETWORK_TOOL, allowed_words, kept_words, permitted, subject_of
from mendgraph.graph.machine.redaction import CurrentRedactor, WrittenLiterals
from mendgraph.graph.machine.small_models import example_lines, is_in_blocks, request_checks
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.workspace import (
    TakenBack,
    WorkspaceRecords,
    denied_rules,
    executed_rules,
    first_hashes,
    judged_workspace,
    kept_content,
    open_skill,
    own_rules,
    user_skills,
)
from mendgraph.nodes.call_model.prompts.profiles import offered_tools
from mendgraph.nodes.execute_tools.call_policy import (
    WITHOUT_CHANGE,
    BreakerConfig,
    CallPolicy,
    PolicyMemory,
    allowed_tools,
)
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import Commands, open_commands
from mendgraph.nodes.execute_tools.engine import DelegatingEngine, Engine, EngineConfig
from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, open_checks
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, monotonic_s
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal, parent_of
from mendgraph.nodes.execute_tools.node import execute_tools
from mendgraph.nodes.execute_tools.processes.git import absent_submodules
from mendgraph.nodes.execute_tools.registry import ActionRegistry, RequestHints, Tool, ToolContext, Validator
from mendgraph.nodes.execute_tools.run_call import Execution, StepResources, calls_made
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.step import changes_something, nothing_done
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
from mendgraph.nodes.execute_tools.store.run_folder import Artifacts, records_folders, run_folder, workspace_folder
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.about_run import final_answer, remember
from mendgraph.nodes.execute_tools.tools.read_file import read_file, read_skill
from mendgraph.nodes.execute_tools.trace import RunLog, TraceEvent, TraceSink
from mendgraph.nodes.guard.file_rules import FileGuardrailRule, submodule_rule, writable_rule
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import edited_result, is_hidden, is_refused, judge_content, results_of_denied
from mendgraph.nodes.guard.scope import Scope, is_guarded, scope_rule
from mendgraph.nodes.language.history import asked_in, last_request
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.project_notes import SkillFolder
from mendgraph.nodes.parse.answers import ResponseFormat
from mendgraph.nodes.records import (
    CallError,
    Effect,
    JsonMap,
    Plan,
    Profile,
    ToolCall,
    ToolError,
    ToolSpec,
    net_changes,
    os_failure,
)

if TYPE_CHECKING:
    from mendgraph.graph.machine.children import Children
    from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

Rules = TypeVar("Rules", CommandRules, CheckRules)
Opened = TypeVar("Opened", Commands, Checks)

Write = Callable[[Any], None]
"""LangGraph's stream writer: what it is given reaches whoever streams the run with mode "custom"."""

Run = Callable[[ToolCall, ToolContext], ToolRun]
InLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in the event loop of the run, from another thread, and waits for it."""

_NO_PATH = "\0"
"""Named instead of paths that nobody knows: no file can have this name, so guard denies the call."""
_MOST_COMMANDS = 64
"""Workspaces whose sandboxes are remembered."""


class ToolRuntime:
    """Holds the tools and their policy; every effect of every run goes through `run`."""

    def __init__(
        self,
        tools: Sequence[Tool] | None,
        rules: tuple[FileGuardrailRule, ...],
        roles: Mapping[str, Collection[str]],
        secrets: Iterable[str],
        response_format: ResponseFormat | None = None,
        *,
        arg_validators: Mapping[str, Validator] | None = None,
        served: bool = False,
        kept_permissions: bool = False,
    ) -> None:
        """Nothing is opened yet. `roles` are lists of tool names, `secrets` values that are never shown.

        `arg_validators` check the arguments of single tools after their schema. With `kept_permissions` a person's
        "always" is kept in the user's settings, and taken up from there.
        A `served` machine tells nobody of the skills of the user who serves it. `read_skill`, beside a `read_file`, and
        `remember` are added, unless tools of the user's have their names; so is `final_answer`, which is not offered.
        """
        self.response_format = response_format
        tools_given = default_tools() if tools is None else tuple(tools)
        names = {tool.name for tool in tools_given}
        own_tools = (read_skill, remember) if read_file.name in names else (remember,)
        added = [tool for tool in own_tools if tool.name not in names]
        self._served = served
        self._own = {tool.name for tool in added}
        self.keep_permission = keep_permission if kept_permissions else None
        answer = [replace(final_answer, offered=False)] if final_answer.name not in names else []
        self.registry = ActionRegistry((*tools_given, *added, *answer), arg_validators)
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        # Our own that look at files take a moment, so they stay in order; so does their trace.
        quick = {id(tool) for tool in default_tools() if tool.effect is not Effect.NETWORK}
        self._waiting = {tool.name for tool in tools_given if _changes_nothing_here(tool) and id(tool) not in quick}
        self._rules = rules
        self._roles = dict(roles)
        self._redactor = CurrentRedactor(secrets)
        self.words = WrittenLiterals(self._redactor.now)
        self.records = WorkspaceRecords()
        self._memory = PolicyMemory(monotonic_s, BreakerConfig())
        self._opened: dict[tuple[object, ...], Any] = {}
        self._executed = tuple(dict.fromkeys(name for tool in tools_given for name in tool.executes))
        self._has_remote_tools = any(tool.remote for tool in tools_given)
        self._servers: dict[str, McpServers] = {}

    def redactor(self) -> Redactor:
        """What takes out secrets: the given values and those of the environment first, then shapes and names."""
        return self._redactor.now()

    def allowed(self, context: AgentContext) -> frozenset[str] | ToolError:
        """The names of the tools that this run's role may use."""
        allowed = allowed_tools(context.role, self._roles, self.specs.values())
        if isinstance(allowed, ToolError):
            return allowed

        named = self._roles.get(context.role or "", allowed)
        denied = {name for name in allowed if self._is_child(name) and not (context.delegation and name in named)}
        if context.writable_paths:  # no sandbox holds a program to them
            denied |= {name for name in allowed if self.specs[name].effect is Effect.EXECUTE}

        return allowed - denied

    def names(self, context: AgentContext) -> frozenset[str]:
        """The same, none where there is no such role."""
        allowed = self.allowed(context)
        if isinstance(allowed, ToolError):
            return frozenset()

        return allowed

    def usable(self, context: AgentContext) -> frozenset[str]:
        """The tools that are worth telling the model of: allowed ones that have what they need."""
        names = self.names(context)
        if not isinstance(self.commands(context), Commands):
            names -= {COMMAND_TOOL}

        may_ask = context.allowed_hosts or context.mode == "ask" or self._permits(context, NETWORK_TOOL)
        names = names if may_ask else names - {NETWORK_TOOL}
        needs = {read_skill.name: bool(self.user_skills(context)), remember.name: context.memory}

        return names - {name for name in self._own if not needs[name]}

    def _permits(self, context: AgentContext, tool: str) -> bool:
        return any(permission.tool == tool for permission in self.kept_permissions(context))

    def user_skills(self, context: AgentContext) -> tuple[SkillFolder, ...]:
        """The user's own skills, as far as a run is told of them."""
        lists_skills = context.project_notes and read_skill.name in self._own & self.names(context)
        if lists_skills and not self._served:
            return user_skills(context.workspace, self._rules)

        return ()

    def _remember(self, store: BaseStore | None, context: AgentContext, text: str) -> str | ToolError:
        return Memory(store, context.workspace).remember(text, self.redactor().text)

    def offered(self, context: AgentContext, profile: Profile) -> tuple[ToolSpec, ...]:
        """The tools that the model of a run is told of, by the mode, the role and the permissions of the run."""
        specs = [*self.specs.values()]
        if context.delegation:
            specs = [spec.model_copy(update={"offered": spec.offered or self._is_child(spec.name)}) for spec in specs]

        usable = self.usable(context)
        asks = context.mode == "ask"
        permissions = kept_words(self.kept_permissions(context))

        if profile.small:  # which takes each tool that it sees for a hint
            listed = {COMMAND_TOOL: context.allowed_programs, NETWORK_TOOL: context.allowed_hosts}
            usable -= self._own | {name for name, allowed in listed.items() if not allowed}

        offered = offered_tools(
            specs,
            profile.edit_form,
            read_only=context.mode == "read-only",
            response_format=context.response_format,
            usable=usable,
            few=context.offer == "few",
            notes={
                COMMAND_TOOL: allowed_words(
                    "", (*context.allowed_programs, *permissions.get(COMMAND_TOOL, ())), asks=asks
                ),
                NETWORK_TOOL: allowed_words(
                    " hosts", (*context.allowed_hosts, *permissions.get(NETWORK_TOOL, ())), asks=asks
                ),
            },
        )

        return tuple(offered)

    def paths_of(self, call: ToolCall) -> Sequence[str]:
        """The paths that a call names inside of other arguments."""
        tool = self.registry.get(call.tool)
        if tool is None or tool.paths_of is None:
            return ()
        try:
            return tool.paths_of(call.arguments)
        except Exception:  # noqa: BLE001 - a user's function may fail in any way, and none of them opens the way
            return (_NO_PATH,)

    def workspace(
        self, context: AgentContext, observe: Callable[[JsonMap], None] | None = None, scope: Scope | None = None
    ) -> Workspace:
        """The only access to the files of the run; calls of the model change them within a `scope`."""
        extensions = frozenset(context.allowed_extensions)
        return judged_workspace(context.workspace, self.rules(context, scope), observe, extensions)

    def leads_to(
        self, context: AgentContext, path: str, for_write: bool, *, observe: Callable[[JsonMap], None] | None = None
    ) -> str | ToolError:
        """Where a path leads that is not plainly one of the workspace, or the refusal: see `Workspace.leads_to`."""
        try:
            return self.workspace(context, observe).leads_to(path, for_write=for_write)
        except OSError as error:
            return os_failure(error, "look at", context.workspace)

    def report_refused(self, state: AgentState, write: Write, decision: JsonMap) -> None:
        """Tell of a path that the sandbox refused while its call was judged."""
        step = str(state.get("step", 0))
        sink = TraceSink(state.get("run_id", ""), step, forward=partial(_forward, write), redactor=self.redactor())
        sink.emit("sandbox.refused", decision)

    def commands(self, context: AgentContext, scope: Scope | None = None) -> Commands | ToolError | None:
        """What may be started; None where nothing may, and why it cannot where no sandbox starts.

        It is cached by workspace, rules and `scope`. In mode "ask" a person may allow more programs.
        """
        may_run = context.allowed_programs or context.mode == "ask" or self._permits(context, COMMAND_TOOL)
        if not may_run or context.writable_paths:
            return None
        seconds = context.tool_timeouts_s.get(COMMAND_TOOL, context.tool_timeout_s)
        rules = CommandRules(
            context.allowed_programs,
            seconds,
            readable=context.readable_folders,
            protected=(*records_folders(), *user_places(), *self._executed),
            sandbox=context.sandbox,
        )
        names = scope.names if scope is not None else frozenset[str]()
        guarded = partial(is_guarded, scope=Scope(names))
        opened = self._kept(partial(open_commands, guarded=guarded), context, rules, names)
        if context.strict and isinstance(opened, Commands):
            return opened.read_only({}, {})
        return opened

    def subject(self, state: AgentState, call: ToolCall, *, listed: bool) -> str | ToolError:
        """What an approval of this call would allow (`subject_of`), or why the call would be refused all the same."""
        context = state["context"]
        tool = self.registry.get(call.tool)
        policy = CallPolicy(context.calls(self.names(context)), self._memory, used=state.get("tool_counts"))
        refusal = tool and (policy.permit(tool, call.arguments) or policy.spent(tool))
        if refusal and refusal.result.error:
            return refusal.result.error
        return subject_of(call, context, lambda: self.commands(context, scope_of(state)), listed=listed)

    def kept_permissions(self, context: AgentContext) -> tuple[Permission, ...]:
        """What the user has allowed in each run in this workspace; nothing where that is not to be taken up."""
        if self.keep_permission is None:
            return ()
        permissions = list_permissions(context.workspace)
        return () if isinstance(permissions, ToolError) else permissions

    def checks(self, context: AgentContext) -> Checks | ToolError | None:
        """What the work of the run is judged by; None where nothing is, and why it cannot where no sandbox starts."""
        if not (context.evidence or context.checks):
            return None
        rules = CheckRules(
            context.checks,
            context.checks_timeout_s,
            readable=context.readable_folders,
            evidence=context.evidence,
            sandbox=context.sandbox,
        )
        return self._kept(open_checks, context, rules)

    def _kept(
        self,
        open_it: Callable[..., Opened | ToolError],
        context: AgentContext,
        rules: Rules,
        names: frozenset[str] = frozenset(),
    ) -> Opened | ToolError:
        """What was opened for this workspace and these rules; no program sees what guard denies, by name or content."""
        key = (context.workspace, rules, names, context.denied_paths)
        if key in self._opened:
            known: Opened = self._opened[key]
            return known
        denied = self.rules(context)
        opened = open_it(
            context.workspace,
            rules,
            partial(is_hidden, rules=denied, root=context.workspace),
            partial(judge_content, rules=denied),
            refused=partial(is_refused, rules=self._rules),
        )
        if not isinstance(opened, ToolError):
            if len(self._opened) >= _MOST_COMMANDS:
                self._opened.clear()
            self._opened[key] = opened
        return opened

    def can_check(self, context: AgentContext) -> bool:
        """Whether the examples of code can be run."""
        return context.evidence and isinstance(self.checks(context), Checks)

    def run(
        self,
        state: AgentState,
        write: Write,
        scope: CancellationScope | None = None,
        task: str = "",
        in_loop: InLoop | None = None,
        wrap: Callable[[Run], Run] | None = None,
        children: "Callable[[dict[str, int], WorkspaceRecords], Children] | None" = None,
    ) -> Update:
        """Run the calls that guard allowed, and charge their time to the turn; nothing begins once `scope` is over.

        `task` names this execution of the node, the same when a step that was cut off is run again. `in_loop` runs what
        is async in the event loop of the run, `wrap` has the hooks of a call, `children` what runs those of a step.
        """
        context = state["context"]
        execution = Execution(state["run_id"], task, state.get("step", 0))
        gone = check_workspace(context.workspace)
        if isinstance(gone, ToolError):
            return {"results": nothing_done(state["items"], gone)}
        sink = TraceSink(
            execution.run_id, str(execution.step), forward=partial(_forward, write), redactor=self.redactor()
        )
        counts = dict(state.get("tool_counts", {}))
        rules = context.calls(self.names(context))
        thread = parent_of(execution.run_id)[0]
        policy = CallPolicy(rules, self._memory, scope=thread, used=counts)
        config = EngineConfig(async_timeout_s=max([context.tool_timeout_s, *context.tool_timeouts_s.values()]))
        engine = DelegatingEngine(self.registry, sink, config, policy=policy, redactor=sink.redactor)
        run: Run = engine.run_sync if in_loop is None else partial(self._run_in_loop, engine, in_loop)
        settled = results_of_denied(state["items"], state["verdicts"])
        delegates = children is not None and any(self._is_child(item.tool) for item in state["items"])
        changes_files = delegates or changes_something(state["items"], state["verdicts"], self.registry)
        spending = state["spending"]
        with self.records.journal(context.workspace, execution.run_id, sink, wanted=changes_files) as journal:
            folder = run_folder(thread)
            row = None
            if children is not None and delegates:
                has_journal = isinstance(journal, Journal)
                row = children(counts, self.records.for_children(context.workspace) if has_journal else self.records)
            using = StepResources(
                run=wrap(run) if wrap else run,
                registry=self.registry,
                context=self._tool_context(state, folder, sink, scope),
                log=_run_log(folder if context.audit else None, sink.redactor, execution.run_id),
                execution=execution,
                journal=journal,
                as_written=partial(self.words.written, execution.run_id),
                observe=reported_tool_call,
                permit=partial(permitted, context),
                beside=partial(self._runs_beside, policy) if wrap is None else lambda _: False,
                children=None if row is None else partial(_run_row, engine, row),
            )
            update = execute_tools(state, settled, using)
            spending = spending if row is None else row.spending
        for place, verdict in enumerate(state["verdicts"]):  # what has no verdict is denied
            update["results"][place] = edited_result(state["items"][place], verdict, update["results"][place])
        seconds = spending.seconds + update.pop("seconds")
        return {**update, "tool_counts": counts, "spending": spending.model_copy(update={"seconds": seconds})}

    def take_back(self, state: AgentState, write: Write) -> TakenBack:
        """Restore the files as they were before the turn, whose work has failed; a kill meanwhile is gone on from."""
        run_id = state["run_id"]
        files = self.workspace(state["context"])
        sink = TraceSink(run_id, str(state["step"]), forward=partial(_forward, write), redactor=self.redactor())
        return self.records.take_back(files, run_id, state["first_step"], sink, tuple(net_changes(state["changes"])))

    def _run_in_loop(self, engine: Engine, in_loop: InLoop, call: ToolCall, context: ToolContext) -> ToolRun:
        """An async tool runs in the loop; what a sync one does to files, and around it, keeps none waiting."""
        tool = self.registry.get(call.tool)
        if tool is None or not (tool.arun or tool.asynchronous):
            return engine.run_sync(call, context)
        ran: ToolRun = in_loop(engine.run_async(call, context))
        return ran

    def calls_made(
        self, context: AgentContext, execution: Execution, items: Sequence[ToolCall | CallError]
    ) -> dict[int, ToolRun]:
        """What the calls of a step that was cut off came to, by their places; those that were not made are left out."""
        sink = TraceSink(execution.run_id, str(execution.step), redactor=self.redactor())
        with self.records.journal(context.workspace, execution.run_id, sink, wanted=True) as journal:
            if not isinstance(journal, Journal):
                return {}
            return calls_made(journal, self.registry, self.workspace(context), execution, items)

    def log(self, context: AgentContext, run_id: str) -> RunLog:
        """Where the run is written down."""
        return _run_log(run_folder(parent_of(run_id)[0]) if context.audit else None, self.redactor(), run_id)

    def lacks(self, context: AgentContext, run_id: str) -> JsonMap:
        """What a run has to do without, and why, by the name of the event that says so."""
        folder = run_folder(parent_of(run_id)[0])
        records = workspace_folder(context.workspace)
        commands = self.commands(context) if context.allowed_programs else None
        definitions = {
            "commands.unavailable": commands,
            "evidence.unavailable": self.checks(context),
            "audit.unavailable": folder,
            "journal.unavailable": records,
        }
        return {name: why.message for name, why in definitions.items() if isinstance(why, ToolError)}

    def unknown_tools(self, context: AgentContext) -> str:
        """What is wrong with the tools that the context names, "" where nothing is: a limit that binds nobody."""
        named = {*context.tool_timeouts_s, *context.tool_quotas, *context.tool_calls_per_minute}
        for name in sorted(named - set(self.specs)):
            meant = closest_names(name, self.specs)
            remedy = f" Did you mean {' or '.join(meant)}?" if meant else ""
            return f"The context limits a tool that there is not, {name!r}.{remedy}"
        return ""

    def _runs_beside(self, policy: CallPolicy, call: ToolCall) -> bool:
        """Whether the call may run while others do."""
        tool = self.registry.get(call.tool) if call.tool in self._waiting else None
        return tool is not None and not policy.is_in_turn(tool)

    def _is_child(self, name: str) -> bool:
        tool = self.registry.get(name)
        return tool is not None and tool.child

    def rules(self, context: AgentContext, scope: Scope | None = None) -> tuple[FileGuardrailRule, ...]:
        """The file rules of the run, with those of what the model may change where its `scope` is given.

        What the run's MCP servers execute and submodules that are not checked out stay as they are, its records in the
        workspace are denied. In mode "ask" a person decides of what is protected.
        """
        own = own_rules(context.workspace, records_folders(), user_places())
        executed = executed_rules(context.workspace, self._executed) if self._executed else ()
        writable = (writable_rule(context.writable_paths),) if context.writable_paths else ()
        denied = denied_rules(context.denied_paths)
        protected = (scope_rule(scope),) if scope is not None and context.mode != "ask" else ()
        absent = absent_submodules(context.workspace)
        submodules = (submodule_rule(absent),) if absent else ()
        return (*self._rules, *own, *executed, *submodules, *denied, *writable, *protected)

    def _servers_of(self, run_id: str) -> "McpServers | None":
        """The MCP servers of a thread, which its children share; none is started before it is called."""
        if not self._has_remote_tools:
            return None

        from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers

        return self._servers.setdefault(parent_of(run_id)[0], McpServers())

    def end_servers(self, run_id: str | None = None) -> None:
        """End the MCP servers of a thread, or of all threads."""
        ending = [*self._servers] if run_id is None else [parent_of(run_id)[0]]
        for thread in ending:
            servers = self._servers.pop(thread, None)
            if servers is not None:
                servers.close()

    def _tool_context(
        self, state: AgentState, folder: str | ToolError, sink: TraceSink, scope: CancellationScope | None
    ) -> ToolContext:
        context = state["context"]
        spending = state["spending"]
        limit = context.max_seconds
        network = None
        if context.allowed_hosts:  # what it imports takes time
            from mendgraph.nodes.execute_tools.network.network import Network

            network = Network(context.network())
        request = last_request(state.get("messages") or []) if state["profile"].small else ""
        # A thread may go on in another workspace; what it has kept stays with the one that it was found in.
        folder_name = f"results-{sha256(context.workspace.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
        return ToolContext(
            workspace=self.workspace(context, partial(sink.emit, "sandbox.refused"), scope_of(state)),
            files_read=state.get("files_read", {}),
            plan=state.get("plan") or Plan(),
            timeout_s=context.tool_timeout_s,
            max_lines=context.read_max_lines,
            seconds_left=inf if limit is None else limit - spending.seconds,
            artifacts=Artifacts(join(folder, folder_name)) if isinstance(folder, str) else None,
            commands=self.commands(context, scope_of(state)),
            network=network,
            scope=scope,
            syntax_gate=context.syntax_gate,
            checks=self.checks(context),
            changes=state.get("changes") or (),
            session_start=partial(first_hashes, context.workspace, state["run_id"]),
            backup=partial(kept_content, context.workspace),
            task=request,
            hints=_hints(request, state) if request else None,
            foreign=foreign_to(state),
            evidence_required=bool(request) and is_in_blocks(state["profile"]),
            state=state,
            skill=lambda name: open_skill(self.user_skills(context), self._rules, name),
            servers=self._servers_of(state["run_id"]),
            remember=partial(self._remember, get_runtime().store, context) if context.memory else None,
        )


def _hints(request: str, state: AgentState) -> RequestHints | None:
    """What a small model is told while it has another try: words fail no run."""
    tries = state["loop"].failed_tries if "loop" in state else 0
    return request_checks(request) if tries + 1 < state["context"].max_failed_tries else None


def _changes_nothing_here(tool: Tool) -> bool:
    return tool.effect in {*WITHOUT_CHANGE, Effect.NETWORK} and not (tool.terminal or tool.child)


def _run_row(
    engine: DelegatingEngine, children: "Children", calls: Mapping[int, ToolCall], context: ToolContext
) -> tuple[list[ToolRun], float]:
    """What calls that are runs of their own come to, in order, and the seconds that they took."""
    places = list(calls)
    seconds = 0.0

    def perform(allowed: dict[int, JsonMap]) -> dict[int, object]:
        nonlocal seconds
        by_place = {places[number]: arguments for number, arguments in allowed.items()}
        outputs, seconds = children.run(by_place, context.seconds_left)
        return {number: outputs[places[number]] for number in allowed}

    return engine.side_by_side(list(calls.values()), context, perform), seconds


def _run_log(folder: str | ToolError | None, redactor: Redactor, run_id: str) -> RunLog:
    return RunLog(AuditLog(folder) if isinstance(folder, str) else None, redactor, run_id)


def scope_of(state: AgentState) -> Scope:
    """What the calls of a run may change without asking, by what a person typed in its thread."""
    context = state["context"]
    request = asked_in(state.get("messages") or []) if context.request_permits else ""
    return Scope.of(request, context.writable_paths, strict=context.strict, root=context.workspace)


def foreign_to(state: AgentState) -> frozenset[str]:
    """The lines that an edit of this turn may not have from the prompt's examples; none where none were shown."""
    return example_lines(state.get("profile", Profile()), state.get("messages") or [])


def _forward(write: Write, event: TraceEvent) -> None:
    write({"type": "trace", **vars(event)})
