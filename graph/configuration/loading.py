"""The settings of a run from all that may set them, each with where it came from.

From the strongest: what the caller says (the command line's options), the environment (`OPENAI_BASE_URL` for
`base_url`), the workspace's `.mendgraph.toml`, the user's `config.toml`, the defaults of `AgentContext`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final

from pydantic import ValidationError

from mendgraph.graph.configuration.context import REPLY_TOKENS, SETTINGS, AgentContext
from mendgraph.graph.configuration.settings_file import Problem, Settings, parse_settings
from mendgraph.nodes.call_model.ledger import PRICES_VARIABLE, PriceList, parse_prices
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.store.user_files import (
    SETTINGS_FILE,
    absolute_name,
    configuration_file,
    hash_of,
    is_one_of,
    read_settings_file,
    read_user_file,
    trusted_hash,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode

CONFIG_VARIABLE: Final = "MENDGRAPH_CONFIG"
"""Names the user's file instead of the usual one, which then has to be there; empty: there is none."""

FILE_NAME: Final = "config.toml"
CALLER: Final = "command line"
DEFAULT: Final = "default"
_ENVIRONMENT: Final = {"base_url": "OPENAI_BASE_URL"}
"""Fields that the environment sets, which is read where the endpoint is called."""

REMEDY: Final = (
    "a repository's own file may only narrow what you allow; read it, then trust it with `mendgraph config trust`, or"
    " leave it out with --no-workspace-config"
)


@dataclass(frozen=True)
class Origin:
    """Where a setting came from: a file and its line, a variable, the caller or the default (line 0)."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        """In a few words."""
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Configuration:
    """What files and environment set for a workspace: below what the caller says, above the defaults.

    `files` are those that were read, `trusted` says whether the workspace's own may widen what the user allows, and
    `widens` are the fields with which it does.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    trusted: bool = False
    widens: tuple[str, ...] = ()


def load_configuration(
    workspace: str, environment: Mapping[str, str] | None = None, *, workspace_file: bool = True
) -> Configuration | tuple[Problem, ...]:
    """Read the files for this workspace; every problem of both where there are some, and then nothing is set."""
    variables = os.environ if environment is None else environment
    user, own = read_user_settings(variables), read_workspace_settings(workspace) if workspace_file else Settings()
    problems = [each for found in (user, own) if isinstance(found, tuple) for each in found]
    if isinstance(user, tuple) or isinstance(own, tuple):
        return tuple(problems)
    taken = [name for name, variable in _ENVIRONMENT.items() if variables.get(variable, "").strip()]
    base = {name: value for name, value in user.values.items() if name not in taken}
    below = _context(base, user.file)
    if isinstance(below, Problem):
        return (below,)
    new = {name: value for name, value in own.values.items() if name not in taken}
    trusted = is_trusted(workspace, user, own)
    widens = widening(new, below)
    if widens and not trusted:
        return tuple(
            Problem(own.file, f"{name} needs your trust: {REMEDY}", own.lines[name], field=name) for name in widens
        )
    merged = {**base, **new}
    whole = _context(merged, own.file or user.file)
    if isinstance(whole, Problem):
        return (whole,)
    origins = {name: Origin(_ENVIRONMENT[name]) for name in taken}
    for settings, values in ((user, base), (own, new)):
        origins |= {name: Origin(settings.file, settings.lines[name]) for name in values}
    files = tuple(each.file for each in (user, own) if each.file)
    return Configuration(merged, origins, files, trusted, widens)


def load_context(workspace: str = ".", *, workspace_file: bool = True, **settings: Any) -> AgentContext | ToolError:
    """The context of a run in this folder, as the terminal makes it; `settings` are what its options would be.

    `run_task` and `Session` read no files: hand them what this gives. A ToolError holds every problem of the files, one
    a line, each with file, line and field. With `workspace_file=False` the folder's own `.mendgraph.toml` is left out.
    """
    found = load_configuration(workspace, workspace_file=workspace_file)
    if isinstance(found, tuple):
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message="\n".join(map(str, found)))
    made = _context({**found.values, **settings, "workspace": workspace}, "the settings")
    if isinstance(made, Problem):
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=made.message)
    return made


def read_user_settings(environment: Mapping[str, str]) -> Settings | tuple[Problem, ...]:
    """What the user's own file sets; nothing where there is none."""
    named = environment.get(CONFIG_VARIABLE)
    found = None if named == "" else _users_file(FILE_NAME, named, CONFIG_VARIABLE)
    if found is None:
        return Settings()
    path, text = found
    if isinstance(text, ToolError):
        return (Problem(shown(path), text.message),)
    return parse_settings(text, shown(path), of_user=True)


