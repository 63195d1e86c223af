"""Puts the machine together: the only file that knows all nodes.

It replays the transition table of `routes`, gives each node its slice of the state, and hands one node what it
needs of another. A node's configuration comes from the context that `begin_turn` stored in the state, never from the
run's own arguments: those are gone after a resume. Arguments that do not fit are refused where they are given.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore
from pydantic import SecretStr

from mendgraph.graph.configuration.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.bound_nodes import BoundNodes
from mendgraph.graph.machine.compiled import Machine, Route, TwoWays, agent_graph, bounded, direct, in_a_thread
from mendgraph.graph.machine.run_records import Durability
from mendgraph.graph.machine.state import AgentInput, AgentOutput, AgentState
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.secrets.known_secrets import is_findable_key
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.records import OutcomeKind


class BuildArguments(NamedTuple):
    """What a machine is made of, as `build_graph` explains it."""

    checkpointer: BaseCheckpointSaver[Any] | bool | None = None
    model: BaseChatModel | str | None = None
    tools: Sequence[Tool] | None = None
    rules: Sequence[FileGuardrailRule] = DEFAULT_GUARDRAIL_RULES
    roles: Mapping[str, Collection[str]] = {}
    secrets: Sequence[str] = ()
    store: BaseStore | None = None
    context: AgentContext | None = None


class SessionOptions(TypedDict, total=False):
    """What may be said of a session beside its context: see `Session`."""

    model: BaseChatModel | str | None
    tools: Sequence[Tool] | None
    rules: Sequence[FileGuardrailRule]
    roles: Mapping[str, Collection[str]]
    secrets: Sequence[str]
    checkpointer: BaseCheckpointSaver[Any] | None
    store: BaseStore | None
    thread_id: str | None
    durability: Durability


def with_keys(secrets: Sequence[str], model: BaseChatModel | str | None) -> tuple[str, ...]:
    """The secrets, and those that a chat model was given beside them, which nothing shows or stores either."""
    given = (value for _, value in model) if isinstance(model, BaseChatModel) else ()
    keys = (value.get_secret_value() for value in given if isinstance(value, SecretStr))
    return (*secrets, *filter(is_findable_key, keys))


def check_arguments(given: BuildArguments) -> None:
    """Raise for the first argument that cannot be used.

    Raises:
        TypeError: it is of another type; the message names the argument and the remedy.
        ValueError: two tools have the same name.
    """
    for name, (fits, remedy) in _FIT.items():
        value = getattr(given, name)
        if not fits(value):
            kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise TypeError(f"{name}: {kind} does not fit: give {remedy}.")
    names = Counter(tool.name for tool in given.tools or ())
    for name, times in names.items():
        if times > 1:
            raise ValueError(f"tools: {times} tools are called {name!r}: give them different names.")


def _each(values: Any, kind: type, *, of: type[Any] = Sequence) -> bool:
    return isinstance(values, of) and not isinstance(values, str) and all(isinstance(each, kind) for each in values)


_FIT: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "checkpointer": (
        lambda given: isinstance(given, BaseCheckpointSaver | bool | None),
        "a checkpoint saver of LangGraph, such as InMemorySaver(), entered where it is a context manager",
    ),
    "model": (
        lambda given: isinstance(given, BaseChatModel | None) or (isinstance(given, str) and bool(given.strip())),
        'a chat model of LangChain such as ChatAnthropic(model="..."), or a name such as "anthropic:claude-sonnet-4-6"',
    ),
    "tools": (
        lambda given: given is None or (not isinstance(given, Tool) and _each(given, Tool)),
        "a sequence of tools, as in (*default_tools(), mine), each made of a typed function with @tool(effect=...)",
    ),
    "rules": (
        lambda given: (
            not isinstance(given, FileGuardrailRule)
            and _each(given, FileGuardrailRule)
            and all(callable(rule.check) for rule in given)
        ),
        "a sequence of FileGuardrailRule(name, description, check), as in (*DEFAULT_GUARDRAIL_RULES, mine)",
    ),
    "roles": (
        lambda given: isinstance(given, Mapping) and all(_each(each, str, of=Collection) for each in given.values()),
        'collections of names of tools by role, as in {"clerk": ("read_file",)}',
    ),
    "secrets": (lambda given: _each(given, str, of=Collection), "a sequence of texts, as in (token,)"),
    "store": (lambda given: isinstance(given, BaseStore | None), "a store of LangGraph, such as InMemoryStore()"),
    "context": (lambda given: isinstance(given, AgentContext | None), "AgentContext(workspace=..., ...)"),
}
"""What may be given for each argument, and what to give instead of another thing."""


NO_ROLES: Mapping[str, Collection[str]] = MappingProxyType({})

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
    model: BaseChatModel | str | None = None,
    tools: Sequence[Tool] | None = None,
    rules: Sequence[FileGuardrailRule] = DEFAULT_GUARDRAIL_RULES,
    roles: Mapping[str, Collection[str]] = NO_ROLES,
    secrets: Sequence[str] = (),
    store: BaseStore | None = None,
    context: AgentContext | None = None,
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
        model: a chat model of LangChain's, such as ChatAnthropic(...), or the name of one: "provider:name", or a name
            at an OpenAI-compatible endpoint. It replaces what the context or the environment names.
        tools: all the tools there are, by default `default_tools()`.
        rules: which files are denied.
        roles: which tools a role of yours may use, by name.
        secrets: values that nothing shows or stores, beside those of the environment.
        store: LangGraph's long-term memory over threads. The machine keeps nothing there; a tool of yours reaches it
            with `langgraph.config.get_store()`.
        context: that of runs that are given none, or that are part of a graph whose context is of another type.

    Returns:
        The compiled graph. The `outcome` of its result says how a run ended; what can be expected to fail is there and
        never raised.

    Raises:
        TypeError: an argument is of another type; the message names it and the remedy.
        ValueError: two tools have the same name.
    """
    given = BuildArguments(checkpointer, model, tools, rules, roles, secrets, store, context)
    check_arguments(given)
    return build_machine(
        checkpointer,
        model=model,
        tools=tools,
        rules=tuple(rules),
        roles=roles,
        secrets=with_keys(secrets, model),
        store=store,
        context=context,
    )[0]


