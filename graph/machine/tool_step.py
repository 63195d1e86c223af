"""The step of `execute_tools`: the resources of its calls, its charges, and how failed work is restored."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import inf
from os.path import join
from typing import TYPE_CHECKING, Any

from langgraph.config import get_stream_writer
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore

from mendgraph.graph.langchain.callbacks import reported_tool_call
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.small_models import example_lines, is_in_blocks, request_checks
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.turn_tools import TurnTools, approved_resources
from mendgraph.graph.machine.workspace import RestoredWork, WorkspaceRecords, first_hashes, kept_content
from mendgraph.nodes.execute_tools.call_policy import CallPolicy
from mendgraph.nodes.execute_tools.commands.command_changes import CommandChanges, Unwatched, record_changes
from mendgraph.nodes.execute_tools.engine import DelegatingEngine, Engine, EngineConfig
from mendgraph.nodes.execute_tools.node import execute_tools
from mendgraph.nodes.execute_tools.registry import RequestHints, ToolContext
from mendgraph.nodes.execute_tools.run_call import Execution, StepResources, recorded_outcomes
from mendgraph.nodes.execute_tools.step import changes_something, nothing_done
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink
from mendgraph.nodes.guard.policy import edited_result, results_of_denied
from mendgraph.nodes.guard.scope import Scope
from mendgraph.nodes.language.command_lines import COMMAND_TOOL, SHELL
from mendgraph.nodes.language.history import last_request, person_requests
from mendgraph.nodes.parse.reading import CHECKS_TOOL
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    FileChange,
    JsonMap,
    Plan,
    Profile,
    ToolCall,
    ToolError,
    net_changes,
)
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.journal.journal import Journal, parent_of
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import Artifacts, run_folder

if TYPE_CHECKING:
    from mendgraph.graph.hooks.shell_hooks import ShellHooks
    from mendgraph.graph.machine.children import Children

RunCall = Callable[[ToolCall, ToolContext], ToolOutcome]
InLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in the event loop of the run from another thread, and waits for it."""
OpenChildren = Callable[[dict[str, int], WorkspaceRecords], "Children"]
"""(calls of this turn by tool, records of the workspace) -> the children of a step."""


def with_changes_of_jobs(turn: TurnTools, run_calls: Callable[[AgentState], Update], state: AgentState) -> Update:
    """Run the calls of a step, and record before and after it what jobs have changed. Jobs end before checks."""
    if not turn.context.jobs:
        return run_calls(state)

    checks = any(item.tool == CHECKS_TOOL for item in state["items"])
    before = settle_jobs(turn, state, end=checks)
    state = {**state, "changes": [*(state.get("changes") or ()), *before]}
    update = run_calls(state)

    changes = update.get("changes", [])
    after = settle_jobs(turn, state, edits=changes)
    return {**update, "changes": [*before, *changes, *after]}


def settle_jobs(
    turn: TurnTools, state: AgentState, *, end: bool = False, edits: Sequence[FileChange] = ()
) -> list[FileChange]:
    """Record what has changed since the last time while jobs were running, and return it; with `end` they end first.

    `edits` are the changes of the calls since then, oldest first.
    """
    run_id = state.get("run_id", "")
    jobs = turn.machine.jobs(run_id)
    if jobs is None or jobs.are_settled:
        return []

    if end:
        jobs.end()

    changes = jobs.take_changes(turn.workspace(), edits)
    step = state.get("step", 0)
    sink = trace_sink(turn, state)

    if isinstance(changes, Unwatched):
        if jobs.are_settled:
            sink.emit("jobs.unrecorded", {"reason": changes.reason})
        return []

    if changes == CommandChanges():
        return []

    with turn.machine.records.journal(turn.context.workspace, run_id, sink, needed=True) as journal:
        try:
            if isinstance(journal, Journal):
                record_changes(journal.recorder_beside_jobs(run_id, step), changes)
            elif journal is not None:
                sink.emit("jobs.unrecorded", {"reason": journal.message})
        except StoreError as error:
            sink.emit("jobs.unrecorded", {"reason": str(error)})

    return [*file_changes(changes)]


