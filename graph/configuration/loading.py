"""The settings of a run from all sources, with the origin of each and the problems of a file.

Sources by priority: the caller (options of the command line), the environment (`MENDGRAPH_MODEL` for `model`,
`OPENAI_BASE_URL` for `base_url`), the workspace's `.mendgraph.toml`, the user's `config.toml`, the defaults of
`AgentContext`.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from mendgraph.graph.configuration.context import REPLY_TOKENS, SETTINGS, AgentContext
from mendgraph.graph.configuration.mcp_servers import SERVERS_TABLES, ServerSettings, parse_servers, server_problems
from mendgraph.graph.configuration.permissions import PERMISSIONS_FILE
from mendgraph.graph.configuration.presets import HOSTED
from mendgraph.graph.configuration.settings import value_words
from mendgraph.nodes.call_model.endpoint import MODEL_VARIABLE, Endpoint, find_endpoint
from mendgraph.nodes.call_model.prices import PRICES_VARIABLE
from mendgraph.nodes.guard.file_rules import outside
from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.sandbox import StrPath
from mendgraph.nodes.workspace.store import user_files

CONFIG_VARIABLE: Final = "MENDGRAPH_CONFIG"
"""Names the user's file, which then has to exist; empty: no file is read."""

FILE_NAME: Final = "config.toml"
CALLER: Final = "command line"
DEFAULT: Final = "default"
_ENVIRONMENT: Final = {"base_url": "OPENAI_BASE_URL", "model": MODEL_VARIABLE}
"""Fields that the environment sets; the endpoint reads it."""

REMEDY: Final = (
    "a repository's own file may only narrow what you allow, and change nothing that you have set or rely on; read it,"
    " then trust it with `mendgraph config trust`, or leave it out with --no-workspace-config"
)


# --- One file of settings

_ONE_PROGRAM = re.compile(r"(?!-)[^\s*?\"'`$&;|<>()~]*[^\s*?\"'`$&;|<>()~/]")
"""A name or a path without arguments and without shell syntax."""


def program_problem(entry: str) -> str | None:
    """Return why this is not the name or the path of one program; None if it is."""
    if _ONE_PROGRAM.fullmatch(entry):
        return None

    remedy = "use a name such as make, or a path such as .venv/bin/pytest"
    words = entry.split()
    if words and _ONE_PROGRAM.fullmatch(words[0]):
        remedy = f"use only the program, {words[0]!r}"

    return f"{quoted(entry)} is not one program: {remedy}"


def command_problem(entry: str) -> str | None:
    """Return why this is not the prefix of simple commands; None if it is."""
    from mendgraph.nodes.language.command_lines import is_command_prefix

    if is_command_prefix(entry):
        return None

    remedy = "name a command such as `git log` or pytest, or put the program into allowed_programs"
    return f"{quoted(entry)} is not one simple command, or it may start any program: {remedy}"


class Document(NamedTuple):
    """The values of a TOML document, and its lines."""

    values: Mapping[str, Any]
    lines: Sequence[str] = ()

    def line(self, path: Sequence[str]) -> int:
        """Return the line, from 1, of the innermost of these keys that has one; 0 if none has."""
        line_number = 0
        for key in path:
            following = enumerate(self.lines[max(line_number - 1, 0) :], max(line_number, 1))
            line_number = next((number for number, line in following if key in _keys_of(line)), line_number)

        return line_number


def _keys_of(line: str) -> list[str]:
    return [part.strip(" \t[]\"'") for part in line.partition("=")[0].split(".")]


def read_document(text: str) -> Document | DocumentProblem:
    """Return the document, or the first syntax error."""
    values = read_toml(text)
    if isinstance(values, DocumentProblem):
        return values

    return Document(values, text.splitlines())


ELSEWHERE: Final = {"workspace": "name the folder with --root, or start in it"}
"""Fields that no file may set, and how to set them."""

MOST_PROBLEMS: Final = 100
"""Reported problems of one file."""

MORE_PROBLEMS: Final = f"there may be more: the first {MOST_PROBLEMS} problems are shown"

_SECRET_NAME: Final = re.compile(
    r"(api|access|auth|private|secret)[_-]?key|token$|password|passwd|secret|credential|authorization", re.IGNORECASE
)
_KEY_REMEDY: Final = "put the key into the environment variable OPENAI_API_KEY, and take it out of the file"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_LONGEST_KEY: Final = 60


