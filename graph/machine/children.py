"""The children of a step: each `delegate` call is a run of the same machine, inside of the step that makes the call.

A child is a subgraph of LangGraph's with a place of its own below the step's, in the same thread: a step that is run
again after a kill, or once a person has answered, goes on with the checkpoints of its children. What they may use is
decided where a row of calls begins: an equal part each of what the turn has left, and one part stays with their run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, nullcontext
from contextvars import copy_context
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.graph.state import CompiledStateGraph

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.state import AgentState
from mendgraph.nodes.call_model import ledger
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.guard.file_rules import outside
from mendgraph.nodes.guard.policy import workspace_relative
from mendgraph.nodes.language.display import LEAST_USD, listed
from mendgraph.nodes.language.history import task_message
from mendgraph.nodes.records import (
    JsonMap,
    Outcome,
    OutcomeKind,
    StopReason,
    ToolError,
    ToolErrorCode,
    ToolResult,
    quoted,
)

_SCRATCHPAD: Final = "__pregel_scratchpad"
_LEAST_S: Final = 0.1


class ParentRun(NamedTuple):
    """The run that the children belong to: the state and the configuration of its step, and its stream writer.

    `compile` makes the machine of children that `stop` ends; `owner` is whose run it is on a server; `in_loop` runs a
    coroutine in the event loop of the run, None where it has none.
    """

    state: AgentState
    config: RunnableConfig
    compile: Callable[[StopRequest], CompiledStateGraph[Any, Any, Any, Any]]
    write: Callable[[Any], None]
    owner: str | None = None
    stop: StopRequest | None = None
    in_loop: Callable[[Any], Any] | None = None


class Children:
    """Runs the children of one step, row by row. `spending` is that of their run, with what they have used."""

    def __init__(self, parent: ParentRun, counts: dict[str, int]) -> None:
        """`counts` are the calls of this turn by tool; those of the children are added."""
        self._parent = parent
        self._counts = counts
        self.spending = parent.state["spending"]

    def run(self, calls: Mapping[int, JsonMap], seconds_left: float) -> tuple[dict[int, ToolOutput], float]:
        """What the children of these calls, by their places, come to; and the seconds that all rows took.

        Raises GraphInterrupt: a child asks a person.
        """
        context = self._parent.state["context"]
        calls = {place: {**call, "paths": _relative(call["paths"], context)} for place, call in calls.items()}
        refused = {place: why for place, call in calls.items() if (why := refusal(context, call["paths"]))}
        outputs = {place: ToolOutput.failed(why) for place, why in refused.items()}
        calls = {place: call for place, call in calls.items() if place not in refused}

        if not calls:
            return outputs, 0.0

        paths = {place: tuple(call["paths"]) for place, call in calls.items()}
        batches = conflict_free_batches(paths, alone=context.mode == "ask")
        part = self._part(len(calls), len(batches), seconds_left)
        if isinstance(part, ToolError):
            return {**outputs, **dict.fromkeys(calls, ToolOutput.failed(part))}, 0.0

        seconds = 0.0

        for places in batches:
            contexts = {place: child_context(context, calls[place]["paths"], part) for place in places}
            ended = self._run_batch({place: (calls[place]["task"], contexts[place]) for place in places})

            for place, values in ended.items():
                outputs[place] = output_of(values["outcome"], values)
                self.spending = ledger.charge_child(self.spending, values["spending"])
                for name, count in (values.get("tool_counts") or {}).items():
                    self._counts[name] = self._counts.get(name, 0) + count

            seconds += max(values["spending"].seconds for values in ended.values())

        return outputs, seconds

    def _part(self, children: int, rows: int, seconds_left: float) -> JsonMap | ToolError:
        """What each child may use, or that there is too little left for them."""
        context = self._parent.state["context"]
        part = ledger.share(self.spending, context.limits(self._parent.state["profile"]), children + 1)
        part["max_seconds"] = None if seconds_left == inf else seconds_left / (rows + 1)
        least = {"max_cost_usd": LEAST_USD, "max_seconds": _LEAST_S}

        for name, most in part.items():
            if most is not None and most < least.get(name, 1):
                message = f"What this run has left of {name} is too little for children: do this part yourself."
                return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=message)

        counts = self._counts
        words = "".join(self._parent.state.get("system_prompt") or ())
        quotas = {name: max(0, most - counts.get(name, 0)) // children for name, most in context.tool_quotas.items()}

        return {**part, "tool_quotas": quotas, "system_prompt": words}

    def _run_batch(self, children: Mapping[int, tuple[str, AgentContext]]) -> dict[int, Mapping[str, Any]]:
        """Run these side by side; their states when they have ended. Whatever ends this wait ends them as well."""
        parent = self._parent
        stop = StopRequest()
        ends = dict[int, Mapping[str, Any]]()
        stop_requested = parent.stop

        def ask() -> None:
            if stop_requested is not None:
                stop.ask(stop_requested.reason, in_step=stop_requested.in_step)

        machine = parent.compile(stop)
        options = {place: self._arguments(place, *child) for place, child in children.items()}

        def follow(place: int) -> None:
            for mode, part in machine.stream(**options[place]):
                self._hear(place, children[place][0], mode, part, ends)

        async def afollow(place: int) -> None:
            async with aclosing(cast("Any", machine.astream(**options[place]))) as parts:
                async for mode, part in parts:
                    self._hear(place, children[place][0], mode, part, ends)

        async def all_of_them() -> list[BaseException | None]:
            return await asyncio.gather(*map(afollow, children), return_exceptions=True)

        with stop_requested.told(ask) if stop_requested else nullcontext():
            if parent.in_loop is not None:
                errors: Sequence[BaseException | None] = parent.in_loop(all_of_them())
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

        return ends

    def _arguments(self, place: int, task: str, context: AgentContext) -> dict[str, Any]:
        """A child as LangGraph runs it: a numbered subgraph of the step, at the same place whenever it runs again."""
        parent = self._parent
        state = self._parent.state
        configurable = parent.config["configurable"]
        # LangGraph numbers subgraphs in order of start; the place is in the namespace, so the number is fixed at 0.
        pad = replace(configurable[_SCRATCHPAD], subgraph_counter=lambda: 0)
        where = {"checkpoint_ns": f"{configurable['checkpoint_ns']}|{state.get('step', 0)}|{place}", _SCRATCHPAD: pad}
        limit = routes.recursion_limit(
            context.max_calls_per_turn, context.provider_retries, len(context.fallback_models)
        )

        return {
            "input": {"messages": [task_message(task, state["messages"])]},
            "config": {**parent.config, "configurable": {**configurable, **where}, "recursion_limit": limit},
            "context": context if parent.owner is None else Admission(context, parent.owner),
            "stream_mode": ["custom", "updates", "values"],
        }

    def _hear(self, place: int, task: str, mode: str, part: Any, ends: dict[int, Mapping[str, Any]]) -> None:
        if mode == "values":
            ends[place] = part
        elif mode == "custom" or "__interrupt__" not in part:  # which its run puts to the person
            step = self._parent.state.get("step", 0)
            event = {"type": "child", "place": f"{step}.{place + 1}", "task": task, "mode": mode, "part": part}
            self._parent.write(event)


def _relative(paths: Sequence[str], context: AgentContext) -> list[str]:
    """The paths as the workspace has them; guard has judged them, so none lies outside."""
    return [workspace_relative(path, context.workspace) or path for path in paths]


def conflict_free_batches(paths: Mapping[int, Sequence[str]], *, alone: bool) -> list[list[int]]:
    """The places in batches that run one after the other: the runs of one batch change no files of each other.

    With `alone` one of them at most may change anything, so that a person is asked by one at a time.
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
    """Why nobody may be given these paths to write, None where the run itself may write there."""
    if not paths:
        return None

    message = "This run may look at files but not change them, so its children may not either: ask for mode 'explore'."
    if context.mode == "read-only":
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
    """What a child may do: a part of the budget, no children of its own, and changes at these paths or none.

    The checks of the whole work are its run's to make, once all parts are there.
    """
    required = {"checks": (), "require_checks": False, "require_changes": False}
    overrides = {"delegation": False, "response_format": None, **required}
    writable = {"writable_paths": tuple(paths)} if paths else {"mode": "read-only"}

    return context.model_copy(update={**overrides, **writable, **part})


def output_of(outcome: Outcome, values: Mapping[str, Any]) -> ToolOutput:
    """What the call of an ended child comes to: its answer, or how it ended without one; its changes and refusals."""
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
