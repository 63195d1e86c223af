"""Puts the machine together from its bound nodes, and holds what runs it.

It replays the transition table of `routes`, gives each node its slice of the state, and hands one node what it
needs of another. A node's configuration comes from the context that `begin_turn` stored in the state, never from the
run's own arguments: those are gone after a resume. Arguments that do not fit are refused where they are given.

`invoke`, `ainvoke`, a server and a parent graph all come through `stream` or `astream` of the compiled machine, so this
is the one seam: for secrets in what is given, for limits, for whoever observes, and for checkpointers.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from functools import partial
from typing import Any, Final, SupportsIndex, Unpack, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import get_runtime
from langgraph.types import Command

from mendgraph.graph.configuration.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from mendgraph.graph.configuration.narrowing import read_context
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.bound_nodes import BoundNodes
from mendgraph.graph.machine.machine_services import MachineTools
from mendgraph.graph.machine.options import MachineOptions, check_options, context_overrides, with_defaults
from mendgraph.graph.machine.state import (
    AgentInput,
    AgentOutput,
    AgentState,
    StructuredChannel,
    allow_records,
    own_saver,
    refuse_pruned_histories,
)
from mendgraph.graph.telemetry.spans import OBSERVER, RunSpan, at_work, run_observer
from mendgraph.nodes.begin_turn.turn_start import scrubbed
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, await_call, call_here, timer_is_free
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.parse.answers import ResponseFormat, read_format
from mendgraph.nodes.records import JsonMap, OutcomeKind

Machine = CompiledStateGraph[AgentState, AgentContext, AgentInput, AgentOutput]
"""The compiled graph, as `build_graph` returns it."""

_OVER: Final = object()
_TRACING: Final = "opentelemetry.trace"
"""Nobody observes a run where the process has not imported this."""


class _Fields(JsonMap):
    """The fields of a form. Servers drop what is not `in` them without a word; we refuse it (`read_context`)."""

    def __contains__(self, name: object) -> bool:
        return True


class AgentGraph(Machine):
    """Runs as any compiled graph. `scrub` takes out secrets of what is observed, and of what callbacks hear first.

    `secrets` are not stored: see `own_saver`.
    """

    def __init__(self, *, scrub: Callable[[str], str], secrets: Sequence[str], **parts: Any) -> None:
        super().__init__(**parts)
        self.scrub = scrub
        self.secrets = secrets

        if isinstance(self.checkpointer, BaseCheckpointSaver):  # a server makes a copy with its own
            self.checkpointer = refuse_pruned_histories(own_saver(self.checkpointer, secrets))

    def _resolve_checkpointer(self, config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
        """The machine's own checkpointer, or the one that the graph around it lends it."""
        saver = super()._resolve_checkpointer(config)
        if saver is None:
            return None

        allow_records(saver)
        return refuse_pruned_histories(saver)

    def get_context_jsonschema(self) -> JsonMap | None:
        """The form of the context, from which no server takes out of a request what it does not know."""
        schema: JsonMap = super().get_context_jsonschema() or {}
        return {**schema, "properties": _Fields(schema.get("properties", {}))}

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        """Run; the parts are LangGraph's own."""
        limit = _own_limit(config or {})
        options["context"] = read_context(options.get("context"))
        parts = super().stream(self._clean(input), limit, **options)

        if _TRACING in sys.modules:
            return _observed(self._observer(limit), parts)

        return parts

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run without blocking the event loop."""
        limit = _own_limit(config or {})
        options["context"] = read_context(options.get("context"))
        parts = super().astream(self._clean(input), limit, **options)

        if _TRACING in sys.modules:
            return _aobserved(self._observer(limit), parts)

        return parts

    def _observer(self, config: RunnableConfig) -> Callable[[], RunSpan | None]:
        """Who observes the run, once it begins; its id is that of the thread, "" where it is made then."""
        thread = (config.get("configurable") or {}).get("thread_id")
        return partial(run_observer, str(thread or ""), self.scrub)

    def __copy__(self) -> "AgentGraph":
        """Another graph with the same parts, to which something may be set."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, _: Any) -> "AgentGraph":
        """The graph itself, which keeps nothing of a run: a copy would share its model and its checkpointer."""
        return self

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        """Refuse pickling with its reason."""
        raise TypeError(
            "A built graph cannot be pickled: it holds your model, your tools and open connections."
            " Call build_graph in the other process."
        )

    def _clean(self, given: Any) -> Any:
        """What is given, its messages without secrets: LangChain's callbacks hear of them before any node does."""
        if isinstance(given, Command) and not _ends(given.goto):
            raise ValueError(
                "Command(goto=...) cannot begin a run in the middle of the machine: each step needs what the one before"
                ' it has decided. Send {"messages": [...]}, or Command(resume=...) to answer an interrupt.'
            )

        messages = given.get("messages") if isinstance(given, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, BaseMessage) for message in messages):
            return given

        clean = scrubbed(messages, self.scrub)
        if clean is None:
            return given

        return {**given, "messages": clean}


