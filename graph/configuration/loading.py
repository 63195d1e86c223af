"""The settings of a run from all that may set them, each with where it came from.

From the strongest: what the caller says (the command line's options), the environment (`OPENAI_BASE_URL` for
`base_url`), the workspace's `.mendgraph.toml`, the user's `config.toml`, the defaults of `AgentContext`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.price_files import FILE_NAME as PRICES
from mendgraph.graph.configuration.settings_file import Problem, Settings, parse_settings
from mendgraph.graph.configuration.trust import widening
from mendgraph.nodes.call_model.prices import PRICES_VARIABLE
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
from mendgraph.nodes.guard.file_rules import FileGuardrailRule
from mendgraph.nodes.guard.paths import folded_parts
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
    if named == "":
        return Settings()
    path = named or configuration_file(FILE_NAME)
    if isinstance(path, ToolError):
        return Settings()
    text = read_user_file(path)
    if isinstance(text, ToolError):
        if not named and text.code is ToolErrorCode.NOT_FOUND:
            return Settings()
        more = f" Mend what {CONFIG_VARIABLE} says, or leave it empty." if named else ""
        return (Problem(shown(path), f"{text.message}{more}"),)
    return parse_settings(text, shown(path), of_user=True)


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
        [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        path = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        return Problem(where, f"{path}: {message}" if path else message, field=path.partition(".")[0])


def user_settings_rule(workspace: str) -> FileGuardrailRule | None:
    """What denies the user's files that lie below the workspace, a real name; None where none do."""
    usual = (configuration_file(name) for name in (FILE_NAME, PRICES))
    named = (os.environ.get(variable, "") for variable in (CONFIG_VARIABLE, PRICES_VARIABLE))
    places = [each for each in (*usual, *named) if isinstance(each, str) and each]
    return _rule(workspace, tuple(map(absolute_name, places)))


@lru_cache(maxsize=64)
def _rule(workspace: str, places: tuple[str, ...]) -> FileGuardrailRule | None:
    real = {os.path.join(os.path.realpath(os.path.dirname(each)), os.path.basename(each)) for each in places}
    real |= {os.path.realpath(each) for each in places}
    inside = [os.path.relpath(each, workspace) for each in real if each.startswith(os.path.join(workspace, ""))]
    if not inside:
        return None
    known = frozenset(folded_parts(PurePosixPath(each)) for each in inside)

    def is_users(path: Path) -> bool:
        return folded_parts(path) in known

    return FileGuardrailRule("user_settings", "The user's own settings of the agent", is_users)
