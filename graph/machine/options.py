"""What a machine and a session are made of: the options, their defaults, what fits each, and what to give instead."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Union, cast

from langchain_core.messages import SystemMessage
from langchain_core.runnables import Runnable
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from pydantic import SecretStr

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.wrapped_models import run_models
from mendgraph.graph.machine.run_records import Durability
from mendgraph.nodes.execute_tools.registry import Action, Tool, Validator
from mendgraph.nodes.execute_tools.secrets.redact import is_findable_key
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.parse.answers import read_format
from mendgraph.nodes.records import Effect

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.tools import BaseTool

AnyTool = Union[Action, "BaseTool", Callable[..., Any]]


class MachineOptions(TypedDict, total=False):
    """The options of a machine beside its context and its checkpointer: see `build_graph`."""

    model: Runnable[Any, Any] | str | None
    tools: "Sequence[AnyTool] | None"
    effects: Mapping[str, Effect]
    rules: Sequence[FileGuardrailRule]
    roles: Mapping[str, Collection[str]]
    arg_validators: Mapping[str, Validator]
    secrets: Sequence[str]
    store: BaseStore | None
    middleware: "Sequence[AgentMiddleware[Any, Any, Any]]"
    name: str | None
    system_prompt: str | SystemMessage | None
    response_format: Any


class SessionOptions(MachineOptions, total=False):
    """The options of a session beside its context: see `Session`."""

    checkpointer: BaseCheckpointSaver[Any] | None
    thread_id: str | None
    durability: Durability
    kept_permissions: bool


class _Option(NamedTuple):
    """The default of an option, whether a value fits it, and what to give instead of a value that does not."""

    default: Any
    fits: Callable[[Any], bool]
    remedy: str


def _all_are(values: Any, kind: type, container: type[Any] = Sequence) -> bool:
    if not isinstance(values, container) or isinstance(values, str):
        return False
    return all(isinstance(value, kind) for value in values)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_model(value: Any) -> bool:
    return isinstance(value, Runnable | None) or _is_name(value)


def _are_tools(value: Any) -> bool:
    return value is None or _all_are(value, object)


def _are_rules(value: Any) -> bool:
    if isinstance(value, FileGuardrailRule) or not _all_are(value, FileGuardrailRule):
        return False
    return all(callable(rule.check) for rule in value)


def _are_roles(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_all_are(names, str, Collection) for names in value.values())


def _are_validators(value: Any) -> bool:
    return isinstance(value, Mapping) and all(callable(validator) for validator in value.values())


_OPTIONS: Final[Mapping[str, _Option]] = {
    "model": _Option(
        None,
        _is_model,
        'a chat model of LangChain such as ChatAnthropic(model="..."), or a name such as "anthropic:claude-sonnet-4-6"',
    ),
    "tools": _Option(None, _are_tools, "a sequence of tools, as in (*default_tools(), mine)"),
    "effects": _Option(
        {},
        lambda value: isinstance(value, Mapping),
        'effects by name of a tool, as in {"look_up": Effect.READ}',
    ),
    "rules": _Option(
        DEFAULT_GUARDRAIL_RULES,
        _are_rules,
        "a sequence of FileGuardrailRule(name, description, check), as in (*DEFAULT_GUARDRAIL_RULES, mine)",
    ),
    "roles": _Option({}, _are_roles, 'collections of names of tools by role, as in {"clerk": ("read_file",)}'),
    "arg_validators": _Option({}, _are_validators, 'functions by name of a tool, as in {"write_file": validate_write}'),
    "secrets": _Option((), lambda value: _all_are(value, str, Collection), "a sequence of texts, as in (token,)"),
    "store": _Option(
        None, lambda value: isinstance(value, BaseStore | None), "a store of LangGraph, such as InMemoryStore()"
    ),
    "middleware": _Option((), lambda _: True, ""),  # `check_middleware` says what fits
    "name": _Option(None, lambda value: value is None or _is_name(value), 'a text, as in "coder"'),
    "system_prompt": _Option(
        None,
        lambda value: isinstance(value, str | SystemMessage | None),
        "a text or a SystemMessage, which is said after the words that the tools need",
    ),
    "response_format": _Option(None, lambda _: True, ""),  # `read_format` says what fits
}


def with_defaults(options: MachineOptions) -> MachineOptions:
    """The options, with the default of each that is absent."""
    defaults: Any = {name: option.default for name, option in _OPTIONS.items()}
    return {**defaults, **options}


def check_options(checkpointer: Any, context: Any, options: MachineOptions) -> MachineOptions:
    """All options with their defaults; the keys of a chat model are among the secrets, so nothing shows or stores them.

    Raises:
        TypeError: one is of another type or unknown; the message names it and the remedy.
        ValueError: a tool cannot be used, two have the same name, a middleware needs what there is not here, or the
            `response_format` is a JSON schema with a mistake.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"{name}: there is no such option.")

    options = with_defaults(options)
    options["tools"] = _with_tools_of(options["middleware"], options["tools"])

    if not isinstance(checkpointer, BaseCheckpointSaver | bool | None):
        remedy = "a checkpoint saver of LangGraph, such as InMemorySaver(), entered where it is a context manager"
        raise _misfit("checkpointer", checkpointer, remedy)
    if not isinstance(context, AgentContext | None):
        raise _misfit("context", context, "AgentContext(workspace=..., ...)")

    values: Mapping[str, Any] = {**options}
    for name, option in _OPTIONS.items():
        if not option.fits(values[name]):
            raise _misfit(name, values[name], option.remedy)

    context_overrides(options)  # which refuses a response_format that no answer can have
    tools = options["tools"] or ()
    if options["effects"] or any(not isinstance(tool, Tool) for tool in tools):
        from mendgraph.graph.langchain.tools import as_tools  # what it imports takes time

        tools = options["tools"] = as_tools(tools, options["effects"])

    for name, times in Counter(tool.name for tool in cast("Sequence[Tool]", tools)).items():
        if times > 1:
            raise ValueError(f"tools: {times} tools are called {name!r}: give them different names.")

    options["secrets"] = (*options["secrets"], *_keys_of(options["model"]))
    return options


