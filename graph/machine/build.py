"""The compiled graph: the transition table of `routes` with the bound nodes.

A node's configuration comes from the context that `begin_turn` stored in the state, never from the run's own
arguments: those are gone after a resume.

`invoke`, `ainvoke`, a server and a parent graph all call `stream` or `astream` of the compiled graph. So secrets in the
input, limits, telemetry and checkpointers are handled there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Unpack, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import read_context
from mendgraph.graph.configuration.settings import MAX_CALLS_PER_TURN_LIMIT
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.begin_turn import ContextPolicy
from mendgraph.graph.machine.bound_nodes import BoundNodes
from mendgraph.graph.machine.langgraph_private import PreparedCheckpointerGraph
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.graph.machine.options import MachineOptions, check_options, context_overrides, with_defaults
from mendgraph.graph.machine.serializer import allow_records, own_saver, refuse_pruned_histories
from mendgraph.graph.machine.state import AgentInput, AgentOutput, AgentState, StructuredChannel
from mendgraph.graph.telemetry.spans import OBSERVER, RunSpan, at_work, run_observer
from mendgraph.nodes.begin_turn.history import scrub_requests
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.parse.answers import ResponseFormat
from mendgraph.nodes.records import JsonMap, OutcomeKind
from mendgraph.nodes.workspace.files.deadline import CancellationScope, await_call, call_here

Machine = CompiledStateGraph[AgentState, AgentContext, AgentInput, AgentOutput]
"""The compiled graph, as `build_graph` returns it."""

_END_OF_STREAM: Final = object()


class _AnyField(JsonMap):
    """The properties of a JSON schema. Servers drop unknown fields of a request silently; we refuse them."""

    def __contains__(self, name: object) -> bool:
        return True


class AgentGraph(PreparedCheckpointerGraph):
    """The compiled graph. `scrub` cleans the input of callbacks and telemetry; `secrets` are never stored."""

    def __init__(self, *, scrub: Callable[[str], str], secrets: Sequence[str], **parts: Any) -> None:
        super().__init__(**parts)
        self.scrub = scrub
        self.secrets = secrets

        if isinstance(self.checkpointer, BaseCheckpointSaver):  # a server makes a copy with its own
            self.checkpointer = refuse_pruned_histories(own_saver(self.checkpointer, secrets))

    def prepare_checkpointer(self, saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
        """Let the saver load the types of a run, and refuse incomplete histories."""
        allow_records(saver)
        return refuse_pruned_histories(saver)

    def get_context_jsonschema(self) -> JsonMap | None:
        """Return the JSON schema of the context."""
        schema: JsonMap = super().get_context_jsonschema() or {}
        return {**schema, "properties": _AnyField(schema.get("properties", {}))}

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run the graph; yields LangGraph's own parts."""
        config = _without_default_limit(config or {})
        options["context"] = read_context(options.get("context"))
        return self._observed(config, super().stream(self._scrubbed_input(input), config, **options))

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run the graph without blocking the event loop."""
        config = _without_default_limit(config or {})
        options["context"] = read_context(options.get("context"))
        return self._aobserved(config, super().astream(self._scrubbed_input(input), config, **options))

    def _open_span(self, config: RunnableConfig) -> RunSpan | None:
        """Open the run's telemetry span; its id is the thread's, "" if it has none yet."""
        thread = (config.get("configurable") or {}).get("thread_id")
        return run_observer(str(thread or ""), self.scrub)

    def _observed(self, config: RunnableConfig, parts: Iterator[Any]) -> Iterator[Any]:
        """Yield the parts inside of the run's telemetry span, which opens with the first one."""
        span = self._open_span(config)
        with span or nullcontext(), closing(cast("Any", parts)):
            while True:
                with at_work(span):
                    part = next(parts, _END_OF_STREAM)

                if part is _END_OF_STREAM:
                    return
                yield part

    async def _aobserved(self, config: RunnableConfig, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        span = self._open_span(config)
        with span or nullcontext():
            async with aclosing(cast("Any", parts)):
                while True:
                    with at_work(span):
                        part = await anext(parts, _END_OF_STREAM)

                    if part is _END_OF_STREAM:
                        return
                    yield part

    def __deepcopy__(self, _: Any) -> "AgentGraph":
        """Return the graph itself, which has no state of a run: a copy would share its model and its checkpointer."""
        return self

    def _scrubbed_input(self, value: Any) -> Any:
        """Return the input with its messages scrubbed: LangChain's callbacks receive them before any node does."""
        if isinstance(value, Command) and not _ends(value.goto):
            raise ValueError(
                "Command(goto=...) cannot begin a run in the middle of the machine: each step needs what the one before"
                ' it has decided. Send {"messages": [...]}, or Command(resume=...) to answer an interrupt.'
            )

        messages = value.get("messages") if isinstance(value, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, BaseMessage) for message in messages):
            return value
        return {**value, "messages": scrub_requests(messages, self.scrub)}


