"""LangChain's middleware around the steps of a run: what a hook may change, and what is refused.

The rules of every run hold for hooks: each request of a handler is reserved and paid, each call of a tool has passed
guard, a tool that has an effect runs once for each call, and the history stays valid. Sync hooks run in threads, async
ones in the run's event loop, both within a time limit.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, Never, TypeVar
from uuid import uuid4

from langchain.agents.middleware import types
from langchain_core.language_models import BaseChatModel

from mendgraph.graph.langchain.hook_steps import (
    HOOK_S,
    HandlerError,
    Middleware,
    ModelStep,
    Send,
    Step,
    ToolStep,
    TurnEndedError,
)
from mendgraph.nodes import records
from mendgraph.nodes.call_model.services import LAST_WORDS_S
from mendgraph.nodes.execute_tools.files.deadline import Worker, monotonic_s
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.run_call import JOURNALED
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import JsonMap, StopReason

Result = TypeVar("Result")
Run = Callable[[records.ToolCall, ToolContext], ToolRun]

HOOKS: Final = ("before_agent", "before_model", "wrap_model_call", "after_model", "wrap_tool_call", "after_agent")

INSTEAD: Final[Mapping[str, str]] = {
    "HumanInTheLoopMiddleware": 'AgentContext(mode="ask") asks a person, shows what a call would change, and waits',
    "LLMToolSelectorMiddleware": 'AgentContext(offer="few") offers fewer tools, without a call outside of the budget',
    "ModelCallLimitMiddleware": "AgentContext has max_calls_per_turn and max_calls_per_session",
    "ShellToolMiddleware": "AgentContext(allowed_programs=...) offers run_command, in a sandbox",
    "SummarizationMiddleware": "the conversation is kept inside AgentContext(window_tokens=...), and the history whole",
    "TodoListMiddleware": "the tool update_plan keeps a plan, which the outcome and a resume know",
    "ToolCallLimitMiddleware": "AgentContext has tool_quotas and tool_calls_per_minute",
}
"""Middleware of LangChain that is refused, and the feature to use instead."""


class TurnModel(BaseChatModel):
    """The chat model that hooks see where a context names the run's model."""

    model_name: str

    @property
    def _llm_type(self) -> str:
        return "mendgraph"

    def _generate(self, *_: Any, **__: Any) -> Never:
        raise NotImplementedError("the run's model is called by handler(request), which is reserved and paid")


def check_middleware(middleware: Sequence[object]) -> None:
    """Refuse what a run does not support.

    Raises:
        TypeError: an item is no middleware.
        ValueError: two have one name, or one needs a feature that is missing; the message names what to use instead.
    """
    names: set[str] = set()

    for item in middleware:
        if not isinstance(item, types.AgentMiddleware):
            kind = f"a {type(item).__name__}"
            if isinstance(item, type):
                kind = f"the class {item.__name__}"

            raise TypeError(f"middleware: {kind} does not fit: give instances of LangChain's AgentMiddleware.")

        problem = _problem_of(item)
        if item.name in names:
            problem = "two have this name"

        if problem:
            raise ValueError(f"middleware: {item.name} cannot be used here: {problem}.")

        names.add(item.name)


def _problem_of(middleware: Any) -> str:
    """Why this middleware cannot be used, "" where it can."""
    for name in HOOKS:
        for hook in (name, f"a{name}"):
            targets = set(getattr(getattr(middleware, hook), "__can_jump_to__", ())) - {"end"}
            if targets:
                return f'{hook} jumps to {min(targets)!r}, and can only jump to "end"'

    for kind in type(middleware).__mro__:
        if kind.__name__ in INSTEAD:
            return INSTEAD[kind.__name__]

    fields = set(middleware.state_schema.__annotations__) - set(types.AgentState.__annotations__)
    if fields:
        return f"the state has no {', '.join(sorted(fields))} (state_schema): use an attribute, or runtime.store"

    return ""