def _users_file(name: str, named: str | None, variable: str) -> tuple[str, str | ToolError] | None:
    """A file's path, and its text or why it cannot be read: the one that `variable` names, which then has to be there.

    Otherwise it is the user's own of this name, None where there is none.
    """
    path = named or configuration_file(name)
    if isinstance(path, ToolError):
        return None
    text = read_user_file(path)
    if not isinstance(text, ToolError):
        return path, text
    if not named:
        return None if text.code is ToolErrorCode.NOT_FOUND else (path, text)
    message = f"{text.message} Mend what {variable} says, or leave it empty."
    return path, text.model_copy(update={"message": message})


def read_workspace_settings(workspace: str) -> Settings | tuple[Problem, ...]:
    """What the workspace's file sets; nothing where there is none."""
    data = read_settings_file(workspace)
    if data is None:
        return Settings()
    if isinstance(data, ToolError):
        return (Problem(SETTINGS_FILE, data.message),)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (Problem(SETTINGS_FILE, f"this is no UTF-8 text (byte {error.start})", line),)
    found = parse_settings(text, SETTINGS_FILE, of_user=False)
    return found if isinstance(found, tuple) else replace(found, sha256=hash_of(data))


def is_trusted(workspace: str, user: Settings, own: Settings) -> bool:
    """Whether the user trusts this folder, or the very file that was read in it."""
    return bool(own.sha256) and (is_one_of(workspace, user.trusted) or trusted_hash(workspace) == own.sha256)


def shown(path: str) -> str:
    """A file's name as messages have it."""
    return path if path.isprintable() and len(path) <= 200 else quoted(path)


def _context(values: Mapping[str, Any], where: str) -> AgentContext | Problem:
    """The context with these values, or what is wrong with them together."""
    try:
        return AgentContext(**values)
    except ValidationError as error:
        path, message = first_error(error)
        return Problem(where, f"{path}: {message}" if path else message, field=path.partition(".")[0])


def first_error(error: ValidationError) -> tuple[str, str]:
    """Where the first mistake is, as a dotted path, "" where it is the whole, and what pydantic says of it."""
    [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")


def user_places() -> tuple[str, ...]:
    """The absolute names of the user's own files of settings and prices, whether they are there or not."""
    usual = (configuration_file(name) for name in (FILE_NAME, PRICES_FILE))
    named = (os.environ.get(variable, "") for variable in (CONFIG_VARIABLE, PRICES_VARIABLE))
    return tuple(absolute_name(each) for each in (*usual, *named) if isinstance(each, str) and each)


# --- What a workspace's own file may set by itself: preferences, and less than the user allows


_RULES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "any": lambda _new, _old: True,
    "less": lambda new, old: bool(new is not None and (old is None or new <= old)),
    "shorter": lambda new, old: new is not None and new <= (REPLY_TOKENS if old is None else old),
    "off": lambda new, old: bool(old or not new),
    "on": lambda new, old: bool(new or not old),
    "part": lambda new, old: set(new) <= set(old),
    "extensions": lambda new, old: (
        bool(new) and (not old or {each.lstrip(".").lower() for each in new} <= {each.lstrip(".") for each in old})
    ),
    "limits": lambda new, old: all(name in new and new[name] <= most for name, most in old.items()),
}
"""(value of the file, value without the file) -> whether the file's allows nothing more."""


def widening(values: Mapping[str, Any], base: AgentContext) -> tuple[str, ...]:
    """Those of the file's fields that need the user's trust, in the file's order; `base` is what holds without it."""
    return tuple(name for name, value in values.items() if not _is_narrower(name, value, base))


def _is_narrower(name: str, value: Any, base: AgentContext) -> bool:
    old, rule = getattr(base, name), SETTINGS[name].trust
    if value == (list(old) if isinstance(old, tuple) else old):
        return True
    if isinstance(rule, tuple):
        return value in rule and old in rule and rule.index(value) <= rule.index(old)
    if rule == "times":  # a tool that is not named has the usual time
        usual = base.tool_timeout_s
        return all(value.get(tool, usual) <= old.get(tool, usual) for tool in {*value, *old})
    return bool(rule) and _RULES[rule](value, old)


# --- Prices

PRICES_FILE: Final = "prices.toml"


def load_prices() -> PriceList | ToolError:
    """The shipped prices, with the user's own in place of those of the same name.

    The user's are in the file that `MENDGRAPH_PRICES` names, which then has to be there; otherwise in `prices.toml` in
    the platform's configuration folder, if there is one. A file that cannot be read, or is no price list, is an error.
    """
    ours = resources.files("mendgraph.nodes.call_model").joinpath(PRICES_FILE).read_text(encoding="utf-8")
    shipped = parse_prices(ours, f"{PRICES_FILE} of mendgraph")
    found = _users_file(PRICES_FILE, os.environ.get(PRICES_VARIABLE), PRICES_VARIABLE)
    if isinstance(shipped, ToolError) or found is None:
        return shipped
    path, text = found
    own = text if isinstance(text, ToolError) else parse_prices(text, quoted(path))
    return own if isinstance(own, ToolError) else {**shipped, **own}
