"""The options of a machine and of a session, with their defaults and checks."""

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
from mendgraph.nodes.language.display import described_type
from mendgraph.nodes.parse.answers import ResponseFormat, read_format
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
    """The default of an option, its types, what to give instead of another value, and which items it may have."""

    default: Any
    types: tuple[Any, ...]
    remedy: str = ""
    accepts_item: Callable[[Any], bool] | None = None

    def accepts(self, value: Any) -> bool:
        """Return whether the value has one of the types, and its items are accepted. A blank text is no name."""
        if isinstance(value, str) and object not in self.types:
            return str in self.types and bool(value.strip())
        if not isinstance(value, self.types):
            return False
        if self.accepts_item is None:
            return True

        return all(map(self.accepts_item, value.values() if isinstance(value, Mapping) else value))


def _is_rule(item: Any) -> bool:
    return isinstance(item, FileGuardrailRule) and callable(item.check)


def _are_names(item: Any) -> bool:
    return isinstance(item, Collection) and all(isinstance(name, str) for name in item) and not isinstance(item, str)


_NONE = type(None)
_OPTIONS: Final[Mapping[str, _Option]] = {
    "model": _Option(
        None,
        (Runnable, str, _NONE),
        'a chat model of LangChain such as ChatAnthropic(model="..."), or a name such as "anthropic:claude-sonnet-4-6"',
    ),
    "tools": _Option(None, (Sequence, _NONE), "a sequence of tools, as in (*default_tools(), mine)"),
    "effects": _Option({}, (Mapping,), 'effects by name of a tool, as in {"look_up": Effect.READ}'),
    "rules": _Option(
        DEFAULT_GUARDRAIL_RULES,
        (Sequence,),
        "a sequence of FileGuardrailRule(name, description, check), as in (*DEFAULT_GUARDRAIL_RULES, mine)",
        _is_rule,
    ),
    "roles": _Option(
        {}, (Mapping,), 'collections of names of tools by role, as in {"clerk": ("read_file",)}', _are_names
    ),
    "arg_validators": _Option(
        {}, (Mapping,), 'functions by name of a tool, as in {"write_file": validate_write}', callable
    ),
    "secrets": _Option(
        (), (Collection,), "a sequence of texts, as in (token,)", lambda secret: isinstance(secret, str)
    ),
    "store": _Option(None, (BaseStore, _NONE), "a store of LangGraph, such as InMemoryStore()"),
    "middleware": _Option((), (object,)),  # `check_middleware` checks it
    "name": _Option(None, (str, _NONE), 'a text, as in "coder"'),
    "system_prompt": _Option(
        None,
        (str, SystemMessage, _NONE),
        "a text or a SystemMessage, which is said after the words that the tools need",
    ),
    "response_format": _Option(None, (object,)),  # `read_format` checks it
}


def with_defaults(options: MachineOptions) -> MachineOptions:
    """Return the options with the default of each absent one."""
    defaults: Any = {name: option.default for name, option in _OPTIONS.items()}
    return {**defaults, **options}


def check_options(checkpointer: Any, context: Any, options: MachineOptions) -> MachineOptions:
    """Return all options with their defaults; the keys of a chat model are added to the secrets.

    Raises:
        TypeError: an option has another type or is unknown; the message names it and the remedy.
        ValueError: a tool cannot be used, two have the same name, a middleware needs what there is not here, or the
            `response_format` is a JSON schema with a mistake.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"{name}: there is no such option.")

    options = with_defaults(options)
    prompt = options["system_prompt"]
    if isinstance(prompt, str) and not prompt.strip():
        options["system_prompt"] = None

    options["tools"] = _with_tools_of(options["middleware"], options["tools"])

    if not isinstance(checkpointer, BaseCheckpointSaver | bool | None):
        remedy = "a checkpoint saver of LangGraph, such as InMemorySaver(), entered where it is a context manager"
        raise _misfit("checkpointer", checkpointer, remedy)
    if not isinstance(context, AgentContext | None):
        raise _misfit("context", context, "AgentContext(workspace=..., ...)")

    values: Mapping[str, Any] = {**options}
    for name, option in _OPTIONS.items():
        if not option.accepts(values[name]):
            raise _misfit(name, values[name], option.remedy)

    context_overrides(options)  # raises for a response_format that no answer can have
    tools = options["tools"] or ()
    if options["effects"] or any(not isinstance(tool, Tool) for tool in tools):
        from mendgraph.graph.langchain.tools import as_tools  # its imports take time

        tools = options["tools"] = as_tools(tools, options["effects"])

    for name, times in Counter(tool.name for tool in cast("Sequence[Tool]", tools)).items():
        if times > 1:
            raise ValueError(f"tools: {times} tools are called {name!r}: use different names.")

    options["secrets"] = (*options["secrets"], *_keys_of(options["model"]))
    return options


def context_overrides(options: MachineOptions) -> dict[str, Any]:
    """Return the fields of every run's context that options set; they are stored with the run.

    Raises TypeError, ValueError: the `response_format` is no type or schema that an answer can have.
    """
    overrides: dict[str, Any] = {}
    prompt = options["system_prompt"]
    if isinstance(prompt, SystemMessage):
        prompt = prompt.text
    if prompt is not None:
        overrides["system_prompt"] = prompt
    form = read_response_format(options)
    if form is not None:
        overrides["response_format"] = form.json_schema

    return overrides


def read_response_format(options: MachineOptions) -> ResponseFormat | None:
    """Return the form of answers; raises as `context_overrides`."""
    form = options["response_format"]
    return None if form is None else read_format(form)


def _with_tools_of(middleware: Any, tools: Any) -> Any:
    """Return the tools with those of the middleware."""
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
    """Return the keys of a chat model that are long enough to be found in texts."""
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
    return TypeError(f"{name}: {described_type(value)} is not accepted: use {remedy}.")