def _run_to_end(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Result]") -> Result:
    try:
        return loop.run_until_complete(task)
    finally:
        others = asyncio.all_tasks(loop)
        for other in others:
            other.cancel()
        if others:
            loop.run_until_complete(asyncio.wait(others, timeout=LAST_WORDS_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Hooks(Middleware):
    """The hooks of one machine's steps."""

    async def call_model(
        self, state: Any, model: BaseChatModel | str, tools: Sequence[records.ToolSpec], send: Send, *, in_loop: bool
    ) -> JsonMap:
        """The update of a model call with its hooks around it; the first call of a turn runs `before_agent` first.

        `model` is the model that hooks see: the run's chat model, or the name of the one that its context names.
        """
        if isinstance(model, str):
            model = TurnModel(model_name=model)

        seconds = inf
        limit = state["context"].max_seconds
        if limit is not None:
            seconds = max(1.0, limit - state["spending"].seconds)

        step = ModelStep(model, tools, send, self, state, seconds, in_loop=in_loop)
        try:
            update: JsonMap = {"reply": await step.run(step.reply()), "step": state.get("step", 0) + 1}
        except (HandlerError, TurnEndedError):
            update = {"reply": None, "stop": step.end or step.failure}

        spending = step.update.get("spending", state["spending"])
        update["spending"] = spending.model_copy(update={"seconds": spending.seconds + step.used_s})
        if step.changed:
            update["messages"] = [*step.changed.values()]

        return {**step.update, **update}

    def around(self, state: Any, specs: Mapping[str, records.ToolSpec], in_loop: Any, run: Run) -> Run:
        """`run` with hooks around each call; `in_loop` runs a coroutine in the run's event loop, None without one."""

        async def call_with_hooks(call: records.ToolCall, context: ToolContext) -> ToolRun:
            end = monotonic_s() + context.seconds_left
            once = specs[call.tool].effect in JOURNALED

            def run_it() -> ToolRun:
                return run(call, replace(context, seconds_left=end - monotonic_s()))

            arguments = (call, run_it, self, state, context.seconds_left)
            step = ToolStep(*arguments, once=once, in_loop=in_loop is not None)
            try:
                return step.tool_run(await step.run(step.message()))
            except (HandlerError, TurnEndedError):
                return step.tool_run()

        def run_with_hooks(call: records.ToolCall, context: ToolContext) -> ToolRun:
            run_coroutine = in_loop or self.run
            result: ToolRun = run_coroutine(call_with_hooks(call, context))
            return result

        if self.with_hook("wrap_tool_call"):
            return run_with_hooks

        return run

    @staticmethod
    def run(work: Coroutine[Any, Any, Result]) -> Result:
        """Run the hooks of a sync step in an event loop of its own, in a thread: its caller's may have a running one.

        Where the wait is interrupted, they are cancelled.
        """
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)
        outcome = Worker(copy_context(), partial(_run_to_end, loop, task)).outcome
        try:
            return outcome.result()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)
            raise

    async def end_turn(self, state: Any, update: JsonMap, *, in_loop: bool) -> JsonMap:
        """The update of a terminal node after the hooks `after_agent`; one that fails makes the turn a failure."""
        outcome = update["outcome"]
        if outcome.reason is StopReason.INVALID_REQUEST or not self.with_hook("after_agent"):
            return update
        [last] = update["messages"]
        ended = {**state, "messages": [*state["messages"], last.model_copy(update={"id": uuid4().hex})]}
        step = Step(self, ended, HOOK_S, in_loop=in_loop)
        with suppress(TurnEndedError):
            await step.run(step.all("after_agent"))
        if (end := step.end) is not None and end.reason is StopReason.HOOK_FAILED:
            before = f"Before that the turn had ended: {outcome.kind} ({outcome.reason}). {outcome.message}"
            failed = {"kind": records.OutcomeKind.SYSTEM_ERROR, "answer": "", "value": None, **dict(end)}
            failed |= {"diagnostics": (before,), "how_to_go_on": end.reason.how_to_go_on}
            return {**update, "outcome": outcome.model_copy(update=failed)}
        *_, message = step.messages
        step.changed[message.id] = message
        if outcome.kind is records.OutcomeKind.FINISHED and message.text != last.text:
            outcome = outcome.model_copy(update={"answer": message.text})
        return {**update, "messages": [*step.changed.values()], "outcome": outcome}