def _ends(goto: Any) -> bool:
    """Return whether a command goes nowhere, or to the end, as a client does that drops a question."""
    targets = goto if isinstance(goto, list | tuple) else [goto]
    return all(target in (None, END) for target in targets)


def _without_default_limit(config: RunnableConfig) -> RunnableConfig:
    """Return the config without LangChain's default `recursion_limit`, which `batch` and chains pass on.

    The machine's own bound follows from its limits, and is larger.
    """
    if config.get("recursion_limit") != DEFAULT_RECURSION_LIMIT:
        return config
    return cast("RunnableConfig", {name: value for name, value in config.items() if name != "recursion_limit"})


# --- Nodes and routers as LangGraph runs them

NODE_S: Final = 60.0
"""Seconds after which a node that only reads and decides is abandoned. It takes milliseconds."""


class NodeTimeoutError(Exception):
    """A node did not end in time. The thread stands before it, as after a kill: a resume runs it again."""


class SyncAsync(Runnable[Any, Any]):
    """Calls `sync` or awaits `in_loop`, by default the same in the event loop. LangGraph traces it under its name.

    A `RunnableLambda` would inspect the functions' signatures and open a run of its own at every call. Source: measured
    on LangGraph 1.2, 0.2 ms a node.
    """

    def __init__(
        self, name: str, sync: Callable[[Any], Any], in_loop: Callable[[Any], Awaitable[Any]] | None = None
    ) -> None:
        self.name: str = name
        self._sync = sync
        self._in_loop = in_loop

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002 - Runnable's
        """Return the update of the node, or the label of the router."""
        return self._sync(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """Return the same without blocking the event loop."""
        if self._in_loop is None:
            return self._sync(input)
        return await self._in_loop(input)


def observed_node(name: str, sync: Callable[[Any], Any], in_loop: Callable[[Any], Awaitable[Any]]) -> SyncAsync:
    """Return a node that reports its update to the run's telemetry span."""

    def report(update: Any) -> Any:
        if span := OBSERVER.get():
            span.node_ended(name, update)
        return update

    async def run_in_loop(state: Any) -> Any:
        return report(await in_loop(state))

    return SyncAsync(name, lambda state: report(sync(state)), run_in_loop)


def bounded_node(name: str, node: Callable[[Any], Any]) -> SyncAsync:
    """Return a node that ends within `NODE_S`, whether its code lets itself be interrupted or not.

    In the main thread of a sync run a timer interrupts it; elsewhere it has a thread of its own, which is abandoned.
    Neither can end code of C that keeps the interpreter's lock.

    Raises:
        NodeTimeoutError: it did not end. A TimeoutError that the node raises itself is raised as it is.
    """

    @contextmanager
    def limited() -> Iterator[CancellationScope]:
        scope = CancellationScope()
        try:
            yield scope
        except TimeoutError:
            if not scope.over:
                raise
            late = f"The step {name} did not end within {NODE_S:g} s: `mendgraph resume` tries it again."
            raise NodeTimeoutError(late) from None

    def run_sync(state: Any) -> Any:
        with limited() as scope:
            return call_here(NODE_S, partial(node, state), scope)

    async def run_in_loop(state: Any) -> Any:
        with limited() as scope:
            return await await_call(partial(node, state), NODE_S, scope)

    return observed_node(name, run_sync, run_in_loop)


def terminal_node(name: str, node: Callable[[Any], Any]) -> SyncAsync:
    """Return a terminal. It may wait for the disk: an event loop runs it in a thread."""

    async def run_in_loop(state: Any) -> Any:
        return await await_call(partial(node, state))

    return observed_node(name, node, run_in_loop)


# --- The graph

_ROUTERS: dict[str, Callable[[routes.Routed], str]] = {
    "begin_turn": routes.after_begin_turn,
    "call_model": routes.after_call_model,
    "parse": routes.after_parse,
    "heal": routes.after_heal,
    "guard": routes.after_guard,
    "loop_check": routes.after_loop_check,
}


def build_graph(
    checkpointer: BaseCheckpointSaver[Any] | bool | None = None,
    *,
    context: AgentContext | None = None,
    **options: Unpack[MachineOptions],
) -> Machine:
    """Compile the machine, to run it alone or as a node of your own graph.

    Pass `context=AgentContext(...)` and, with a checkpointer, a `thread_id` to `invoke`, `ainvoke`, `stream` or
    `astream`. A turn keeps its context from `begin_turn` on; pass it again to resume or fork a turn that was cut off
    before that. As a node, the machine uses the context of the surrounding graph if that is an `AgentContext`. It keeps
    separate records from other agents in the same thread.

    Args:
        checkpointer: keeps threads, and is needed by mode "ask". It is used with `serializer()`, unless it
            has a serializer of its own. True keeps the threads of a node in its parent's checkpointer from one of the
            parent's turns to the next, False keeps none there.
        context: that of runs that are given none, or that are part of a graph whose context is of another type.
        options: what the machine is made of; `MachineOptions` has their types.
        model: a chat model of LangChain's, such as ChatAnthropic(...); what `bind`, `with_config`, `with_retry`,
            `with_fallbacks`, or a configurable model with a default make of one; or the name of one: "provider:name",
            or a name at an OpenAI-compatible endpoint. It replaces what the context or the environment names.
        tools: all the tools there are, by default `default_tools()`; tools of LangChain (`@tool`, `StructuredTool`,
            `BaseTool`), actions (`name` and `execute`) and typed functions may be among them.
        effects: what tools of LangChain and functions do, by name. One that neither this nor its
            `metadata={"effect": "read"}` speaks of counts as a program.
        rules: which files are denied.
        roles: which tools a role of yours may use, by name.
        arg_validators: what checks and normalises the arguments of a tool after its schema, by name, before any rule
            judges them. What it raises is what the model is told.
        secrets: values that nothing shows or stores, beside those of the environment.
        name: what the graph is called in a graph around it and in traces, and the `name` of its last message; by
            default it is called "mendgraph". Give each agent of a supervisor or a swarm a name of its own.
        system_prompt: words of yours for the system prompt, said after those that the tools need, in place of the
            context's.
        response_format: what the answer must hold beside its text: a pydantic model, a dataclass, a TypedDict or a
            JSON schema, in place of the context's; a strategy of LangChain's stands for its `schema`. The result's
            `structured_response` is an instance of it, a dict for the last two, and None unless the run has FINISHED.
        store: LangGraph's long-term memory over threads. The machine keeps there what runs with `memory=True` remember;
            a tool of yours reaches it with `langgraph.config.get_store()`.
        middleware: LangChain's, whose hooks `wrap_model_call` are called around model calls, in
            this order. One that fails ends the turn with SYSTEM_ERROR (hook_failed).

    Returns:
        The compiled graph. The `outcome` of its result says how a run ended; what can be expected to fail is there and
        never raised.

    Raises:
        TypeError: an argument is of another type; the message names it and the remedy.
        ValueError: a tool cannot be used, two have the same name, a validator is for none, a middleware needs what
            there is not here, or the `response_format` is a JSON schema with a mistake.
    """
    return build_machine(checkpointer, context=context, **check_options(checkpointer, context, options))[0]


def build_machine(
    checkpointer: BaseCheckpointSaver[Any] | bool | None = None,
    *,
    context: AgentContext | None = None,
    stop: StopRequest | None = None,
    added: "SimpleQueue[str] | None" = None,
    served: bool = False,
    kept_permissions: bool = False,
    **options: Unpack[MachineOptions],
) -> tuple[Machine, BoundNodes]:
    """Compile the machine of these checked options; its nodes are returned as well, and closed by whoever runs it.

    `stop` is how somebody may let a run end early, and `added` holds what a person adds while it works. With `served`
    every context is a client's, on any server. With `kept_permissions` what a person allows for good is stored in the
    user's settings, and used by later runs.
    """
    options = with_defaults(options)
    tools = MachineTools(options, served=served, kept_permissions=kept_permissions)
    # Children get no store and no hooks, and answer without a response format.
    for_children: MachineOptions = {**options, "store": None, "middleware": ()}
    contexts = ContextPolicy(context, context_overrides(options), served=served)
    compile_children = partial(_compiled, None, for_children, None)
    nodes = BoundNodes(options, tools, contexts, compile_children, stop=stop, added=added)
    return _compiled(checkpointer, options, tools.response_format, nodes), nodes


def _compiled(
    checkpointer: BaseCheckpointSaver[Any] | bool | None,
    options: MachineOptions,
    form: ResponseFormat | None,
    nodes: BoundNodes,
) -> Machine:
    builder: StateGraph[AgentState, AgentContext, AgentInput, AgentOutput] = StateGraph(
        AgentState, context_schema=AgentContext, input_schema=AgentInput, output_schema=AgentOutput
    )
    parts = (
        bounded_node("begin_turn", lambda state: nodes.begin_turn(state, get_runtime(AgentContext))),
        observed_node("call_model", nodes.call_model, nodes.acall_model),
        bounded_node("parse", nodes.parse),
        bounded_node("heal", nodes.heal),
        bounded_node("guard", nodes.guard),
        observed_node("execute_tools", nodes.execute_tools, nodes.aexecute_tools),
        bounded_node("loop_check", nodes.loop_check),
        terminal_node(OutcomeKind.FINISHED, nodes.finish),
        terminal_node(OutcomeKind.BUDGET_STOP, nodes.budget_stop),
        terminal_node(OutcomeKind.SYSTEM_ERROR, nodes.system_error),
    )
    for node in parts:
        builder.add_node(node.name, node)

    for source, _, target in routes.TRANSITIONS:
        if source not in _ROUTERS:
            builder.add_edge(source, target)

    # In an event loop LangGraph would call a plain function in a thread. A run that is cancelled while it waits for it
    # has stored the node's update but not the next node: nothing could resume it.
    for source, router in _ROUTERS.items():
        builder.add_conditional_edges(source, SyncAsync(router.__name__, router), routes.PATH_MAPS[source])

    if form is not None:
        builder.channels["structured_response"] = StructuredChannel(form)

    transformers = [transformer for hook in options["middleware"] for transformer in hook.transformers]
    compiled = builder.compile(
        checkpointer,
        store=options["store"],
        name=options["name"] or "mendgraph",
        transformers=transformers or None,
    )
    limited = compiled.with_config(recursion_limit=routes.recursion_limit(MAX_CALLS_PER_TURN_LIMIT))
    attributes = {name: value for name, value in vars(limited).items() if name != "__orig_class__"}
    return AgentGraph(scrub=nodes.scrub, secrets=options["secrets"], **attributes)