def run_tools(
    turn: TurnTools,
    state: AgentState,
    cancellation: CancellationScope,
    open_children: OpenChildren,
    in_loop: InLoop | None = None,
) -> Update:
    """Run the calls that guard allowed, and charge their time to the turn.

    Once `cancellation` is closed no call begins except the final answer; once it is over nothing changes any more.
    `in_loop` runs async tools in the event loop of the run, `open_children` opens the children.
    """
    machine = turn.machine
    context = turn.context
    items = state["items"]
    verdicts = state["verdicts"]
    missing = check_workspace(context.workspace)
    if isinstance(missing, ToolError):
        return {"results": nothing_done(items, missing)}

    info = get_runtime().execution_info  # LangGraph's task is the same when a step that was cut off is run again
    execution = Execution(state["run_id"], "" if info is None else info.task_id, state.get("step", 0))
    sink = trace_sink(turn, state)
    counts = dict(state.get("tool_counts", {}))
    policy = turn.policy(counts, parent_of(execution.run_id)[0])
    engine = _engine(turn, sink, policy)
    run_call, hooks = _way_to_run(turn, execution.run_id, sink, engine, in_loop)
    delegates = context.delegation and any(item.tool in machine.child_tools for item in items)
    changes_files = delegates or changes_something(items, verdicts, machine.registry)
    spending = state["spending"]

    with machine.records.journal(context.workspace, execution.run_id, sink, needed=changes_files) as journal:
        children = None
        if delegates:
            records = machine.records
            if isinstance(journal, Journal):
                records = records.for_children(context.workspace)
            children = open_children(counts, records)

        resources = StepResources(
            run=run_call,
            registry=machine.registry,
            context=_tool_context(turn, state, sink, cancellation),
            log=turn.log(execution.run_id),
            execution=execution,
            journal=journal,
            as_written=partial(machine.literals.restore, execution.run_id),
            observe=reported_tool_call,
            permit=partial(approved_resources, context),
            beside=partial(_runs_in_parallel, machine, policy),
            children=None if children is None else partial(_run_children, engine, hooks, children),
        )
        update = execute_tools(state, results_of_denied(items, verdicts), resources)

        if children is not None:
            spending = children.spending

    seconds = spending.seconds + update.pop("seconds")
    update |= {"tool_counts": counts, "spending": spending.model_copy(update={"seconds": seconds})}
    return {**update, "results": _with_edits(state, update["results"])}


def _with_edits(state: AgentState, results: Sequence[CallResult]) -> list[CallResult]:
    """Return the results; that of a call with arguments that a person edited names them."""
    edited = list(results)
    for place, verdict in enumerate(state["verdicts"]):  # calls without a verdict are denied
        edited[place] = edited_result(state["items"][place], verdict, edited[place])

    return edited


def restore_files(turn: TurnTools, state: AgentState) -> RestoredWork:
    """Restore the files as they were before the turn, whose work has failed; a resume continues after a kill."""
    run_id = state["run_id"]
    sink = trace_sink(turn, state)
    changed = tuple(net_changes(state["changes"]))
    return turn.machine.records.take_back(turn.workspace(), run_id, state["first_step"], sink, changed)


def results_of_cut_off_step(
    turn: TurnTools, execution: Execution, items: Sequence[ToolCall | CallError]
) -> dict[int, ToolOutcome]:
    """Return the results of the calls that a cut-off step made, by their places."""
    machine = turn.machine
    sink = TraceSink(execution.run_id, str(execution.step), redactor=machine.redactor())

    with machine.records.journal(turn.context.workspace, execution.run_id, sink, needed=True) as journal:
        if not isinstance(journal, Journal):
            return {}
        return recorded_outcomes(journal, machine.registry, turn.workspace(), execution, items)


def trace_sink(turn: TurnTools, state: AgentState) -> TraceSink:
    """Return the trace of a step, whose events go to the readers of the run's "custom" stream."""
    write = get_stream_writer()

    def forward(event: TraceEvent) -> None:
        write({"type": "trace", **vars(event)})

    step = str(state.get("step", 0))
    return TraceSink(state.get("run_id", ""), step, forward=forward, redactor=turn.machine.redactor())


def scope_of(state: AgentState) -> Scope:
    """Return what the calls of a run may change without asking, by what a person typed in its thread."""
    context = state["context"]
    request = ""
    if context.request_permits:
        request = person_requests(state.get("messages") or [])

    return Scope.of(request, context.writable_paths, strict=context.strict, root=context.workspace)


def foreign_to(state: AgentState) -> frozenset[str]:
    """Return the lines of the prompt's examples that an edit of this turn may not contain."""
    return example_lines(state.get("profile", Profile()), state.get("messages") or [])


# --- Resources


def _engine(turn: TurnTools, sink: TraceSink, policy: CallPolicy) -> DelegatingEngine:
    context = turn.context
    longest_s = max([context.tool_timeout_s, *context.tool_timeouts_s.values()])
    config = EngineConfig(async_timeout_s=longest_s)
    return DelegatingEngine(turn.machine.registry, sink, config, policy=policy, redactor=sink.redactor)


def _tool_context(
    turn: TurnTools, state: AgentState, sink: TraceSink, cancellation: CancellationScope | None
) -> ToolContext:
    context = turn.context
    run_id = state["run_id"]
    profile = state["profile"]
    scope = scope_of(state)
    commands = turn.commands(scope)

    seconds_left = inf
    if context.max_seconds is not None:
        seconds_left = context.max_seconds - state["spending"].seconds

    request = ""
    hints = None
    if profile.small:
        request = last_request(state.get("messages") or [])
    if request:
        hints = _hints(request, state)

    return ToolContext(
        workspace=turn.workspace(partial(sink.emit, "sandbox.refused"), scope),
        files_read=state.get("files_read", {}),
        plan=state.get("plan") or Plan(),
        timeout_s=context.tool_timeout_s,
        max_lines=context.read_max_lines,
        seconds_left=seconds_left,
        artifacts=_artifacts(turn, run_id),
        commands=commands,
        network=_network(turn),
        search=turn.search(),
        scope=cancellation,
        syntax_gate=context.syntax_gate,
        checks=turn.checks(),
        changes=state.get("changes") or (),
        session_start=partial(first_hashes, context.workspace, run_id),
        backup=partial(kept_content, context.workspace),
        task=request,
        hints=hints,
        foreign=foreign_to(state),
        evidence_required=bool(request) and is_in_blocks(profile),
        state=state,
        skill=turn.skill,
        servers=turn.machine.mcp_servers(run_id),
        jobs=turn.jobs(commands, run_id),
        remember=partial(_remember, turn, get_runtime().store) if context.memory else None,
    )


