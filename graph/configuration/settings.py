"""The metadata of a field of `AgentContext`, for the command line, the documents and trust."""

import json
import os
from collections.abc import Iterator, Mapping, Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo

from mendgraph.nodes.call_model.endpoint import models_in_order
from mendgraph.nodes.call_model.ledger import account_problem

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.files.sandbox import StrPath

    class FolderName:
        """A str that a path may be assigned to (PEP 681: the argument's type is that of `__set__`)."""

        def __get__(self, of: object, kind: object = None) -> str: ...
        def __set__(self, of: object, value: StrPath) -> None: ...
else:
    FolderName = Annotated[str, BeforeValidator(lambda it: os.fspath(it) if isinstance(it, os.PathLike) else it)]

MOST = 2**53
"""The largest count of a context, which JSON and checkpoints represent exactly."""


MOST_RETRIES = 10
"""The most retries of one model."""

MAX_CALLS_PER_TURN_LIMIT = 1_000
"""The most calls that a context may allow in one turn; the machine's recursion limit follows from it."""


class Setting(NamedTuple):
    """The metadata of a field beside its type, default, bounds and description.

    `trust` says when an untrusted file of a workspace may set the field: the name of a rule in `loading.py`, or the
    values in order, the strictest first; "" is never. `protects`: the user relies on the value, such as on checks, so
    that such a file may not change it. `option` is the option of the command line with its metavar; `choices` are its
    values if the field takes more. `panel` is the group of the option in the help.
    """

    trust: str | tuple[str | None, ...] = ""
    option: str = ""
    choices: tuple[str, ...] = ()
    protects: bool = False
    panel: str = "Context"


def setting(
    default: Any,
    description: str,
    *,
    trust: str | tuple[str | None, ...] = "",
    option: str = "",
    choices: tuple[str, ...] = (),
    protects: bool = False,
    panel: str = "Context",
    **bounds: Any,
) -> Any:
    """Return a field of `AgentContext` with its metadata."""
    field = Field(default, description=description, **bounds)
    field.metadata.append(Setting(trust, option, choices, protects, panel))
    return field


def limit(default: Any, description: str, **more: Any) -> Any:
    """Return a field for a limit: a count from 1, unless `more` has another bound. An untrusted file may lower it."""
    return setting(default, description, trust="less", panel="Limits", **({"ge": 1, "le": MOST} | more))


Context = TypeVar("Context")

PRICES: Final = (
    "usd_per_million_input",
    "usd_per_million_output",
    "usd_per_million_cached_input",
    "usd_per_million_cache_write",
)


def usable_prices(context: Context) -> Context:
    """Return the context; raises ValueError if its prices cannot be used."""
    price = getattr(context, PRICES[0])
    if (price is None) != (getattr(context, PRICES[1]) is None):
        raise ValueError("usd_per_million_input and usd_per_million_output are given together")

    for name in PRICES:
        if getattr(context, name) is not None and price is None:
            raise ValueError(f"{name} needs usd_per_million_input as well")

    return context


def usable_fallbacks(fallbacks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models; raises ValueError if they cannot be asked in turn."""
    models = models_in_order(None, None, fallbacks)
    if isinstance(models, str):
        raise ValueError(models)  # noqa: TRY004 - what pydantic tells of a field

    return fallbacks


def usable_patterns(patterns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Return the denied paths as patterns below the workspace; raises ValueError for one that is none."""
    from mendgraph.nodes.workspace.files.tree_walk import denied_patterns

    return denied_patterns(patterns, info.data.get("workspace", "."))


def address_without_login(url: str | None) -> str | None:
    """Return the address of an endpoint; raises ValueError if it has a user name or password."""
    if url is not None and "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("base_url must not contain a user name or password: put the key into OPENAI_API_KEY")

    return url


def named_account(account: str) -> str:
    """Return the name of an account; raises ValueError for one that it cannot have."""
    problem = account_problem(account)
    if problem is not None:
        raise ValueError(problem)

    return account


_EXPECTED: Final = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_type": "text",
    "tuple_type": "a list",
}
"""What a value must be, by pydantic's type of the error; braces hold names of its context."""


def value_words(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors, with its context, in words: `must be at least 1`."""
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return str(error["msg"].removeprefix("Value error, "))

    return f"must be {expected.format(**error.get('ctx', {}))}"


def model_kwargs_problem(settings: Mapping[str, Any], fields: AbstractSet[str]) -> str:
    """Return why these arguments of a chat model are refused, "" if they are accepted: a key, a field, or not JSON."""
    from mendgraph.nodes.execute_tools.secrets.keys import is_secret_key

    try:
        json.dumps(settings)
    except (TypeError, ValueError, RecursionError):
        return "only JSON values can be given here: strings, numbers, lists and objects"

    duplicates = settings.keys() & fields
    if duplicates:
        return f"{min(duplicates)!r} cannot be set here: it is a separate setting"

    for name in _names_in(settings):
        if is_secret_key(name):
            return f"{name!r} contains a key: set it in the environment, or pass a chat model with model=..."

    return ""


def _names_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from map(str, value)
        value = list(value.values())

    if isinstance(value, list | tuple):
        for item in value:
            yield from _names_in(item)
