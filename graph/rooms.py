"""The nodes of one machine, bound to its tools, its rules and its model.

Each method is one node: it takes the node's slice of the state with the turn's stored context, and calls the room.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import Runtime
from langgraph.types import Overwrite

from graph.context import AgentContext
from graph.slices import (
    BeginTurnSlice,
    CallModelSlice,
    ExecuteToolsSlice,
    GuardSlice,
    HealSlice,
    LoopCheckSlice,
    ParseSlice,
    StopSlice,
)
from graph.state import Update
from nodes.begin_turn.node import begin_turn
from nodes.call_model import ledger
from nodes.call_model.client import Connections
from nodes.call_model.driver import OnText, OnWait
from nodes.call_model.exchange import CallSettings
from nodes.call_model.model import Model
from nodes.call_model.node import acall_model, call_model
from nodes.call_model.offered_tools import offered_tools
from nodes.call_model.turn_view import TurnView, view_turn
from nodes.execute_tools.cache import ToolCache
from nodes.execute_tools.engine import Engine, EngineConfig
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.node import execute_tools
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from nodes.execute_tools.tools import default_tools
from nodes.execute_tools.trace import TraceEvent, TraceSink
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.node import judge_step
from nodes.guard.policy import GuardConfig, judge_path
from nodes.guard.verdicts import results_of_denied
from nodes.heal.node import heal
from nodes.language.dialects import read_dialect
from nodes.loop_check.node import check
from nodes.loop_check.signature import signature_of
from nodes.parse.answer_schema import answer_problems, schema_problem
from nodes.parse.node import parse
from nodes.parse.reading import Reader, check_call
from nodes.records import (
    CallError,
    Correction,
    EditForm,
    Effect,
    JsonMap,
    ModelReply,
    OutcomeKind,
    Plan,
    Profile,
    ProviderFailure,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolSpec,
)
from nodes.stop.node import finish, give_up


class Rooms:
    """All nodes of one machine. Holds no state of a run."""

    def __init__(self, model: Model | None, tools: Sequence[Tool] | None, rules: tuple[FileGuardrailRule, ...]) -> None:
        """Bind the nodes; nothing is opened or connected yet."""
        self._registry = ActionRegistry(default_tools() if tools is None else tools)
        self._specs = {spec.name: spec for spec in self._registry.specs()}
        self._terminal = frozenset(spec.name for spec in self._specs.values() if spec.terminal)
        self._writing = frozenset(spec.name for spec in self._specs.values() if spec.effect is Effect.WRITE)
        self._rules = rules
        self._model = model
        self._connections = Connections(lambda: os.environ)
        self._judge = partial(judge_path, rules=rules)

    def close(self) -> None:
        """Close the connections that the nodes opened for sync calls."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls."""
        await self._connections.aclose()

    def begin_turn(self, state: BeginTurnSlice, runtime: Runtime[AgentContext]) -> Update:
        """Store the turn's context, start its counters, and check what can be checked before anything is spent."""
        context = runtime.context or state.get("context") or AgentContext()
        spending = ledger.begin_turn(state.get("spending") or ledger.Spending())
        root = check_workspace(context.workspace)
        problem = root.message if isinstance(root, ToolError) else _context_problem(context)
        folder = context.workspace if isinstance(root, ToolError) else root
        workspace = None if problem else Workspace(folder, self._judge)
        exists = workspace.exists if workspace else lambda _: False
        files = partial(_readable_files, workspace)
        update = begin_turn(state, self._profile(context), problem, exists, files, Overwrite)
        return {**update, "context": context.model_copy(update={"workspace": folder}), "spending": spending}

    def call_model(self, state: CallModelSlice) -> Update:
        """Make the next model call."""
        settings, specs = self._call_settings(state), self._tool_specs(state)
        return call_model(state, settings, specs, self._connect, *_listeners())

    async def acall_model(self, state: CallModelSlice) -> Update:
        """Make the next model call without blocking the event loop."""
        settings, specs = self._call_settings(state), self._tool_specs(state)
        return await acall_model(state, settings, specs, self._connect, *_listeners())

    def parse(self, state: ParseSlice) -> Update:
        """Read the reply."""
        corrections = state.get("corrections") or ()
        return parse(state, self._reader(state["context"], state["profile"], state["messages"], corrections))

    def heal(self, state: HealSlice) -> Update:
        """Repair the reply or ask for it again."""
        reader = self._reader(state["context"], state["profile"], state["messages"])
        return heal(state, state["context"].healing(), partial(_rescue, reader))

    def guard(self, state: GuardSlice) -> Update:
        """Judge the calls."""
        context = state["context"]
        config = GuardConfig(mode=context.mode, root=context.workspace, rules=self._rules)
        return {**judge_step(state, config, self._specs, partial(signature_of, root=context.workspace))}

    def execute_tools(self, state: ExecuteToolsSlice, runtime: Runtime[AgentContext]) -> Update:
        """Run the allowed calls, and charge the time to the turn."""
        context = state["context"]
        limits, spending = context.limits(), state["spending"]
        sink = _sink(state, runtime)
        # A cache that lives for one step cannot serve what an editor beside us has changed since.
        engine = Engine(self._registry, sink, EngineConfig(), cache=ToolCache())
        left = inf if limits.max_seconds is None else limits.max_seconds - spending.seconds
        tool_context = ToolContext(
            workspace=Workspace(context.workspace, self._judge, observe=partial(sink.emit, "sandbox.refused")),
            files_read=state.get("files_read", {}),
            plan=state.get("plan") or Plan(),
            timeout_s=context.tool_timeout_s,
            seconds_left=left,
        )
        update = execute_tools(state, engine.run_sync, tool_context, self._terminal, results_of_denied)
        seconds = sum(result.ms for result in update["results"]) / 1_000
        return {**update, "spending": spending.model_copy(update={"seconds": spending.seconds + seconds})}

    def loop_check(self, state: LoopCheckSlice) -> Update:
        """Judge the step and settle it into the history."""
        context = state["context"]
        update = check(state, context.loop(), partial(signature_of, root=context.workspace), self._specs)
        paid = not (state.get("reply") or ModelReply()).preloaded
        spending = state["spending"]
        return {**update, "spending": spending.model_copy(update={"steps": spending.steps + paid})}

    def finish(self, state: StopSlice) -> Update:
        """End with the answer."""
        return finish(state, _usage(state))

    def budget_stop(self, state: StopSlice) -> Update:
        """End on a limit: the one that a node named, or the one that the router saw."""
        cause = state.get("stop") or ledger.exhausted_limit(state["spending"], state["context"].limits())
        return give_up(state, OutcomeKind.BUDGET_STOP, cause or _UNNAMED, _usage(state))

    def system_error(self, state: StopSlice) -> Update:
        """End on a failure that the machine could not mend."""
        return give_up(state, OutcomeKind.SYSTEM_ERROR, state.get("stop") or _UNNAMED, _usage(state))

    def _profile(self, context: AgentContext) -> Profile:
        embedded = self._model is None and self._connections.is_embedded(context.model, context.base_url)
        return context.profile(embedded)

    def _connect(self, model: str | None, base_url: str | None) -> Model | ProviderFailure:
        return self._model or self._connections.connect(model, base_url)

    def _call_settings(self, state: CallModelSlice) -> CallSettings:
        context = state["context"]
        return CallSettings(
            limits=context.limits(),
            temperature=context.temperature,
            seed=context.seed,
            timeout_s=context.request_timeout_s,
            retries=context.provider_retries,
            model=context.model,
            base_url=context.base_url,
        )

    def _tool_specs(self, state: CallModelSlice) -> list[ToolSpec]:
        context = state["context"]
        return offered_tools(
            self._specs.values(),
            state["profile"].edit_form,
            read_only=context.mode == "read-only",
            answer_schema=context.answer_schema,
        )

    def _reader(
        self,
        context: AgentContext,
        profile: Profile,
        messages: list[AnyMessage],
        corrections: Sequence[Correction] = (),
    ) -> Reader:
        view = view_turn(messages) if profile.edit_form is EditForm.BLOCKS else TurnView()
        return Reader(
            profile=profile,
            known_tools=self._registry.names(),
            validate=self._registry.validate,
            check_answer=partial(answer_problems, schema=context.answer_schema),
            writing_tools=self._writing,
            shown_files=tuple(view.files),
            told=(*view.failures, *_sentences(corrections)) if profile.edit_form is EditForm.BLOCKS else (),
        )


