"""The children of a step: each `delegate` call is a run of the same machine, inside of the step that makes the call.

A child is a LangGraph subgraph with a checkpoint namespace below that of the step. So a step that is run again after a
kill, or after an approval, continues the checkpoints of its children. Each child gets an equal part of what the turn
has left, and one part stays with the parent run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, nullcontext
from contextvars import copy_context
from math import inf
from typing import Any, Final, cast

from langgraph.config import get_config, get_stream_writer
from langgraph.errors import GraphInterrupt
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.langgraph_private import subgraph_config
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.endpoint import split_provider
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.guard.file_rules import outside
from mendgraph.nodes.guard.policy import workspace_relative
from mendgraph.nodes.language.display import LEAST_USD, listed
from mendgraph.nodes.language.history import task_message
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.project_notes import visible
from mendgraph.nodes.language.prompt_files import PromptFile, agent_tools
from mendgraph.nodes.parse.reading import CHECKS_TOOL
from mendgraph.nodes.records import (
    Effect,
    JsonMap,
    Outcome,
    OutcomeKind,
    StopReason,
    ToolError,
    ToolErrorCode,
    ToolResult,
    quoted,
)

_LEAST_S: Final = 0.1


class Children:
    """Runs the children of one step in batches. `spending` is that of the parent run, including its children."""

    def __init__(
        self,
        state: AgentState,
        counts: dict[str, int],
        tools: TurnTools,
        compile_machine: Callable[[StopRequest], CompiledStateGraph[Any, Any, Any, Any]],
        stop: StopRequest | None,
        in_loop: Callable[[Any], Any] | None,
    ) -> None:
        """`state` and `tools` are those of the parent run's step, `stop` ends it.

        `counts` are the calls of this turn by tool; those of the children are added. `compile_machine` returns the
        machine of children that a stop request ends. `in_loop` runs a coroutine in the event loop of the run.
        """
        self.spending = state["spending"]
        self._state = state
        self._counts = counts
        self._tools = tools
        self._compile = compile_machine
        self._stop = stop
        self._in_loop = in_loop
        self._config = get_config()
        self._write = get_stream_writer()
        context: object = get_runtime(AgentContext).context
        self._owner = context.owner if isinstance(context, Admission) else None

    def run(self, calls: Mapping[int, JsonMap], seconds_left: float) -> tuple[dict[int, ToolOutput], float]:
        """Return the outputs of these calls by their places, and the seconds that all batches took.

        Raises GraphInterrupt: a child asks a person.
        """
        context = self._state["context"]
        outputs: dict[int, ToolOutput] = {}
        paths: dict[int, list[str]] = {}
        agents: Mapping[str, PromptFile] = {}
        if any(call.get("agent") for call in calls.values()):
            agents = self._tools.agents

        for place, call in calls.items():
            # Guard has judged the paths, so none is outside of the workspace.
            relative = [workspace_relative(path, context.workspace) or path for path in call["paths"]]
            problem = refusal(context, relative) or unknown_agent(call.get("agent", ""), agents)
            if problem is None:
                paths[place] = relative
            else:
                outputs[place] = ToolOutput.failed(problem)

        if not paths:
            return outputs, 0.0

        batches = conflict_free_batches(paths, alone=context.mode == "ask")
        part = self._part(len(paths), len(batches), seconds_left)
        if isinstance(part, ToolError):
            return {**outputs, **dict.fromkeys(paths, ToolOutput.failed(part))}, 0.0

        seconds = 0.0

        for places in batches:
            tasks: dict[int, tuple[str, AgentContext]] = {}
            for place in places:
                child = child_context(context, paths[place], part)
                agent = agents.get(calls[place].get("agent", ""))
                if agent is not None:
                    child = agent_context(child, agent, self._tools.machine)

                tasks[place] = (calls[place]["task"], child)

            ended = self._run_batch(tasks)

            for place, values in ended.items():
                outputs[place] = output_of(values["outcome"], values)
                self.spending = ledger.charge_child(self.spending, values["spending"])
                for name, count in (values.get("tool_counts") or {}).items():
                    self._counts[name] = self._counts.get(name, 0) + count

            seconds += max(values["spending"].seconds for values in ended.values())

        return outputs, seconds

    def _part(self, children: int, batches: int, seconds_left: float) -> JsonMap | ToolError:
        """Return what each child may use, or the error that too little is left."""
        context = self._state["context"]
        part = ledger.share(self.spending, context.limits(self._state["profile"]), children + 1)
        part["max_seconds"] = None if seconds_left == inf else seconds_left / (batches + 1)
        least = {"max_cost_usd": LEAST_USD, "max_seconds": _LEAST_S}

        for name, most in part.items():
            if most is not None and most < least.get(name, 1):
                message = f"What this run has left of {name} is too little for children: do this part yourself."
                return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=message)

        counts = self._counts
        system_prompt = "".join(self._state.get("system_prompt") or ())
        quotas = {name: max(0, most - counts.get(name, 0)) // children for name, most in context.tool_quotas.items()}

        return {**part, "tool_quotas": quotas, "system_prompt": system_prompt}

    def _run_batch(self, children: Mapping[int, tuple[str, AgentContext]]) -> dict[int, Mapping[str, Any]]:
        """Run these children side by side and return their final states. An exception here ends them as well."""
        stop = StopRequest()
        states = dict[int, Mapping[str, Any]]()
        stop_requested = self._stop

        def ask() -> None:
            if stop_requested is not None:
                stop.ask(stop_requested.reason, in_step=stop_requested.in_step)

        machine = self._compile(stop)
        options = {place: self._arguments(place, *child) for place, child in children.items()}

        def follow(place: int) -> None:
            for mode, part in machine.stream(**options[place]):
                self._forward(place, children[place][0], mode, part, states)

        async def afollow(place: int) -> None:
            async with aclosing(cast("Any", machine.astream(**options[place]))) as parts:
                async for mode, part in parts:
                    self._forward(place, children[place][0], mode, part, states)

        async def follow_all() -> list[BaseException | None]:
            return await asyncio.gather(*map(afollow, children), return_exceptions=True)

        with stop_requested.listening(ask) if stop_requested else nullcontext():
            if self._in_loop is not None:
                errors: Sequence[BaseException | None] = self._in_loop(follow_all())
            else:
                with ThreadPoolExecutor(len(children)) as pool:
                    futures = [pool.submit(copy_context().run, follow, place) for place in children]
                    try:
                        errors = [future.exception() for future in futures]
                    except BaseException:
                        stop.ask("with the run that it is a part of")
                        raise

        # A failure goes before an interrupt.
        failed = [error for error in errors if error is not None]
        for error in sorted(failed, key=lambda failure: isinstance(failure, GraphInterrupt)):
            raise error

        return states

    def _arguments(self, place: int, task: str, context: AgentContext) -> dict[str, Any]:
        """Return the arguments of a child's stream. Its namespace is the same whenever it runs again."""
        state = self._state
        config = subgraph_config(self._config, f"{state.get('step', 0)}|{place}")

        return {
            "input": {"messages": [task_message(task, state["messages"])]},
            "config": {**config, "recursion_limit": routes.limit_of_run(context)},
            "context": context if self._owner is None else Admission(context, self._owner),
            "stream_mode": ["custom", "updates", "values"],
        }

    def _forward(self, place: int, task: str, mode: str, part: Any, states: dict[int, Mapping[str, Any]]) -> None:
        if mode == "values":
            states[place] = part
        elif mode == "custom" or "__interrupt__" not in part:  # the parent run sends interrupts
            step = self._state.get("step", 0)
            event = {"type": "child", "place": f"{step}.{place + 1}", "task": task, "mode": mode, "part": part}
            self._write(event)