def _ends(goto: Any) -> bool:
    """Whether a command goes nowhere, or to the end, as a client does that drops a question."""
    if isinstance(goto, Sequence) and not isinstance(goto, str):
        targets = goto
    else:
        targets = [goto]

    return all(target in (None, END) for target in targets)


def _own_limit(config: RunnableConfig) -> RunnableConfig:
    """The config without `recursion_limit` where that is LangChain's default, which `batch` and chains pass on.

    The machine's own bound follows from its limits, and is larger.
    """
    if config.get("recursion_limit") != DEFAULT_RECURSION_LIMIT:
        return config
    return cast("RunnableConfig", {name: value for name, value in config.items() if name != "recursion_limit"})


def _observed(observing: Callable[[], RunSpan | None], parts: Iterator[Any]) -> Iterator[Any]:
    """The parts, observed from the first that is asked for."""
    observer = observing()
    if observer is None:
        yield from parts
        return

    with observer, closing(cast("Any", parts)):
        while True:
            with at_work(observer):
                part = next(parts, _OVER)

            if part is _OVER:
                return
            yield part


async def _aobserved(observing: Callable[[], RunSpan | None], parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
    observer = observing()
    if observer is None:
        async with aclosing(cast("Any", parts)):
            async for part in parts:
                yield part
        return

    with observer:
        async with aclosing(cast("Any", parts)):
            while True:
                with at_work(observer):
                    part = await anext(parts, _OVER)

                if part is _OVER:
                    return
                yield part


# --- Nodes and routers as LangGraph runs them

NODE_S: Final = 60.0
"""Seconds after which a node that only reads and decides is given up. It takes milliseconds."""


class NodeTimeoutError(Exception):
    """A node did not end in time. The thread stands before it, as after a kill: a resume runs it again."""


class SyncAsyncNode(Runnable[Any, Any]):
    """Calls `sync` or awaits `in_loop` with the node's slice of the state, and reports its end to the run's observer.

    LangGraph traces it as the node. A `RunnableLambda` would look at the functions' signatures and open a run of its
    own at every call. Source: measured on LangGraph 1.2, 0.2 ms a node.
    """

    def __init__(self, name: str, sync: Callable[[Any], Any], in_loop: Callable[[Any], Awaitable[Any]]) -> None:
        """`name` is the node's in the graph and in traces."""
        self.name: str = name
        self._sync = sync
        self._in_loop = in_loop

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002 - Runnable's
        """Run the node here."""
        return self._ended(self._sync(input))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """Run the node in the event loop."""
        return self._ended(await self._in_loop(input))

    def _ended(self, update: Any) -> Any:
        if observer := OBSERVER.get():
            observer.node_ended(self.name, update)
        return update


def bounded_node(
    name: str, node: Callable[[Any], Any], is_quick: Callable[[Any], bool] = lambda _: False
) -> SyncAsyncNode:
    """A node that ends within `NODE_S`, whether its code lets itself be interrupted or not.

    In the main thread of a sync run a timer interrupts it; elsewhere it has a thread of its own, which is left behind.
    Neither can end code of C that keeps the interpreter's lock. What `is_quick` an event loop in the main thread
    does itself, as a thread costs more than that.

    Raises:
        NodeTimeoutError: it did not end. A TimeoutError that the node raises itself comes out as it is.
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

    async def in_loop(state: Any) -> Any:
        if timer_is_free() and is_quick(state):
            return run_sync(state)
        with limited() as scope:
            return await await_call(partial(node, state), NODE_S, scope)

    return SyncAsyncNode(name, run_sync, in_loop)


def terminal_node(name: str, node: Callable[[Any], Any]) -> SyncAsyncNode:
    """A terminal. It may wait for the disk: in an event loop it has a thread of its own."""

    async def in_loop(state: Any) -> Any:
        return await await_call(partial(node, state))

    return SyncAsyncNode(name, node, in_loop)


class Router(RunnableLambda[Any, str]):
    """A router, called as it is: a pure function of the state has nothing to wait for, in an event loop either.

    LangGraph would call it in a thread there. A run that is cancelled while it waits for that thread has stored the
    node's update but not the next node: nothing could resume it.
    """

    def __init__(self, router: Callable[[Any], str]) -> None:
        """`router` returns the label of a transition."""
        super().__init__(router)
        self._router = router

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> str:  # noqa: A002, ARG002 - Runnable's
        """Return the label."""
        return self._router(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> str:  # noqa: A002, ARG002
        """Return the label without leaving the event loop."""
        return self._router(input)


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
    """Compile the machine, to be run by itself or as a node of a graph of yours.

    Pass `context=AgentContext(...)` and, with a checkpointer, a `thread_id` to `invoke`, `ainvoke`, `stream` or
    `astream`. A turn keeps its context from `begin_turn` on; whoever goes on with one that was cut off before that, or
    forks from there, has to pass it again. As a node it gets the context of the graph around it where that is an
    `AgentContext`, and keeps its records apart from those of other agents in the same thread.

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
    served: bool = False,
    kept_permissions: bool = False,
    **options: Unpack[MachineOptions],
) -> tuple[Machine, BoundNodes]:
    """Compile the machine of these checked options; its nodes are returned as well, and closed by whoever runs it.

    `stop` is how somebody may let a run end early. With `served` every context is a client's, on any server. With
    `kept_permissions` what a person allows for good is stored in the user's settings, and used by later runs.
    """
    options = with_defaults(options)
    form = None if options["response_format"] is None else read_format(options["response_format"])
    tools = MachineTools(
        cast("Sequence[Tool] | None", options["tools"]),
        tuple(options["rules"]),
        options["roles"],
        options["secrets"],
        form,
        arg_validators=options["arg_validators"],
        served=served,
        kept_permissions=kept_permissions,
    )
    nodes = BoundNodes(
        options["model"],
        tools,
        stop,
        context,
        served=served,
        middleware=options["middleware"],
        name=options["name"],
        overrides=context_overrides(options),
    )
    # Children get no store and no hooks, and answer without a response format.
    for_children: MachineOptions = {**options, "store": None, "middleware": ()}
    nodes.compile = partial(_compiled, None, for_children, None)
    return _compiled(checkpointer, options, form, nodes), nodes


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
        SyncAsyncNode("call_model", nodes.call_model, nodes.acall_model),
        bounded_node("parse", nodes.parse, nodes.parses_quickly),
        bounded_node("heal", nodes.heal),
        bounded_node("guard", nodes.guard, nodes.guards_quickly),
        SyncAsyncNode("execute_tools", nodes.execute_tools, nodes.aexecute_tools),
        bounded_node("loop_check", nodes.loop_check, lambda _: True),
        terminal_node(OutcomeKind.FINISHED, nodes.finish),
        terminal_node(OutcomeKind.BUDGET_STOP, nodes.budget_stop),
        terminal_node(OutcomeKind.SYSTEM_ERROR, nodes.system_error),
    )
    for node in parts:
        builder.add_node(node.name, node)

    for source, _, target in routes.TRANSITIONS:
        if source not in _ROUTERS:
            builder.add_edge(source, target)

    for source, router in _ROUTERS.items():
        builder.add_conditional_edges(source, Router(router), routes.PATH_MAPS[source])

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