def build_machine(  # noqa: PLR0913 - the same
    checkpointer: BaseCheckpointSaver[Any] | bool | None,
    *,
    model: BaseChatModel | str | None,
    tools: Sequence[Tool] | None,
    rules: tuple[FileGuardrailRule, ...],
    roles: Mapping[str, Collection[str]] = NO_ROLES,
    secrets: Sequence[str] = (),
    store: BaseStore | None = None,
    context: AgentContext | None = None,
    stop: StopRequest | None = None,
    served: bool = False,
) -> tuple[Machine, BoundNodes]:
    """Compile the machine, and give its nodes as well, which are closed by whoever runs it.

    `stop` is how somebody may let a run end early. With `served` every context is a client's, on any server.
    """
    nodes = BoundNodes(model, ToolRuntime(tools, rules, roles, secrets), stop, context, served=served)
    builder: StateGraph[AgentState, AgentContext, AgentInput, AgentOutput] = StateGraph(
        AgentState, context_schema=AgentContext, input_schema=AgentInput, output_schema=AgentOutput
    )
    beginning = bounded("begin_turn", lambda state: nodes.begin_turn(state, get_runtime(AgentContext)))
    parts = (
        beginning,
        TwoWays("call_model", nodes.call_model, nodes.acall_model),
        bounded("parse", nodes.parse),
        bounded("heal", nodes.heal),
        bounded("guard", nodes.guard),
        TwoWays("execute_tools", nodes.execute_tools, nodes.aexecute_tools),
        direct("loop_check", nodes.loop_check),
        in_a_thread(OutcomeKind.FINISHED, nodes.finish),
        in_a_thread(OutcomeKind.BUDGET_STOP, nodes.budget_stop),
        in_a_thread(OutcomeKind.SYSTEM_ERROR, nodes.system_error),
    )
    for node in parts:
        builder.add_node(node.name, node)
    for source, _, target in routes.TRANSITIONS:
        if source not in _ROUTERS:
            builder.add_edge(source, target)
    for source, router in _ROUTERS.items():
        builder.add_conditional_edges(source, Route(router), routes.path_map(source))
    compiled = builder.compile(checkpointer=checkpointer, store=store, name="mendgraph")
    limit = routes.recursion_limit(MAX_CALLS_PER_TURN_LIMIT)
    return agent_graph(compiled.with_config(recursion_limit=limit), nodes.scrub, secrets), nodes
