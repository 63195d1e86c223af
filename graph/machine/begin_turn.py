"""The beginning of a turn: its context, its services, and what is checked before anything is spent."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
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
    refusal,
    run_id_of,
)
from mendgraph.graph.machine.langgraph_private import has_checkpointer
from mendgraph.graph.machine.models import TurnModel
from mendgraph.graph.machine.run_records import REQUEST_ID, is_resuming
from mendgraph.graph.machine.small_models import preload_of
from mendgraph.graph.machine.state import AgentState, RaisedLimits, Update
from mendgraph.graph.machine.tool_step import results_of_cut_off_step
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.graph.machine.workspace import WorkspaceFiles
from mendgraph.nodes.begin_turn import node
from mendgraph.nodes.begin_turn.turn import CallsMade, TurnResources
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.call_state import CallSettings
from mendgraph.nodes.call_model.window import WHOLE
from mendgraph.nodes.execute_tools.run_call import Execution
from mendgraph.nodes.guard.policy import edited_result, judge_workspace
from mendgraph.nodes.language.history import last_request
from mendgraph.nodes.language.project_notes import most_bytes
from mendgraph.nodes.parse.answers import schema_problem
from mendgraph.nodes.parse.reading import ANSWER_TOOL
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    JsonMap,
    Profile,
    Protocol,
    StopCause,
    ToolCall,
    ToolError,
    ToolSpec,
)
from mendgraph.nodes.workspace.files.sandbox import check_workspace

if TYPE_CHECKING:
    from mendgraph.graph.configuration.memory import Note


class CallPlan(NamedTuple):
    """What all model calls of a turn with this profile have in common, until the model finds more tools."""

    profile: Profile
    settings: CallSettings
    tools: tuple[ToolSpec, ...]
    discovered: frozenset[str] = frozenset()


class TurnServices:
    """The tools and the model of one turn, for all its steps."""

    def __init__(self, context: AgentContext, tools: TurnTools, model: TurnModel) -> None:
        self.context = context
        self.tools = tools
        self.model = model
        self._call_plan: CallPlan | None = None

    def call_plan(self, state: AgentState) -> CallPlan:
        """Return how the calls of the turn are made and paid, and which tools the model is offered."""
        profile = state["profile"]
        discovered = self.tools.discovered_tools(state.get("messages") or ())
        plan = self._call_plan
        if plan is None or plan.profile is not profile or plan.discovered != discovered:
            settings = self.model.settings(profile, state.get("run_id", ""))
            plan = CallPlan(profile, settings, self.tools.offered(profile, discovered), discovered)
            self._call_plan = plan

        return plan


ServicesOf = Callable[[AgentContext], TurnServices]
"""Returns the services of the turn with this context."""


@dataclass(frozen=True)
class ContextPolicy:
    """Which context a turn gets: `default` if its run has none, with the fields of `overrides` in every case.

    With `served` every run is that of a server's client. A turn `of_child` gets its context from its parent run.
    """

    default: AgentContext | None
    overrides: Mapping[str, Any]
    served: bool = False
    of_child: bool = False

    def for_children(self) -> "ContextPolicy":
        """Return the policy of the children of a run, to which a `response_format` does not apply."""
        overrides = {name: value for name, value in self.overrides.items() if name == "system_prompt"}
        return replace(self, overrides=overrides, of_child=True)

    def context_of(self, runtime: Runtime[AgentContext], stored: AgentContext | None) -> AgentContext | StopCause:
        """Return the context of the turn before overrides, or why it is refused; `stored` is the last turn's.

        LangGraph's servers say who they are in each run's configuration, where no client can remove it.
        """
        context: object = runtime.context
        is_admitted = isinstance(context, Admission) or self.of_child
        if not is_admitted and (self.served or runtime.server_info):
            if context is None and not runtime.server_info:  # a server makes a context of `configurable`
                context = configurable_settings(get_config().get("configurable", {}))
            context = client_context(context, self.default)
            if isinstance(context, StopCause):
                return context

        return given_context(context, self.default, stored)

    def request_permits(self, runtime: Runtime[AgentContext]) -> bool:
        """Return whether the request comes from the user, so that the files it names may be changed."""
        is_served = isinstance(runtime.context, Admission) or self.served or bool(runtime.server_info)
        return not is_served and not os.environ.get("GITHUB_ACTIONS")


def begin_turn(
    state: AgentState,
    runtime: Runtime[AgentContext],
    policy: ContextPolicy,
    services_of: ServicesOf,
    scrub: Callable[[str], str],
) -> Update:
    """Store the turn's context, start its counters, and check what can be checked before anything is spent.

    `scrub` removes secrets from text.
    """
    source = policy.context_of(runtime, state.get("context"))
    if isinstance(source, StopCause):
        return _refuse_turn(state, source, services_of, scrub)

    context, prompt, problem = _turn_context(state, runtime, policy, source)
    problem = problem or _context_problem(services_of(context))
    run_id = run_id_of(runtime) or state.get("run_id") or uuid4().hex
    notes: Sequence[Note] | ToolError = ()

    if context.memory and problem is None:
        from mendgraph.graph.configuration.memory import Memory

        notes = Memory(runtime.store, context.workspace).notes()

    if isinstance(notes, ToolError):
        trace_event(run_id, "memory.unavailable", {"reason": notes.message})
        context = context.model_copy(update={"memory": False})
        notes = ()

    turn = services_of(context)
    messages = state.get("messages") or []
    marked = bool(messages) and str(messages[-1].id).startswith(REQUEST_ID)
    spending = turn.model.spent_before(state.get("spending"), run_id, marked=marked)
    update = node.begin_turn(state, _turn_resources(state, turn, problem, run_id, notes, scrub))
    window = state.get("window") or WHOLE

    if window.tokens is not None:  # the model may be another one now
        update["window"] = window.model_copy(update={"tokens": None})

    if not update["stop"]:
        for name, reason in turn.tools.missing_resources(run_id).items():
            trace_event(run_id, name, {"reason": reason})

    update |= {"context": context, "system_prompt": prompt, "run_id": run_id, "tool_counts": {}}
    if state.get("raised_limits"):
        update["raised_limits"] = lasting_raises(state["raised_limits"], context)
        report_raises(run_id, update["raised_limits"])

    update["spending"] = ledger.begin_turn(spending)
    return {**update, "first_step": state.get("step", 0) + 1}


def _turn_context(
    state: AgentState, runtime: Runtime[AgentContext], policy: ContextPolicy, source: AgentContext
) -> tuple[AgentContext, list[str], StopCause | None]:
    """Return the context of the turn, the user's system prompt, stored beside it, and why the turn cannot run."""
    stored_prompt = state.get("system_prompt") if source is state.get("context") else None
    fields = {"system_prompt": source.system_prompt, **policy.overrides}
    prompt = [fields["system_prompt"]]
    if stored_prompt and not fields["system_prompt"]:
        prompt = stored_prompt

    fields["system_prompt"] = ""
    fields |= {name: value for name, (_, value) in lasting_raises(state.get("raised_limits") or {}, source).items()}
    if not policy.request_permits(runtime):
        fields["request_permits"] = False

    problem = None
    root = check_workspace(source.workspace)
    if isinstance(root, ToolError):
        problem = refusal(root.message)
    else:
        fields["workspace"] = root

    outcome = state.get("outcome")
    if outcome is not None and outcome.changed_files and is_resuming(last_request(state.get("messages") or [])):
        fields["require_changes"] = False  # there may be nothing left to change

    return source.model_copy(update=fields), prompt, problem


