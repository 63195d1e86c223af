"""What is wrong with the arguments of `build_graph` and `Session`: said where they are given.

A mistake of a program is raised, as everywhere in Python; what a run may meet is an outcome. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from pydantic import SecretStr

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import Durability
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.secrets.known_secrets import is_findable_key
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule


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