def _artifacts(turn: TurnTools, run_id: str) -> Artifacts | None:
    """Return where long results of the thread are kept, separately for each workspace."""
    folder = run_folder(parent_of(run_id)[0])
    if isinstance(folder, ToolError):
        return None

    workspace_hash = sha256(turn.context.workspace.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Artifacts(join(folder, f"results-{workspace_hash}"))


def _network(turn: TurnTools) -> Any:
    if not turn.context.allowed_hosts:
        return None

    from mendgraph.nodes.execute_tools.network.network import Network  # what it imports takes time

    return Network(turn.context.network())


def _hints(request: str, state: AgentState) -> RequestHints | None:
    """Return the checks of a small model's request; None on its last try: a check of words must not end a run."""
    tries = state["loop"].failed_tries if "loop" in state else 0
    if tries + 1 >= state["context"].max_failed_tries:
        return None

    return request_checks(request)


def _remember(turn: TurnTools, store: BaseStore | None, text: str) -> str | ToolError:
    from mendgraph.graph.configuration.memory import Memory

    return Memory(store, turn.context.workspace).remember(text, turn.machine.redactor().text)


# --- How calls run


def _way_to_run(
    turn: TurnTools, run_id: str, sink: TraceSink, engine: Engine, in_loop: InLoop | None
) -> "tuple[RunCall, ShellHooks | None]":
    """Return what runs one call, and the hooks of the workspace around it if the context runs them."""
    run_call: RunCall = engine.run_sync
    if in_loop is not None:
        run_call = partial(_run_in_loop, turn.machine, engine, in_loop)
    if turn.context.hooks == "off":
        return run_call, None

    hooks = open_hooks(turn, run_id, lambda reason: sink.emit("hook.warned", {"reason": reason}))
    return partial(hooks.around, run_call), hooks


def open_hooks(turn: TurnTools, session: str, tell: Callable[[str], None]) -> "ShellHooks":
    """Return the hooks of a turn whose context runs them; `tell` takes warnings for the person."""
    from mendgraph.graph.hooks.shell_hooks import ShellHooks

    machine = turn.machine
    bash = {"allowed_programs": (SHELL,), "writable_paths": (), "tool_timeouts_s": {COMMAND_TOOL: 3_600.0}}
    commands = TurnTools(machine, turn.context.model_copy(update=bash)).commands
    redact = machine.redactor().text
    return ShellHooks(turn.context, session, machine.specs, turn.paths_of, commands, redact, tell)


def _runs_in_parallel(machine: MachineTools, policy: CallPolicy, call: ToolCall) -> bool:
    tool = machine.registry.get(call.tool)
    return tool is not None and call.tool in machine.parallel and not policy.is_in_turn(tool)


def _run_in_loop(
    machine: MachineTools, engine: Engine, in_loop: InLoop, call: ToolCall, context: ToolContext
) -> ToolOutcome:
    """Run an async tool in the event loop, and a sync one in this thread."""
    tool = machine.registry.get(call.tool)
    if tool is None or not (tool.arun or tool.asynchronous):
        return engine.run_sync(call, context)

    run: ToolOutcome = in_loop(engine.run_async(call, context))
    return run


def _run_children(
    engine: DelegatingEngine,
    hooks: "ShellHooks | None",
    children: "Children",
    calls: Mapping[int, ToolCall],
    context: ToolContext,
) -> tuple[list[ToolOutcome], float]:
    """Return the results of `delegate` calls in order, and the seconds that they took; hooks may block some."""
    blocked: dict[int, ToolOutcome] = {}
    if hooks is not None:
        refusals = {place: hooks.refusal(call, context) for place, call in calls.items()}
        blocked = {place: refusal for place, refusal in refusals.items() if refusal is not None}

    places = [place for place in calls if place not in blocked]
    seconds = 0.0

    def perform(allowed: dict[int, JsonMap]) -> dict[int, object]:
        nonlocal seconds
        by_place = {places[number]: arguments for number, arguments in allowed.items()}
        outputs, seconds = children.run(by_place, context.seconds_left)
        return {number: outputs[places[number]] for number in allowed}

    outcomes = engine.side_by_side([calls[place] for place in places], context, perform)
    by_place = blocked | dict(zip(places, outcomes, strict=True))
    return [by_place[place] for place in calls], seconds