def conflict_free_batches(paths: Mapping[int, Sequence[str]], *, alone: bool) -> list[list[int]]:
    """Return the places in batches that run one after the other. The runs of a batch change different files.

    With `alone` at most one run of a batch may change files, so that only one asks a person at a time.
    """
    batches: list[list[int]] = []
    batch_of: dict[int, int] = {}

    for place, change_paths in paths.items():
        number = 0
        for other, other_number in batch_of.items():
            if change_paths and paths[other] and (alone or _overlap(change_paths, paths[other])):
                number = max(number, other_number + 1)

        if number == len(batches):
            batches.append([])

        batch_of[place] = number
        batches[number].append(place)

    return batches


def _overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    return [*outside(some, others)] != [*some] or [*outside(others, some)] != [*others]


def refusal(context: AgentContext, paths: Sequence[str]) -> ToolError | None:
    """Return why a child may not write these paths: its parent may not."""
    if not paths:
        return None

    message = "This run may look at files but not change them, so its children may not either: ask for mode 'explore'."
    if context.is_read_only:
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    writable = context.writable_paths
    denied = outside(paths, writable) if writable else []
    if not denied:
        return None

    message = (
        f"This run may not change {quoted(denied[0])}, so a child may not either: name paths in {listed(writable)}."
    )

    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def child_context(context: AgentContext, paths: Sequence[str], part: JsonMap) -> AgentContext:
    """Return the context of a child: a part of the budget, no children, no questions, changes of these paths or none.

    The parent run makes the required checks, after all children.
    """
    required = {"checks": (), "require_checks": False, "require_changes": False}
    overrides = {"delegation": False, "response_format": None, "questions": False, "on_limit": "stop", **required}
    writable = {"writable_paths": tuple(paths)} if paths else {"mode": "read-only"}

    return context.model_copy(update={**overrides, **writable, **part})