def context_overrides(options: MachineOptions) -> dict[str, Any]:
    """The fields of every run's context that options set, whatever context it is given; they are stored with the run.

    Raises TypeError, ValueError: the `response_format` is no type or schema that an answer can have.
    """
    overrides: dict[str, Any] = {}
    prompt = options["system_prompt"]
    if isinstance(prompt, SystemMessage):
        prompt = prompt.text
    if prompt is not None:
        overrides["system_prompt"] = prompt
    if options["response_format"] is not None:
        overrides["response_format"] = read_format(options["response_format"]).json_schema

    return overrides


def _with_tools_of(middleware: Any, tools: Any) -> Any:
    """The tools, with those that the middleware adds."""
    if not middleware:
        return tools

    from mendgraph.graph.langchain.hooks import check_middleware

    check_middleware(middleware)
    added = [tool for hook in middleware for tool in getattr(hook, "tools", ())]
    if not added:
        return tools
    if tools is None:
        tools = default_tools()

    return (*tools, *added)


def _keys_of(model: Any) -> tuple[str, ...]:
    """The keys that a chat model holds, where they are long enough to be looked for in texts."""
    if not isinstance(model, Runnable):
        return ()

    try:
        singles = run_models(model)
    except TypeError as error:
        raise TypeError(f"model: {error}.") from None

    keys = []
    for single in singles:
        for _, value in single.chat:
            if isinstance(value, SecretStr) and is_findable_key(value.get_secret_value()):
                keys.append(value.get_secret_value())

    return tuple(keys)


def _misfit(name: str, value: object, remedy: str) -> TypeError:
    kind = f"a {type(value).__name__}"
    if isinstance(value, type):
        kind = f"the class {value.__name__}"

    return TypeError(f"{name}: {kind} does not fit: give {remedy}.")