_UNNAMED = StopCause(reason=StopReason.CANCELLED, message="The run was stopped.")


def _context_problem(context: AgentContext) -> str | None:
    """What no run can be made with, although each field of the context is fine by itself."""
    saver = get_config()["configurable"].get("__pregel_checkpointer", ...)
    if context.mode == "ask" and saver is None:
        return "mode 'ask' needs a checkpointer: without one the run cannot wait for a person's answer."
    return schema_problem(context.answer_schema or {})


def _readable_files(workspace: Workspace | None) -> Iterator[tuple[str, int]]:
    """Paths and sizes in bytes of the files that guard lets a model read."""
    for entry in workspace.walk() if workspace else ():
        if entry.kind == "file" and workspace and workspace.denied(entry.path) is None:
            yield entry.path, entry.size


def _listeners() -> tuple[OnText, OnWait]:
    """Pass text and waits on as they come, to whoever streams the run with mode "custom"."""
    write = get_stream_writer()
    return (
        lambda text: write({"type": "text", "text": text}),
        lambda wait: write({"type": "waiting", "seconds": wait.seconds, "reason": wait.reason}),
    )


def _sink(state: ExecuteToolsSlice, runtime: Runtime[AgentContext]) -> TraceSink:
    info = runtime.execution_info
    thread = (info.thread_id if info else None) or ""
    return TraceSink(run_id=thread, step_id=str(state.get("step", 0)), forward=partial(_forward, runtime.stream_writer))


def _forward(write: Callable[[Any], None], event: TraceEvent) -> None:
    write({"type": "trace", **asdict(event)})


def _sentences(corrections: Sequence[Correction]) -> Iterator[str]:
    for correction in corrections:
        yield from correction.prompt.splitlines()


def _rescue(reader: Reader, text: str, step: int) -> list[ToolCall | CallError]:
    """Read a reply in another dialect as it is, its arguments checked like any others."""
    calls = read_dialect(text, reader.known_tools) or []
    return [
        check_call(call, f"call_{step}_{index}", json.dumps(call.args, ensure_ascii=False), reader)
        for index, call in enumerate(calls)
    ]


def _usage(state: StopSlice) -> JsonMap:
    return ledger.usage_report(state["spending"], state["context"].limits())