@dataclass(frozen=True)
class Problem:
    """A problem of a file. Line and column count from 1; 0 is the whole file."""

    file: str
    message: str
    line: int = 0
    column: int = 0
    field: str = ""

    def __str__(self) -> str:
        """Return one line in the form of compilers."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class Settings:
    """The values of a file and the line of each; a workspace's file is trusted by its `sha256`.

    `servers` are the MCP servers of a user's file.
    """

    file: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    sha256: str = ""
    servers: Mapping[str, ServerSettings] = field(default_factory=dict)


def parse_settings(text: str, file: str) -> Settings | tuple[Problem, ...]:
    """Return the settings in `text`, or all its problems; `file` is its name in messages."""
    document = read_document(text)
    if isinstance(document, DocumentProblem):
        return (Problem(file, f"this is not TOML: {document.message}", document.line, document.column),)

    problems = first_problems(_problems(document, file), file)
    if problems:
        return problems

    values = {name: value for name, value in document.values.items() if name not in SERVERS_TABLES}
    lines = {name: document.line((name,)) for name in values}
    return Settings(file, values, lines, servers=parse_servers(document.values))


def first_problems(problems: Iterable[Problem], file: str) -> tuple[Problem, ...]:
    """Return the first `MOST_PROBLEMS` by line; a last one says if there are more."""
    first = list(islice(problems, MOST_PROBLEMS + 1))
    in_order = sorted(first[:MOST_PROBLEMS], key=lambda problem: (problem.line, problem.field))
    if len(first) > MOST_PROBLEMS:
        in_order.append(Problem(file, MORE_PROBLEMS))

    return tuple(in_order)


def _problems(document: Document, file: str) -> Iterator[Problem]:
    usable: dict[str, Any] = {}

    for name, value in document.values.items():
        message = _name_problem(name, value) or _secret_problem(name, value)
        if message:
            yield Problem(file, message, document.line((name,)), field=name)
        else:
            usable[name] = value

    tables: dict[str, Any] = {name: usable.pop(name) for name in SERVERS_TABLES if name in usable}
    for path, message in chain(value_problems(usable), server_problems(tables)):
        yield Problem(file, message, document.line(path), field=path[0])


def _name_problem(name: str, value: Any) -> str:
    """Return the problem of a key; "" if it has none."""
    if name in ELSEWHERE:
        return f"{name} cannot be set in a file: {ELSEWHERE[name]}"
    if name in AgentContext.model_fields or name in SERVERS_TABLES:
        return ""
    if _SECRET_NAME.search(name):
        return f"{_short_key(name)} would be a secret in a file: {_KEY_REMEDY}"

    what = f"there is no setting {_short_key(name)}"
    inner = sorted(value.keys() & AgentContext.model_fields.keys()) if isinstance(value, dict) else []
    if inner:
        return f"{what}: {inner[0]} and all settings belong at the top of the file, outside of any table"

    suggestions = closest_names(name, AgentContext.model_fields.keys() - ELSEWHERE.keys(), 2) if len(name) > 2 else ()
    if suggestions:
        return f"{what}: did you mean {' or '.join(suggestions)}?"

    return f"{what}; `mendgraph config` lists all"


def _secret_problem(name: str, value: Any) -> str:
    """Return the problem of a secret in a file, which may be copied and committed; "" if it has none."""
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    rendered = json.dumps(value, default=str, ensure_ascii=False)
    if Redactor().text(rendered) == rendered:
        return ""

    remedy = _KEY_REMEDY
    if name in SERVERS_TABLES:
        remedy = "set it in the environment, and write ${VARIABLE} in the file"

    return f"{name} holds what looks like a secret: {remedy}"


def value_problems(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the message of each invalid value."""
    wrong: set[str] = set()
    texts: dict[str, str] = {}
    for name, value in values.items():
        try:
            texts[name] = f"{json.dumps(name)}: {json.dumps(value)}"
        except TypeError:
            wrong.add(name)
            yield (name,), f"{name} must not be a date or time. {_help(name)}"

    try:
        AgentContext.model_validate_json(f"{{{', '.join(texts.values())}}}", strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            path = tuple(map(str, detail["loc"]))
            if path and path[0] not in wrong:  # problems of several fields are found when all files are known
                wrong.add(path[0])
                yield path, f"{_sentence(path, value_words(detail))} {_help(path[0])}"

    for name in values.keys() - wrong:
        for message in _further(name, values[name]):
            yield (name,), f"{name}: {message}"


def _further(name: str, value: Any) -> Iterator[str]:
    """Yield the problems that the types of the fields do not exclude."""
    if name in {"allowed_hosts", "allowed_private_hosts"}:
        yield from AgentContext().model_copy(update={name: tuple(value)}).network_problems()
    elif name == "allowed_programs":
        yield from filter(None, map(program_problem, value))
    elif name == "allowed_commands":
        yield from filter(None, map(command_problem, value))


def _sentence(path: tuple[str, ...], message: str) -> str:
    where = path[0]
    for part in path[1:]:
        if part.isdigit():
            where += f"[{part}]"
        else:
            where += f".{_short_key(part)}"

    if message.startswith("must be "):
        return f"{where} {message}."

    return f"{where}: {message.rstrip('.')}."


def _help(name: str) -> str:
    return f"It means: {AgentContext.model_fields[name].description}"


def _short_key(name: str) -> str:
    """Return a key of a file, cut and on one line."""
    if _PLAIN.fullmatch(name):
        return name
    if len(name) > _LONGEST_KEY:
        name = f"{name[:_LONGEST_KEY]}..."

    return repr(name)


# --- All files of a workspace


@dataclass(frozen=True)
class Origin:
    """The origin of a setting: a file and its line; or a variable, the caller or the default (line 0)."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        """Return the name with the line."""
        if self.line:
            return f"{self.name}:{self.line}"
        return self.name


@dataclass(frozen=True)
class Configuration:
    """The settings of files and environment for a workspace; `files` are those that were read."""

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def load_configuration(
    workspace: str,
    environment: Mapping[str, str] | None = None,
    *,
    workspace_file: bool = True,
    defaults: Mapping[str, Any] | None = None,
) -> Configuration | tuple[Problem, ...]:
    """Return the settings of the files for this workspace, or the problems of both.

    `defaults` are used instead of the defaults of `AgentContext`, also to decide what the workspace's file may set.
    They are not a part of the result.
    """
    variables = os.environ if environment is None else environment
    user = read_user_settings(variables)
    workspace_settings = read_workspace_settings(workspace) if workspace_file else Settings()
    if isinstance(user, tuple):
        return user if isinstance(workspace_settings, Settings) else (*user, *workspace_settings)
    if isinstance(workspace_settings, tuple):
        return workspace_settings

    variables_set = [name for name, variable in _ENVIRONMENT.items() if variables.get(variable, "").strip()]
    base = {name: value for name, value in user.values.items() if name not in variables_set}
    profile = defaults or {}
    below = _context({**profile, **base}, user.file)

    if isinstance(below, Problem):
        return (below,)

    new = {name: value for name, value in workspace_settings.values.items() if name not in variables_set}
    trusted = bool(workspace_settings.sha256) and user_files.trusted_hash(workspace) == workspace_settings.sha256
    merged = overlay(base, new)
    values = {name: merged[name] for name in new}
    if not trusted:
        untrusted = needing_trust(values, below, base.keys())
        if untrusted:
            return tuple(_untrusted(workspace_settings, name) for name in untrusted)

    context = _context({**profile, **merged}, workspace_settings.file or user.file)
    if isinstance(context, Problem):
        return (context,)

    origins = {name: Origin(_ENVIRONMENT[name]) for name in variables_set}
    for settings, values in ((user, base), (workspace_settings, new)):
        origins |= {name: Origin(settings.file, settings.lines[name]) for name in values}

    files = tuple(settings.file for settings in (user, workspace_settings) if settings.file)
    return Configuration(merged, origins, files)


def load_with_preset(
    workspace: str, settings: Mapping[str, Any], *, workspace_file: bool = True
) -> tuple[Configuration | tuple[Problem, ...], Mapping[str, Any]]:
    """Return the configuration below these settings, and the preset below both: `HOSTED` for a hosted model, or none.

    What the workspace's file may set depends on the preset, and the preset on the model that a file may name.
    """
    read = load_configuration(workspace, workspace_file=workspace_file, defaults=HOSTED)
    if isinstance(read, tuple):
        return read, HOSTED

    chosen = overlay(read.values, settings)
    endpoint = find_endpoint(chosen.get("model"), chosen.get("base_url"), os.environ)
    if isinstance(endpoint, Endpoint) and not endpoint.embedded:
        return read, HOSTED

    return load_configuration(workspace, workspace_file=workspace_file), {}


def _untrusted(settings: Settings, name: str) -> Problem:
    return Problem(settings.file, f"{name} needs your trust: {REMEDY}", settings.lines[name], field=name)


def load_context(workspace: StrPath = ".", *, workspace_file: bool = True, **settings: Any) -> AgentContext | ToolError:
    """Return the context of a run in this folder, as the terminal builds it; `settings` are like its options.

    `run_task` and `Session` read no files: pass them this context. A ToolError has every problem of the files on a line
    with file, line and field. With `workspace_file=False` the folder's own `.mendgraph.toml` is not read.
    """
    workspace = os.fspath(workspace)
    configuration = load_configuration(workspace, workspace_file=workspace_file)
    if isinstance(configuration, tuple):
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message="\n".join(map(str, configuration)))

    context = _context(overlay(configuration.values, {**settings, "workspace": workspace}), "the settings")
    if isinstance(context, Problem):
        return invalid(context.message)

    return context


def read_user_settings(environment: Mapping[str, str]) -> Settings | tuple[Problem, ...]:
    """Return the settings of the user's file, or its problems."""
    named = environment.get(CONFIG_VARIABLE)
    if named == "":
        source = None
    else:
        source = read_named_file(FILE_NAME, named, CONFIG_VARIABLE)

    if source is None:
        return Settings()

    path, text = source
    if isinstance(text, ToolError):
        return _unreadable(path, text)

    return parse_settings(text, short_path(path))


def read_named_file(name: str, named: str | None, variable: str) -> tuple[str, str | ToolError] | None:
    """Return a file's path, and its text or why it cannot be read; None if there is no file.

    It is the file `named` by `variable`, which has to exist, or the user's own file of this name.
    """
    path = named or user_files.configuration_file(name)
    if isinstance(path, ToolError):
        return None

    text = user_files.read_user_file(path)
    if not isinstance(text, ToolError):
        return path, text

    if not named:
        if text.code is ToolErrorCode.NOT_FOUND:
            return None
        return (path, text)

    message = f"{text.message} Fix what {variable} says, or leave it empty."
    return path, text.model_copy(update={"message": message})


def read_workspace_settings(workspace: str) -> Settings | tuple[Problem, ...]:
    """Return the settings of the workspace's file, or its problems."""
    data = user_files.read_settings_file(workspace)
    if data is None:
        return Settings()
    if isinstance(data, ToolError):
        return _unreadable(user_files.SETTINGS_FILE, data)

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (Problem(user_files.SETTINGS_FILE, f"this is not UTF-8 text (byte {error.start})", line),)

    settings = parse_settings(text, user_files.SETTINGS_FILE)
    if isinstance(settings, tuple):
        return settings

    if settings.servers:
        message = f"MCP servers belong in your {FILE_NAME}; those of a repository in {user_files.SERVERS_FILE}"
        return (Problem(user_files.SETTINGS_FILE, message),)
    if "hooks" in settings.values:
        message = f"hooks cannot be set in the file of a folder, only in your own {FILE_NAME}"
        return (Problem(user_files.SETTINGS_FILE, message, settings.lines["hooks"], field="hooks"),)

    return replace(settings, sha256=user_files.hash_of(data))


def _unreadable(file: str, error: ToolError) -> tuple[Problem, ...]:
    """Return the problem of a file that cannot be read; its message names the file as well."""
    return (Problem(short_path(file), error.message.removeprefix(f"Cannot read {quoted(file)}: ")),)


def short_path(path: str) -> str:
    """Return a path for messages: quoted if it is long or not printable."""
    if path.isprintable() and len(path) <= 200:
        return path
    return quoted(path)


def _context(values: Mapping[str, Any], where: str) -> AgentContext | Problem:
    """Return the context with these values, or their problem."""
    try:
        return AgentContext(**values)
    except ValidationError as error:
        path, message = first_error(error)
        if path:
            message = f"{path}: {message}"

        return Problem(where, message, field=path.partition(".")[0])


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the dotted path of the first error, "" for the whole, and its message."""
    [first, *_] = error.errors(include_url=False, include_input=False)
    message = value_words(first)
    if first["type"] == "extra_forbidden":
        meant = closest_names(str(first["loc"][-1]), AgentContext.model_fields, 1)
        message = "there is no such setting" + "".join(f" (did you mean {name}?)" for name in meant)

    return ".".join(map(str, first["loc"])), message


PRICES_FILE: Final = "prices.toml"


def user_places() -> tuple[str, ...]:
    """Return the absolute paths of the user's own files: settings, prices, permissions and logins, existing or not."""
    names = (FILE_NAME, PRICES_FILE, PERMISSIONS_FILE, user_files.LOGINS_FOLDER)
    files = [user_files.configuration_file(name) for name in names]
    files += [os.environ.get(variable, "") for variable in (CONFIG_VARIABLE, PRICES_VARIABLE)]
    return tuple([os.path.abspath(os.path.expanduser(file)) for file in files if isinstance(file, str) and file])


# --- What an untrusted file of a workspace may set: preferences that the user has not set, and narrower permissions


_RULES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "any": lambda _new, _old: True,
    "less": lambda new, old: bool(new is not None and (old is None or new <= old)),
    "shorter": lambda new, old: new is not None and new <= (REPLY_TOKENS if old is None else old),
    "off": lambda new, old: bool(old or not new),
    "disable": lambda new, _old: new == "off",
    "on": lambda new, old: bool(new or not old),
    "more": lambda new, old: set(old) <= set(new),
    "part": lambda new, old: set(new) <= set(old),
    "extensions": lambda new, old: (
        bool(new)
        and (not old or {suffix.lstrip(".").lower() for suffix in new} <= {suffix.lstrip(".") for suffix in old})
    ),
    "places": lambda new, old: bool(new) and not (old and outside(new, old)),
    "limits": lambda new, old: all(name in new and new[name] <= most for name, most in old.items()),
}
"""(value of the file, value without the file) -> whether the file's value allows nothing more."""


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `above` over those `below`; lists of denied things are joined."""
    joined = {
        name: tuple(dict.fromkeys((*below[name], *value)))
        for name, value in above.items()
        if name in below and SETTINGS[name].trust == "more"
    }

    return {**below, **above, **joined}


def needing_trust(values: Mapping[str, Any], base: AgentContext, chosen: Collection[str]) -> tuple[str, ...]:
    """Return the fields of a workspace's file that need the user's trust, in order; `base` is the context without them.

    These are the fields that allow more, that change what protects the user, and that replace a preference of the user,
    who has `chosen` these fields.
    """
    wider = widening(values, base)
    return tuple(name for name, value in values.items() if name in wider or _overrules(name, value, base, chosen))


def _overrules(name: str, value: Any, base: AgentContext, chosen: Collection[str]) -> bool:
    if _is_same(value, getattr(base, name)):
        return False

    setting = SETTINGS[name]
    return setting.protects or (setting.trust == "any" and name in chosen)


def widening(values: Mapping[str, Any], base: AgentContext) -> tuple[str, ...]:
    """Return the fields that allow more than `base`, in order."""
    return tuple(name for name, value in values.items() if not _is_narrower(name, value, base))


def _is_same(new: Any, old: Any) -> bool:
    """Return whether a value of a file, which has lists, is the value of a context, which has tuples."""
    return bool(new == (list(old) if isinstance(old, tuple) else old))


def _is_narrower(name: str, value: Any, base: AgentContext) -> bool:
    old = getattr(base, name)
    rule = SETTINGS[name].trust
    if _is_same(value, old):
        return True
    if isinstance(rule, tuple):
        return value in rule and old in rule and rule.index(value) <= rule.index(old)

    if rule == "times":  # a tool that is not named has the usual time
        usual = base.tool_timeout_s
        return all(value.get(tool, usual) <= old.get(tool, usual) for tool in {*value, *old})

    return bool(rule) and _RULES[rule](value, old)