def lasting_raises(raised: RaisedLimits, context: AgentContext) -> RaisedLimits:
    """Return those of the `raised` limits of an earlier turn that are limits of the thread.

    They hold in a context in which a person may raise limits, until the setting is changed.
    """
    if context.on_limit != "ask":
        return {}

    return {
        name: values
        for name, values in raised.items()
        if (name.endswith("_per_session") or name == "max_cost_usd") and getattr(context, name) in values
    }


def _refuse_turn(state: AgentState, cause: StopCause, services_of: ServicesOf, scrub: Callable[[str], str]) -> Update:
    """End the turn before anything is read or changed. Its context is the last turn's.

    A thread that has none gets none: a client of a server could go on with defaults, past what its operator allows.
    """
    profile = services_of(AgentContext()).model.profile()
    update = node.begin_turn(state, TurnResources(profile, cause, Overwrite, scrub, None))
    spending = ledger.begin_turn(state.get("spending") or ledger.Spending())
    run_id = state.get("run_id") or uuid4().hex
    update |= {"run_id": run_id, "spending": spending, "tool_counts": {}}
    if state.get("context"):
        update["context"] = state["context"]

    return update


def _turn_resources(
    state: AgentState,
    turn: TurnServices,
    problem: StopCause | None,
    run_id: str,
    notes: "Sequence[Note]",
    scrub: Callable[[str], str],
) -> TurnResources:
    context = turn.context
    tools = turn.tools
    profile = turn.model.profile()
    last_profile = state.get("profile")
    if context.protocol == "auto" and last_profile == profile.model_copy(update={"protocol": Protocol.TEXT}):
        profile = last_profile  # the thread has switched to the text protocol

    resources = TurnResources(
        profile,
        problem,
        Overwrite,
        scrub,
        None,
        root=context.workspace,
        model_name=turn.model.display_name,
        refused_media=turn.model.refused_media,
        calls_made=partial(_calls_made, state, tools, run_id),
        specs=tools.machine.specs,
        remembered=() if profile.small else [note.text for note in notes],
        tell=partial(trace_event, run_id),
    )
    if problem is not None:
        return resources

    usable = tools.usable()
    files = WorkspaceFiles(tools.workspace())
    skills = chain(files.skills(), tools.skills) if "read_file" in usable else tools.skills
    preload = None
    if context.read_ahead and "read_file" in usable:
        can_check = profile.small and "run_checks" in usable and tools.can_check()
        preload = preload_of(profile, checked=can_check)

    most_notes = most_bytes(profile, turn.model.window_tokens(profile)) if context.project_notes else 0
    agents = {name: agent.description for name, agent in tools.agents.items()} if most_notes else {}
    return replace(resources, files=files, preload=preload, most_notes=most_notes, skills=skills, agents=agents)


