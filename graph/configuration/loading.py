"""The settings of a run from all that may set them, each with where it came from, and what is wrong with a file.

From the strongest: what the caller says (the command line's options), the environment (`OPENAI_BASE_URL` for
`base_url`), the workspace's `.mendgraph.toml`, the user's `config.toml`, the defaults of `AgentContext`.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import islice
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from mendgraph.graph.configuration.context import REPLY_TOKENS, SETTINGS, AgentContext
from mendgraph.graph.configuration.permissions import PERMISSIONS_FILE
from mendgraph.nodes.call_model.endpoint import MODEL_VARIABLE
from mendgraph.nodes.call_model.ledger import PRICES_VARIABLE, PriceList, parse_prices
from mendgraph.nodes.execute_tools.files.sandbox import StrPath
from mendgraph.nodes.execute_tools.store import user_files
from mendgraph.nodes.guard.file_rules import outside
from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted

CONFIG_VARIABLE: Final = "MENDGRAPH_CONFIG"
"""Names the user's file instead of the usual one, which then has to be there; empty: there is none."""

FILE_NAME: Final = "config.toml"
CALLER: Final = "command line"
DEFAULT: Final = "default"
_ENVIRONMENT: Final = {"base_url": "OPENAI_BASE_URL", "model": MODEL_VARIABLE}
"""Fields that the environment sets, which is read where the endpoint is called."""

REMEDY: Final = (
    "a repository's own file may only narrow what you allow, and change nothing that you have set or rely on; read it,"
    " then trust it with `mendgraph config trust`, or leave it out with --no-workspace-config"
)


# --- One file of settings

_ONE_PROGRAM = re.compile(r"(?!-)[^\s*?\"'`$&;|<>()~]*[^\s*?\"'`$&;|<>()~/]")
"""A name or a path alone: without arguments, and without what only a shell understands."""

_LONGEST = 80


def program_problem(entry: str) -> str | None:
    """What is wrong with this as the name or the path of one program, None where nothing is."""
    if _ONE_PROGRAM.fullmatch(entry):
        return None

    words = entry.split()
    display = repr(entry)
    if not entry.isprintable():
        display = ascii(entry)

    remedy = "give a name such as make, or a path such as .venv/bin/pytest"

    if words and _ONE_PROGRAM.fullmatch(words[0]):
        remedy = f"give the program alone, {words[0]!r}"

    if len(display) <= _LONGEST:
        cut = display
    else:
        cut = f"{display[: _LONGEST - 3]}..."

    return f"{cut} is not one program: {remedy}"


class Document(NamedTuple):
    """The values of a TOML document, and its lines."""

    values: Mapping[str, Any]
    lines: Sequence[str] = ()

    def line(self, path: Sequence[str]) -> int:
        """The line of the innermost of these keys that is found as one, from 1 on; 0 where none is."""
        line_number = 0
        for key in path:
            following = enumerate(self.lines[max(line_number - 1, 0) :], max(line_number, 1))
            line_number = next((number for number, line in following if key in _keys_of(line)), line_number)

        return line_number


def _keys_of(line: str) -> list[str]:
    return [part.strip(" \t[]\"'") for part in line.partition("=")[0].split(".")]


def read_document(text: str) -> Document | DocumentProblem:
    """The document, or the first place at which it is none."""
    values = read_toml(text)
    if isinstance(values, DocumentProblem):
        return values

    return Document(values, text.splitlines())


ELSEWHERE: Final = {"workspace": "name the folder with --root, or start in it"}
"""Fields that no file may set, and how they are set."""

MOST_PROBLEMS: Final = 100
"""Of one file that are told."""

MORE_PROBLEMS: Final = f"there may be more: the first {MOST_PROBLEMS} problems are told"

