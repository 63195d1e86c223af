"""The beginning of a turn: which context it gets, whether it can run, and what its first step starts from."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import Runtime
from langgraph.types import Overwrite

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import (
    Admission,
    client_context,
    configurable_settings,
    given_context,
    run_id_of,
)
from mendgraph.graph.machine.run_records import REQUEST_ID, is_resuming
from mendgraph.graph.machine.small_models import preload_of
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_step import results_of_cut_off_step
from mendgraph.graph.machine.turn_services import Turns, TurnServices
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.graph.machine.workspace import WorkspaceFiles
from mendgraph.nodes.begin_turn.node import begin_turn
from mendgraph.nodes.begin_turn.turn_start import Made, TurnResources
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.run_call import Execution
from mendgraph.nodes.guard.policy import edited_result, judge_workspace
from mendgraph.nodes.language.history import last_request
from mendgraph.nodes.language.project_notes import SkillFolder, most_bytes
from mendgraph.nodes.parse.answers import schema_problem
from mendgraph.nodes.parse.reading import ANSWER_TOOL
from mendgraph.nodes.records import CallError, CallResult, JsonMap, Protocol, StopCause, ToolCall, ToolError

if TYPE_CHECKING:
    from mendgraph.graph.machine.memory import Note


@dataclass(frozen=True)
class ContextPolicy:
    """Which context a turn gets: `default` where it is given none, with the fields of `overrides` in every case.

    With `served` every run is that of a server's client. A turn `of_child` gets its context from its parent run.
    """

    default: AgentContext | None
    overrides: Mapping[str, Any]
    served: bool = False
    of_child: bool = False

    def for_children(self) -> "ContextPolicy":
        """The policy of the children of a run, to which a `response_format` does not apply."""
        overrides = {name: value for name, value in self.overrides.items() if name == "system_prompt"}
        return replace(self, overrides=overrides, of_child=True)

    def requested(self, runtime: Runtime[AgentContext]) -> object:
        """The context that the run was given, or what a client may have of it where it comes through a server.

        LangGraph's servers say who they are in each run's configuration, where no client can remove it.
        """
        context: object = runtime.context
        if isinstance(context, Admission) or self.of_child:
            return context
        if not self.served and not runtime.server_info:
            return context

        if context is None and not runtime.server_info:  # a server makes a context of it
            context = configurable_settings(get_config().get("configurable", {}))

        allowed = client_context(context, self.default)
        if isinstance(allowed, StopCause):
            return Admission(allowed, "")

        return allowed

    def restrictions(self, runtime: Runtime[AgentContext]) -> JsonMap:
        """Fields of the context of a run whose request may come from somebody who is not the user."""
        context: object = runtime.context
        is_served = isinstance(context, Admission) or self.served or bool(runtime.server_info)
        if is_served or os.environ.get("GITHUB_ACTIONS"):
            return {"request_permits": False}

        return {}


def start_turn(
    state: AgentState,
    runtime: Runtime[AgentContext],
    policy: ContextPolicy,
    turns: Turns,
    scrub: Callable[[str], str],
) -> Update:
    """Store the turn's context, start its counters, and check what can be checked before anything is spent.

    `scrub` removes secrets from text.
    """
    source = given_context(policy.requested(runtime), policy.default, state.get("context"))
    if isinstance(source, StopCause):
        return _refuse_turn(state, source, turns, scrub)

    context, prompt, problem = _turn_context(state, runtime, policy, source)
    problem = problem or _context_problem(turns.services(context)) or ""
    run_id = run_id_of(runtime) or state.get("run_id") or uuid4().hex
    notes: Sequence[Note] | ToolError = ()
    if context.memory and not problem:
        from mendgraph.graph.machine.memory import Memory

        notes = Memory(runtime.store, context.workspace).notes()

    if isinstance(notes, ToolError):
        trace_event(run_id, "memory.unavailable", {"reason": notes.message})
        context = context.model_copy(update={"memory": False})
        notes = ()

    messages = state.get("messages") or []
    outcome = state.get("outcome")
    if outcome is not None and outcome.changed_files and is_resuming(last_request(messages)):
        context = context.model_copy(update={"require_changes": False})  # there may be nothing left to change

    turn = turns.services(context)
    marked = bool(messages) and str(messages[-1].id).startswith(REQUEST_ID)
    spending = turn.model.spent_before(state.get("spending"), run_id, marked=marked)
    update = begin_turn(state, _turn_resources(state, turn, problem or None, run_id, notes, scrub))
    window = state.get("window") or WHOLE

    if window.tokens is not None:  # the model may be another one now
        update["window"] = window.model_copy(update={"tokens": None})

    if not update["stop"]:
        _report_missing(turn, run_id)

    update |= {"context": context, "system_prompt": prompt, "run_id": run_id, "tool_counts": {}}
    update["spending"] = ledger.begin_turn(spending)
    return {**update, "first_step": state.get("step", 0) + 1}


def _turn_context(
    state: AgentState, runtime: Runtime[AgentContext], policy: ContextPolicy, source: AgentContext | str
) -> tuple[AgentContext, list[str], str]:
    """The context of the turn, the user's system prompt, which is stored beside it, and what is wrong with them."""
    problem = ""
    context = AgentContext()
    if isinstance(source, AgentContext):
        context = source
    else:
        problem = source

    stored_prompt = state.get("system_prompt") if context is state.get("context") else None
    context = context.model_copy(update=policy.overrides)
    prompt = [context.system_prompt]
    if stored_prompt and not context.system_prompt:
        prompt = stored_prompt

    context = context.model_copy(update={"system_prompt": "", **policy.restrictions(runtime)})
    root = check_workspace(context.workspace)
    if isinstance(root, ToolError):
        problem = problem or root.message
    else:
        context = context.model_copy(update={"workspace": root})

    return context, prompt, problem


