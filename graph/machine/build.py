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
from langchain_core.runnables import Runnable
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
from mendgraph.graph.machine.state import (
    AgentInput,
    AgentOutput,
    AgentState,
    BeginTurnSlice,
    CallModelSlice,
    ExecuteToolsSlice,
    GuardSlice,
    HealSlice,
    LoopCheckSlice,
    ParseSlice,
    StopSlice,
)
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
    for name, check in _CHECKS.items():
        value = getattr(given, name)
        problem = _CLASS.format(value.__name__) if isinstance(value, type) else check(value)
        if problem:
            raise TypeError(f"{name}: {problem}")
    counted = Counter(tool.name for tool in given.tools or ())
    for name, times in counted.items():
        if times > 1:
            raise ValueError(f"tools: {times} tools are called {name!r}: give them different names.")


_CLASS: Final = "{0} is a class: make one of it, as in {0}(...)."


def _checkpointer(given: object) -> str:
    if given is None or isinstance(given, BaseCheckpointSaver | bool):
        return ""
    if hasattr(given, "__enter__") or hasattr(given, "__aenter__"):
        return f"{_kind(given)} is a context manager: enter it, as in `with ... as saver`, and give what it yields."
    return f"{_kind(given)} is no checkpoint saver of LangGraph, such as InMemorySaver()."


def _store(given: object) -> str:
    if given is None or isinstance(given, BaseStore):
        return ""
    return f"{_kind(given)} is no store of LangGraph, such as InMemoryStore()."


def _model(given: object) -> str:
    if given is None:
        return ""
    if isinstance(given, str):
        return "" if given.strip() else "the name is empty: leave it out to use what the environment names."
    if isinstance(given, BaseChatModel):
        return ""
    remedy = 'give a chat model such as ChatAnthropic(model="..."), or a name such as "anthropic:claude-sonnet-4-6"'
    if isinstance(given, Runnable):
        return f"{_kind(given)} is no chat model of LangChain by itself: {remedy}."
    return f"{_kind(given)} is no chat model of LangChain: {remedy}."


def _tools(given: object) -> str:
    if given is None:
        return ""
    if isinstance(given, Tool | str) or not isinstance(given, Sequence):
        return "give a sequence of tools, as in tools=(*default_tools(), mine)."
    for place, each in enumerate(given):
        if not isinstance(each, Tool):
            name = getattr(each, "__name__", "") or getattr(each, "name", "") or _kind(each)
            return f"number {place} ({name}) is no tool: make one of a typed function with @tool(effect=Effect.READ)."
    return ""


def _rules(given: object) -> str:
    if isinstance(given, FileGuardrailRule | str) or not isinstance(given, Sequence):
        return "give a sequence of rules, as in rules=(*DEFAULT_GUARDRAIL_RULES, mine)."
    for place, each in enumerate(given):
        if not isinstance(each, FileGuardrailRule):
            return f"number {place} ({_kind(each)}) is no rule: FileGuardrailRule(name, description, check) is one."
        if not callable(each.check):
            return f"number {place} ({each.name}) has a check that is no function of a path, True where it is blocked."
    return ""


def _roles(given: object) -> str:
    if not isinstance(given, Mapping):
        return 'give names of tools by role, as in roles={"clerk": ("read_file",)}.'
    for role, names in given.items():
        if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
            return f'the role {role!r} needs a collection of names of tools, as in ("read_file", "edit_file").'
    return ""


def _secrets(given: object) -> str:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(s, str) for s in given):
        return "give a sequence of texts, as in secrets=(token,)."
    return ""


def _context(given: object) -> str:
    if given is None or isinstance(given, AgentContext):
        return ""
    return f"{_kind(given)} is no AgentContext: give AgentContext(workspace=..., ...)."


def _kind(value: object) -> str:
    return type(value).__name__


_CHECKS: Mapping[str, Callable[[object], str]] = {
    "checkpointer": _checkpointer,
    "model": _model,
    "tools": _tools,
    "rules": _rules,
    "roles": _roles,
    "secrets": _secrets,
    "store": _store,
    "context": _context,
}


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
        (beginning, BeginTurnSlice),
        (TwoWays("call_model", nodes.call_model, nodes.acall_model), CallModelSlice),
        (bounded("parse", nodes.parse), ParseSlice),
        (bounded("heal", nodes.heal), HealSlice),
        (bounded("guard", nodes.guard), GuardSlice),
        (TwoWays("execute_tools", nodes.execute_tools, nodes.aexecute_tools), ExecuteToolsSlice),
        (direct("loop_check", nodes.loop_check), LoopCheckSlice),
        (in_a_thread(OutcomeKind.FINISHED, nodes.finish), StopSlice),
        (in_a_thread(OutcomeKind.BUDGET_STOP, nodes.budget_stop), StopSlice),
        (in_a_thread(OutcomeKind.SYSTEM_ERROR, nodes.system_error), StopSlice),
    )
    for node, seen in parts:
        builder.add_node(node.name, node, input_schema=seen)
    for source, _, target in routes.TRANSITIONS:
        if source not in _ROUTERS:
            builder.add_edge(source, target)
    for source, router in _ROUTERS.items():
        builder.add_conditional_edges(source, Route(router), routes.path_map(source))
    compiled = builder.compile(checkpointer=checkpointer, store=store, name="mendgraph")
    limit = routes.recursion_limit(MAX_CALLS_PER_TURN_LIMIT)
    return agent_graph(compiled.with_config(recursion_limit=limit), nodes.scrub, secrets), nodes