_SECRET_NAME: Final = re.compile(
    r"(api|access|auth|private|secret)[_-]?key|token$|password|passwd|secret|credential|authorization", re.IGNORECASE
)
_KEY_REMEDY: Final = "put the key into the environment variable OPENAI_API_KEY, and take it out of the file"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_LONGEST_KEY: Final = 60


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file. Line and column count from 1, 0 where it is about the whole."""

    file: str
    message: str
    line: int = 0
    column: int = 0
    field: str = ""

    def __str__(self) -> str:
        """In one line, as compilers say it."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class Settings:
    """What a file sets, and the line of each field; by its `sha256` a workspace's file is trusted."""

    file: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    sha256: str = ""


def parse_settings(text: str, file: str) -> Settings | tuple[Problem, ...]:
    """The settings in `text`, or all that is wrong with it; `file` is what messages call it."""
    document = read_document(text)
    if isinstance(document, DocumentProblem):
        return (Problem(file, f"this is no TOML: {document.message}", document.line, document.column),)

    problems = first_problems(_problems(document, file), file)
    if problems:
        return problems

    return Settings(file, document.values, {name: document.line((name,)) for name in document.values})


def first_problems(problems: Iterable[Problem], file: str) -> tuple[Problem, ...]:
    """The first `MOST_PROBLEMS` by their lines; where there are more, the last one says so."""
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

    for path, message in value_problems(usable):
        yield Problem(file, message, document.line(path), field=path[0])


def _name_problem(name: str, value: Any) -> str:
    """What is wrong with a key, "" where nothing is."""
    if name in ELSEWHERE:
        return f"{name} cannot be set in a file: {ELSEWHERE[name]}"
    if name in AgentContext.model_fields:
        return ""
    if _SECRET_NAME.search(name):
        return f"{_short_key(name)} would be a secret in a file: {_KEY_REMEDY}"

    if len(name) > 2:
        meant = closest_names(name, AgentContext.model_fields.keys() - ELSEWHERE.keys(), 2)
    else:
        meant = ()

    what = f"there is no setting {_short_key(name)}"
    if isinstance(value, dict) and (inner := sorted(value.keys() & AgentContext.model_fields.keys())):
        return f"{what}: {inner[0]} and all settings stand at the top of the file, in no table"
    if meant:
        return f"{what}: did you mean {' or '.join(meant)}?"

    return f"{what}; `mendgraph config` lists all"


def _secret_problem(name: str, value: Any) -> str:
    """A file is copied and committed; what stands in one is no secret any more."""
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    rendered = json.dumps(value, default=str, ensure_ascii=False)
    if Redactor().text(rendered) == rendered:
        return ""

    return f"{name} holds what looks like a secret: {_KEY_REMEDY}"