def unknown_agent(name: str, agents: Mapping[str, PromptFile]) -> ToolError | None:
    """Return the error of a call that names an agent which does not exist."""
    if not name or name in agents:
        return None

    close = tuple(closest_names(name, agents))
    message = f"There is no agent {name!r} here: choose one of {listed(agents)}, or omit `agent`."
    if not agents:
        message = f"There is no agent {name!r}, because there are no agents here: omit `agent`."

    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=close)


def agent_context(context: AgentContext, agent: PromptFile, machine: MachineTools) -> AgentContext:
    """Return the context of a child that works as this agent: with its instructions, and the tools that it names.

    Its model is used if the run names it among its fallback models; names of other agents' models mean nothing here.
    """
    text = machine.redactor().text(visible(agent.text)).strip()
    instructions = f"You work as the agent {agent.name}, which a file describes:\n\n{text}"
    prompt = "\n\n".join(filter(None, [context.system_prompt, instructions]))

    with_effect = {name for name, spec in machine.specs.items() if spec.effect is not Effect.NONE} - {CHECKS_TOOL}
    denied = with_effect - agent_tools(agent, with_effect)
    update: JsonMap = {"system_prompt": prompt, "tool_quotas": {**context.tool_quotas, **dict.fromkeys(denied, 0)}}

    model = agent.fields.get("model", "")
    if model in context.fallback_models and " @ " not in model:
        others = tuple(name for name in context.fallback_models if name != model)
        update |= {"model": model, "fallback_models": others}
        if split_provider(model)[0]:  # the address is the other provider's
            update["base_url"] = None

    return context.model_copy(update=update)


def output_of(outcome: Outcome, values: Mapping[str, Any]) -> ToolOutput:
    """Return the output of a child's call: its answer or how it ended without one, with its changes and refusals."""
    changes = tuple(values.get("changes") or ())
    data: JsonMap = {"child_refused": list(outcome.refused)} if outcome.refused else {}

    if outcome.kind is OutcomeKind.FINISHED:
        data |= {"answer": outcome.answer, "ended": outcome.kind.value}

        if outcome.changed_files:
            verification = outcome.verified.model_dump(mode="json", exclude_defaults=True)
            data |= {
                "changed_files": list(outcome.changed_files),
                "verified": {"kind": outcome.verified.kind, **verification},
            }

        return ToolOutput(ToolResult(ok=True, data=data), changes)

    if outcome.reason.is_limit:
        code = ToolErrorCode.RESOURCE_LIMIT
    else:
        code = ToolErrorCode.CHILD_FAILED

    if outcome.reason is StopReason.CANCELLED:
        code = ToolErrorCode.CANCELLED

    if outcome.changed_files:
        changed = f" It has changed {', '.join(outcome.changed_files)}."
    else:
        changed = ""

    message = f"The child ended without an answer ({outcome.kind.value}, {outcome.reason.value}): {outcome.message}"
    error = ToolError(code=code, message=f"{message}{changed}")
    return ToolOutput(ToolResult(ok=False, data=data, error=error), changes)