def _report_missing(turn: TurnServices, run_id: str) -> None:
    for name, reason in turn.tools.missing_resources(run_id).items():
        trace_event(run_id, name, {"reason": reason})


def _refuse_turn(state: AgentState, cause: StopCause, turns: Turns, scrub: Callable[[str], str]) -> Update:
    """End the turn before anything is read or changed. Its context is the last one's.

    A thread that has none gets none: a client of a server could go on with defaults, past what its operator allows.
    """
    profile = turns.services(AgentContext()).model.profile()
    update = begin_turn(state, TurnResources(profile, cause.message, Overwrite, scrub, None))
    spending = ledger.begin_turn(state.get("spending") or ledger.Spending())
    run_id = state.get("run_id") or uuid4().hex
    update |= {"stop": cause, "run_id": run_id, "spending": spending, "tool_counts": {}}
    if state.get("context"):
        update["context"] = state["context"]

    return update


def _turn_resources(
    state: AgentState,
    turn: TurnServices,
    problem: str | None,
    run_id: str,
    notes: "Sequence[Note]",
    scrub: Callable[[str], str],
) -> TurnResources:
    context = turn.context
    tools = turn.tools
    profile = turn.model.profile()
    last_profile = state.get("profile")
    if context.protocol == "auto" and last_profile == profile.model_copy(update={"protocol": Protocol.TEXT}):
        profile = last_profile  # the thread has gone over to the text protocol

    usable = tools.usable
    reads_files = "read_file" in usable
    files = None
    skills: Iterable[SkillFolder] = tools.skills
    if not problem:
        files = WorkspaceFiles(tools.workspace())
        if reads_files:
            skills = chain(files.skills(), skills)

    preload = None
    if context.read_ahead and reads_files:
        can_check = profile.small and "run_checks" in usable and tools.can_check
        preload = preload_of(profile, checked=can_check)

    most_notes = 0
    if context.project_notes:
        most_notes = most_bytes(profile, turn.model.window_tokens(profile))

    return TurnResources(
        profile,
        problem,
        Overwrite,
        scrub,
        files,
        root=context.workspace,
        model_name=turn.model.display_name,
        refused_media=turn.model.refused_media,
        calls_made=partial(_calls_made, state, tools, run_id),
        specs=tools.machine.specs,
        preload=preload,
        most_notes=most_notes,
        skills=skills,
        remembered=() if profile.small else [note.text for note in notes],
        tell=partial(trace_event, run_id),
    )


def _calls_made(state: AgentState, tools: TurnTools, run_id: str, items: list[ToolCall | CallError]) -> Made:
    """The results of the calls of a step that was cut off, and the hashes of the files that they read."""
    verdicts = state.get("verdicts") or []
    results: dict[int, CallResult] = {}
    files_read: dict[str, str] = {}

    runs = results_of_cut_off_step(tools, Execution(run_id, "", state.get("step", 0)), items)
    for place, run in runs.items():
        results[place] = edited_result(items[place], verdicts[place], run.as_record())
        files_read.update(run.output.files_read)

    return results, files_read


def _context_problem(turn: TurnServices) -> str | None:
    """Why no run can be made with this context, although each of its fields is fine by itself."""
    context = turn.context
    tools = turn.tools
    specs = tools.machine.specs

    secret = judge_workspace(context.workspace, tools.rules())
    if secret is not None:
        return secret

    saver = get_config()["configurable"].get("__pregel_checkpointer", ...)
    if context.mode == "ask" and saver is None:
        return "mode 'ask' needs a checkpointer: without one the run cannot wait for a person's answer."
    if isinstance(tools.allowed, ToolError):
        return tools.allowed.message

    checks = tools.checks() if context.checks else None
    if isinstance(checks, ToolError):
        return f"The checks of this run cannot be run. {checks.message}"
    if context.mode == "read-only" and context.require_changes:
        return "A run in mode 'read-only' changes no file, so it cannot have require_changes."
    if (context.checks or context.require_checks) and "run_checks" not in specs:
        return "This agent has no tool run_checks, so no check can be run: add it to its tools."

    for problem in (*context.network_problems(), tools.unknown_tools(), turn.model.problem()):
        if problem:
            return problem

    if context.response_format is not None and not specs[ANSWER_TOOL].offered:
        return "This agent has no tool final_answer, so no response_format can be asked for: add it to its tools."

    return schema_problem(context.response_format or {})


def trace_event(run_id: str, name: str, payload: JsonMap, step: int = 0) -> None:
    """Write an event of the trace to whoever streams the run."""
    event = {"name": name, "payload": payload, "run_id": run_id, "step_id": str(step), "ms": 0}
    get_stream_writer()({"type": "trace", **event})