def value_problems(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The path and the message of each value that does not fit its field."""
    texts: dict[str, str] = {}

    for name, value in values.items():
        try:
            texts[name] = json.dumps(value)
        except TypeError:
            yield (name,), f"{name} should be no date or time. {_help(name)}"

    rendered = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
    wrong: set[str] = set()

    try:
        AgentContext.model_validate_json(f"{{{rendered}}}", strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            path = tuple(map(str, detail["loc"]))
            if path and path[0] not in wrong:  # what concerns several fields is judged when all files are known
                wrong.add(path[0])
                yield path, f"{_in_words(path, detail['msg'])} {_help(path[0])}"

    for name in texts.keys() - wrong:
        for message in _further(name, values[name]):
            yield (name,), f"{name}: {message}"


def _further(name: str, value: Any) -> Iterator[str]:
    """What the types of the fields do not say."""
    if name in {"allowed_hosts", "allowed_private_hosts"}:
        yield from AgentContext().model_copy(update={name: tuple(value)}).network_problems()
    elif name == "allowed_programs":
        yield from filter(None, map(program_problem, value))


def _in_words(path: tuple[str, ...], message: str) -> str:
    where = path[0]
    for part in path[1:]:
        if part.isdigit():
            where += f"[{part}]"
        else:
            where += f".{_short_key(part)}"

    if message.startswith("Value error, "):
        return f"{where}: {message.removeprefix('Value error, ').rstrip('.')}."

    return f"{where} {message.removeprefix('Input ').removeprefix('String ')}."


def _help(name: str) -> str:
    return f"It means: {AgentContext.model_fields[name].description}"


def _short_key(name: str) -> str:
    """A key of a file, cut and on one line."""
    if _PLAIN.fullmatch(name):
        return name
    if len(name) > _LONGEST_KEY:
        name = f"{name[:_LONGEST_KEY]}..."

    return repr(name)


# --- All files of a workspace


@dataclass(frozen=True)
class Origin:
    """Where a setting came from: a file and its line, a variable, the caller or the default (line 0)."""

    name: str
    line: int = 0

    def __str__(self) -> str:
        """In a few words."""
        if self.line:
            return f"{self.name}:{self.line}"
        return self.name


@dataclass(frozen=True)
class Configuration:
    """What files and environment set for a workspace: below what the caller says, above the defaults.

    `files` are those that were read.
    """

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
    """Read the files for this workspace; every problem of both where there are some, and then nothing is set.

    `defaults` are what the run has in place of the defaults of `AgentContext`, below both files: what the workspace's
    file may set is seen from them as well. They are no part of the result.
    """
    variables = environment
    if variables is None:
        variables = os.environ

    user = read_user_settings(variables)

    if workspace_file:
        workspace_settings = read_workspace_settings(workspace)
    else:
        workspace_settings = Settings()

    if isinstance(user, tuple) and isinstance(workspace_settings, tuple):
        return (*user, *workspace_settings)
    if isinstance(user, tuple):
        return user
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


def _untrusted(settings: Settings, name: str) -> Problem:
    return Problem(settings.file, f"{name} needs your trust: {REMEDY}", settings.lines[name], field=name)


def load_context(workspace: StrPath = ".", *, workspace_file: bool = True, **settings: Any) -> AgentContext | ToolError:
    """The context of a run in this folder, as the terminal makes it; `settings` are what its options would be.

    `run_task` and `Session` read no files: hand them what this gives. A ToolError holds every problem of the files, one
    a line, each with file, line and field. With `workspace_file=False` the folder's own `.mendgraph.toml` is left out.
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
    """What the user's own file sets; nothing where there is none."""
    named = environment.get(CONFIG_VARIABLE)
    if named == "":
        source = None
    else:
        source = _users_file(FILE_NAME, named, CONFIG_VARIABLE)

    if source is None:
        return Settings()

    path, text = source
    if isinstance(text, ToolError):
        return (Problem(short_path(path), text.message),)

    return parse_settings(text, short_path(path))


def _users_file(name: str, named: str | None, variable: str) -> tuple[str, str | ToolError] | None:
    """A file's path, and its text or why it cannot be read: the one that `variable` names, which then has to be there.

    Otherwise it is the user's own of this name, None where there is none.
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
    """What the workspace's file sets; nothing where there is none."""
    data = user_files.read_settings_file(workspace)
    if data is None:
        return Settings()
    if isinstance(data, ToolError):
        return (Problem(user_files.SETTINGS_FILE, data.message),)

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (Problem(user_files.SETTINGS_FILE, f"this is no UTF-8 text (byte {error.start})", line),)

    settings = parse_settings(text, user_files.SETTINGS_FILE)
    if isinstance(settings, tuple):
        return settings

    return replace(settings, sha256=user_files.hash_of(data))


def short_path(path: str) -> str:
    """A path for messages: quoted where it is long or has characters that cannot be printed."""
    if path.isprintable() and len(path) <= 200:
        return path
    return quoted(path)


def _context(values: Mapping[str, Any], where: str) -> AgentContext | Problem:
    """The context with these values, or what is wrong with them together."""
    try:
        return AgentContext(**values)
    except ValidationError as error:
        path, message = first_error(error)
        if path:
            message = f"{path}: {message}"

        return Problem(where, message, field=path.partition(".")[0])


def first_error(error: ValidationError) -> tuple[str, str]:
    """Where the first mistake is, as a dotted path, "" where it is the whole, and what pydantic says of it."""
    [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        meant = closest_names(str(first["loc"][-1]), AgentContext.model_fields, 1)
        message = "there is no such setting" + "".join(f" (did you mean {name}?)" for name in meant)

    return ".".join(map(str, first["loc"])), message


def user_places() -> tuple[str, ...]:
    """The absolute names of the user's own files of settings, prices and permissions, whether they are there or not."""
    usual = (user_files.configuration_file(name) for name in (FILE_NAME, PRICES_FILE, PERMISSIONS_FILE))
    named = (os.environ.get(variable, "") for variable in (CONFIG_VARIABLE, PRICES_VARIABLE))
    files = (name for name in (*usual, *named) if isinstance(name, str) and name)

    return tuple(os.path.abspath(os.path.expanduser(file)) for file in files)


# --- What a workspace's own file may set by itself: preferences that the user has not, and less than the user allows


_RULES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "any": lambda _new, _old: True,
    "less": lambda new, old: bool(new is not None and (old is None or new <= old)),
    "shorter": lambda new, old: new is not None and new <= (REPLY_TOKENS if old is None else old),
    "off": lambda new, old: bool(old or not new),
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
"""(value of the file, value without the file) -> whether the file's allows nothing more."""


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The settings `above` over those `below`; what a setting denies stays denied beside what the other one denies."""
    joined = {
        name: tuple(dict.fromkeys((*below[name], *value)))
        for name, value in above.items()
        if name in below and SETTINGS[name].trust == "more"
    }

    return {**below, **above, **joined}


def needing_trust(values: Mapping[str, Any], base: AgentContext, chosen: Collection[str]) -> tuple[str, ...]:
    """Those of a workspace's own fields that need the user's trust, in their order; `base` is what holds without them.

    These are the fields that allow more, that change what protects the user, and that replace a preference which is one
    of the fields that the user has `chosen`.
    """
    wider = widening(values, base)
    return tuple(name for name, value in values.items() if name in wider or _overrules(name, value, base, chosen))


def _overrules(name: str, value: Any, base: AgentContext, chosen: Collection[str]) -> bool:
    if _is_same(value, getattr(base, name)):
        return False

    setting = SETTINGS[name]
    return setting.protects or (setting.trust == "any" and name in chosen)


def widening(values: Mapping[str, Any], base: AgentContext) -> tuple[str, ...]:
    """Those of the fields that allow more than `base`, in their order."""
    return tuple(name for name, value in values.items() if not _is_narrower(name, value, base))


def _is_same(new: Any, old: Any) -> bool:
    """Whether a value as a file has it, where a list is no tuple, is the value of a context."""
    if isinstance(old, tuple):
        old = list(old)

    return bool(new == old)


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


# --- Prices

PRICES_FILE: Final = "prices.toml"


def load_prices() -> PriceList | ToolError:
    """The shipped prices, with the user's own in place of those of the same name.

    The user's are in the file that `MENDGRAPH_PRICES` names, which then has to be there; otherwise in `prices.toml` in
    the platform's configuration folder, if there is one. A file that cannot be read, or is no price list, is an error.
    """
    ours = resources.files("mendgraph.nodes.call_model").joinpath(PRICES_FILE).read_text(encoding="utf-8")
    shipped = parse_prices(ours, f"{PRICES_FILE} of mendgraph")
    source = _users_file(PRICES_FILE, os.environ.get(PRICES_VARIABLE), PRICES_VARIABLE)

    if isinstance(shipped, ToolError) or source is None:
        return shipped

    path, text = source
    if isinstance(text, ToolError):
        return text

    prices = parse_prices(text, quoted(path))
    if isinstance(prices, ToolError):
        return prices

    return {**shipped, **prices}
