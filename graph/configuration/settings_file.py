"""One file of settings: the fields of `AgentContext` by name, or every reason why it holds none. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, rule_problems
from mendgraph.nodes.language.documents import DocumentProblem, read_toml

_ONE_PROGRAM = re.compile(r"(?!-)[^\s*?\"'`$&;|<>()~]*[^\s*?\"'`$&;|<>()~/]")
"""A name or a path alone: without arguments, and without what only a shell understands."""

_LONGEST = 80


def program_problem(entry: str) -> str | None:
    """What is wrong with this as the name or the path of one program, None where nothing is."""
    if _ONE_PROGRAM.fullmatch(entry):
        return None
    words, shown = entry.split(), ascii(entry) if not entry.isprintable() else repr(entry)
    remedy = "give a name such as make, or a path such as .venv/bin/pytest"
    if words and _ONE_PROGRAM.fullmatch(words[0]):
        remedy = f"give the program alone, {words[0]!r}"
    cut = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."
    return f"{cut} is not one program: {remedy}"


class Document(NamedTuple):
    """The values of a TOML document, and its lines."""

    values: Mapping[str, Any]
    lines: Sequence[str] = ()

    def line(self, path: Sequence[str]) -> int:
        """The line of the innermost of these keys that is found as one, from 1 on; 0 where none is."""
        found = 0
        for key in path:
            rest = enumerate(self.lines[max(found - 1, 0) :], max(found, 1))
            found = next((number for number, line in rest if key in _keys_of(line)), found)
        return found


def _keys_of(line: str) -> list[str]:
    return [part.strip(" \t[]\"'") for part in line.partition("=")[0].split(".")]


def read_document(text: str) -> Document | DocumentProblem:
    """The document, or the first place at which it is none."""
    values = read_toml(text)
    return values if isinstance(values, DocumentProblem) else Document(values, text.splitlines())


TRUSTED: Final = "trusted_workspaces"
"""The one key that is no field of a run: folders whose own settings take effect. Only the user's file may have it."""

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
_SHORTEST: Final = 3


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
        place = ":".join(str(each) for each in (self.file, self.line, self.column) if each)
        return f"{place}: {self.message}"


@dataclass(frozen=True)
class Settings:
    """What a file sets. `lines` has the line of each field, `trusted` the folders that the user trusts.

    `sha256` is the hash of a workspace's file, by which it is trusted.
    """

    file: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    sha256: str = ""


def parse_settings(text: str, file: str, *, of_user: bool) -> Settings | tuple[Problem, ...]:
    """The settings in `text`, or all that is wrong with it; `file` is what messages call it."""
    document = read_document(text)
    if isinstance(document, DocumentProblem):
        return (Problem(file, f"this is no TOML: {document.message}", document.line, document.column),)
    problems = first_problems(_problems(document, file, of_user=of_user), file)
    if problems:
        return problems
    values = {name: value for name, value in document.values.items() if name != TRUSTED}
    lines = {name: document.line((name,)) for name in values}
    return Settings(file, values, lines, tuple(document.values.get(TRUSTED, ())))


def first_problems(problems: Iterable[Problem], file: str) -> tuple[Problem, ...]:
    """The first `MOST_PROBLEMS` by their lines; where there are more, the last one says so."""
    found = [*islice(problems, MOST_PROBLEMS + 1)]
    more = [Problem(file, MORE_PROBLEMS)] if len(found) > MOST_PROBLEMS else []
    return (*sorted(found[:MOST_PROBLEMS], key=lambda each: (each.line, each.field)), *more)


def _problems(document: Document, file: str, *, of_user: bool) -> Iterator[Problem]:
    usable: dict[str, Any] = {}
    for name, value in document.values.items():
        message = _name_problem(name, value, of_user=of_user) or _secret_problem(name, value)
        if message:
            yield Problem(file, message, document.line((name,)), field=name)
        elif name != TRUSTED:
            usable[name] = value
    for path, message in value_problems(usable):
        yield Problem(file, message, document.line(path), field=path[0])


def _name_problem(name: str, value: Any, *, of_user: bool) -> str:
    """What is wrong with a key, "" where nothing is."""
    if name in ELSEWHERE:
        return f"{name} cannot be set in a file: {ELSEWHERE[name]}"
    if name == TRUSTED:
        return _trusted_problem(value) if of_user else f"{name} may only stand in your own configuration file"
    if name in AgentContext.model_fields:
        return ""
    if _SECRET_NAME.search(name):
        return f"{_shown(name)} would be a secret in a file: {_KEY_REMEDY}"
    from mendgraph.nodes.language.names import closest_names

    known = [*AgentContext.model_fields.keys() - ELSEWHERE.keys(), *((TRUSTED,) if of_user else ())]
    meant = closest_names(name, known, 2) if len(name) >= _SHORTEST else ()
    what = f"there is no setting {_shown(name)}"
    if isinstance(value, dict) and (inner := sorted(value.keys() & AgentContext.model_fields.keys())):
        return f"{what}: {inner[0]} and all settings stand at the top of the file, in no table"
    return f"{what}: did you mean {' or '.join(meant)}?" if meant else f"{what}; `mendgraph config` lists all"


def _trusted_problem(value: Any) -> str:
    named = value if isinstance(value, list) else [None]
    if all(isinstance(each, str) and each.startswith(("/", "~")) and "\0" not in each for each in named):
        return ""
    return f'{TRUSTED} should be a list of absolute folders, such as ["~/work/project"]'


def _secret_problem(name: str, value: Any) -> str:
    """A file is copied and committed; what stands in one is no secret any more."""
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor

    said = json.dumps(value, default=str, ensure_ascii=False)
    if Redactor().text(said) == said:
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
    said = ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items())
    wrong: set[str] = set()
    try:
        AgentContext.model_validate_json(f"{{{said}}}", strict=True)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            path = tuple(map(str, each["loc"]))
            if path and path[0] not in wrong:  # what concerns several fields is judged when all files are known
                wrong.add(path[0])
                yield path, f"{_in_words(path, each['msg'])} {_help(path[0])}"
    for name in texts.keys() - wrong:
        for message in _further(name, values[name]):
            yield (name,), f"{name}: {message}"


def _further(name: str, value: Any) -> Iterator[str]:
    """What the types of the fields do not say."""
    if name == "allowed_hosts":
        yield from rule_problems(NetworkRules(hosts=tuple(value)))
    elif name == "allowed_private_hosts":
        yield from rule_problems(NetworkRules(allow_private=tuple(value)))
    elif name == "allowed_programs":
        yield from filter(None, map(program_problem, value))


def _in_words(path: tuple[str, ...], said: str) -> str:
    where = path[0] + "".join(f"[{part}]" if part.isdigit() else f".{_shown(part)}" for part in path[1:])
    if said.startswith("Value error, "):
        return f"{where}: {said.removeprefix('Value error, ').rstrip('.')}."
    if said.startswith("String should match pattern"):  # of `reasoning_effort`, whose values stand in order
        *known, last = filter(None, SETTINGS[path[0]].trust)
        return f"{where} should be one word in small letters: {', '.join(known)} or {last}."
    return f"{where} {said.removeprefix('Input ')}."


def _help(name: str) -> str:
    return f"It means: {AgentContext.model_fields[name].description}"


def _shown(name: str) -> str:
    """A key that somebody else wrote, short and on one line."""
    return name if _PLAIN.fullmatch(name) else repr(name if len(name) <= _LONGEST_KEY else f"{name[:_LONGEST_KEY]}...")