def _calls_made(state: AgentState, tools: TurnTools, run_id: str, items: list[ToolCall | CallError]) -> CallsMade:
    """Return the results of the calls of a step that was cut off, and the hashes of the files that they used."""
    verdicts = state.get("verdicts") or []
    results: dict[int, CallResult] = {}
    files_read: dict[str, str] = {}

    runs = results_of_cut_off_step(tools, Execution(run_id, "", state.get("step", 0)), items)
    for place, run in runs.items():
        results[place] = edited_result(items[place], verdicts[place], run.as_record())
        files_read.update(run.output.files_read)

    return results, files_read


def _context_problem(turn: TurnServices) -> StopCause | None:
    """Return why no run can be made with this context, although each of its fields is valid."""
    message = judge_workspace(turn.context.workspace, turn.tools.rules())
    message = message or _tools_problem(turn) or _settings_problem(turn)
    return refusal(message) if message else None


def _tools_problem(turn: TurnServices) -> str | None:
    context = turn.context
    tools = turn.tools
    asking = {
        "mode 'ask'": context.mode == "ask",
        "questions=True": context.questions,
        "on_limit='ask'": context.on_limit == "ask",
    }
    for setting, is_set in asking.items():
        if is_set and not has_checkpointer(get_config()):
            return f"{setting} needs a checkpointer: without one the run cannot wait for a person's answer."

    if isinstance(tools.allowed, ToolError):
        return tools.allowed.message

    checks = tools.checks() if context.checks else None
    if isinstance(checks, ToolError):
        return f"The checks of this run cannot be run. {checks.message}"
    if context.is_read_only and context.require_changes:
        return f"A run in mode '{context.mode}' changes no file, so it cannot have require_changes."
    if (context.checks or context.require_checks) and "run_checks" not in tools.machine.specs:
        return "This agent has no tool run_checks, so no check can be run: add it to its tools."

    return None


def _settings_problem(turn: TurnServices) -> str | None:
    context = turn.context
    for problem in (*context.network_problems(), turn.tools.unknown_tools(), turn.model.problem()):
        if problem:
            return problem

    if context.response_format is None:
        return None
    if not turn.tools.machine.specs[ANSWER_TOOL].offered:
        return "This agent has no tool final_answer, so no response_format can be asked for: add it to its tools."
    return schema_problem(context.response_format)


def trace_event(run_id: str, name: str, payload: JsonMap, step: int = 0) -> None:
    """Write a trace event to the readers of the run's "custom" stream."""
    event = {"name": name, "payload": payload, "run_id": run_id, "step_id": str(step), "ms": 0}
    get_stream_writer()({"type": "trace", **event})


def report_raises(run_id: str, raised: RaisedLimits, step: int = 0) -> None:
    """Write the limits that a person has raised as a trace event."""
    limits = {name: value for name, (_, value) in raised.items()}
    trace_event(run_id, "limits.raised", {"limits": limits}, step)
