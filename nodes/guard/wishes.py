"""Whose wish a change is: the request's, or that of a text which the model was shown (a file, a page, a note).

Looked at are files that run later, manifests, and deletions; where the request names a file of code, also tests that
were there before, documents and data. A text is known by the names of files and the lines that it holds, not by what it
means. A wish in other words leaves no trace: once a run has read a text, it changes files of the first two kinds only
if the request shares a word with their path, or with what a manifest gets.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import PurePath
from typing import Final

from mendgraph.nodes.guard.file_rules import MANIFESTS, RUNS_LATER, is_project_config, what_runs_later
from mendgraph.nodes.language.names import IS_TEST, named_paths
from mendgraph.nodes.language.project_notes import NAMES as NOTES
from mendgraph.nodes.records import Effect, ToolCall, ToolSpec

LED_BY_TEXT: Final = "led_by_text"
"""The rule that refuses a change which a text asks for, and not the request."""

_LEAST, _MOST_LINES = 12, 200
"""Characters of a line that says where it comes from; how many lines of a call are looked for, the longest first."""
_WORD: Final = re.compile(r"[^\W_]{2,}")
_FOLDER: Final = re.compile(r"(?<![\w./-])(?:\./)?([\w.-]+(?:/[\w.-]+)*/)(?![\w*-]|\.\w)")
_LEAST_STEM, _STEM = 4, 6
"""Letters of a word that is like a longer one with it ("tests", "conftest"), or with its beginning ("dockerize")."""
_PROSE: Final = frozenset({".md", ".mdc", ".rst", ".txt"})
_CODE: Final = re.compile(
    r"\.(?:[ch]|cc|[ch]pp|cs|s?css|go|html|java|[cm]?[jt]sx?|kts?|lua|php|pyi?|rb|rs|scala|sh|sql|svelte|swift|vue)\Z"
)

Shown = tuple[str, str, str]
"""The file, page or tool; a text of it; and whether a name in it is a wish for "all" files, "new" ones or "none"."""


def texts_of(data: object, where: str, names: str = "all") -> Iterator[Shown]:
    """All texts in a result, each from the file or page that is named beside it."""
    if isinstance(data, str):
        yield where, data, names
    elif isinstance(data, Mapping):
        where = str(data.get("path") or data.get("url") or where)
    for each in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from texts_of(each, where, names)


@dataclass(frozen=True)
class Wishes:
    """`request` gives the person's own words, `texts` what the model was shown, `held` what a file holds now.

    `held` gives None for no file, `real` where a path leads, and `made` whether this turn has made the file. Nothing of
    it is asked before a call needs it.
    """

    request: Callable[[], str] = str
    texts: Callable[[], Iterable[Shown]] = tuple
    held: Callable[[str], str | None] = lambda _: None
    real: Callable[[str], str] = str
    made: Callable[[str], bool] = bool

    def led(self, call: ToolCall, spec: ToolSpec, targets: Sequence[str]) -> tuple[str, str, str] | None:
        """The first file whose change only a text can have asked for, what it is, and where that text stands; or None.

        Where no text holds its name or lines, where that text stands is "".
        """
        if spec.effect not in {Effect.WRITE, Effect.NONE}:  # the second names paths that a child may change
            return None
        for path in dict.fromkeys(name for target in targets for name in (target, self.real(target))):
            kind = self.kind(path)
            if not kind and _deletes(call, path) and self.held(path) is not None and not self.made(path):
                kind = "a file that this run has not made"
            other = "" if kind else self._other_work(path)
            if (kind or other) and not self.is_named(path):
                where = self._source(path, call, spec, strict=not other)
                own = other or _deletes(call, path) or self.made(path)
                if where or not (own or self._may_be_own(path, call, spec)):
                    return path, kind or other, where
        return None

    def kind(self, path: str) -> str:
        """What a file is whose change runs later or installs something, for a person; "" for any other."""
        name = PurePath(path)
        return (
            what_runs_later(name)
            or MANIFESTS.held(name)
            or (self.held(path) is None and what_runs_later(name, new=True))
            or ""
        )

    def _other_work(self, path: str) -> str:
        """What a file is that does not belong to the code which the request names, for a person; "" for any other."""
        stems = [PurePath(each).stem for each in named_paths(self.request()) if _CODE.search(each)]
        shared = any(re.search(rf"[\W_]{re.escape(stem)}[\W_]", f"_{path}_") for stem in stems)
        if not stems or shared or self.made(path) or not self.unnamed([path]):
            return ""
        if IS_TEST.search(path) and self.held(path) is not None:
            return "a test that was there before"
        return "" if _CODE.search(path) else "a document or a data file"

    def why(self, call: ToolCall, spec: ToolSpec, names: Sequence[str]) -> str:
        """Why a person is asked for this change each time, "" where it is like any other."""
        if spec.effect is not Effect.WRITE:
            return ""
        if led := self.led(call, spec, names):
            return f"{led[1]}; {f'asked for in {led[2]}, not' if led[2] else 'not named'} in the request"
        config = "project configuration" if any(is_project_config(PurePath(name)) for name in names) else ""
        return next(filter(None, map(self.kind, names)), config)

    def unnamed(self, paths: Iterable[str]) -> list[str]:
        """Those that the request does not name, nor a folder of them with its slash; none where it names no file."""
        request = self.request()
        said = {each.rstrip("/") for each in _FOLDER.findall(request)} if named_paths(request) else None
        return [
            path
            for path in paths
            if said is not None and said.isdisjoint(map(str, PurePath(path).parents)) and not self.is_named(path)
        ]

    def is_named(self, path: str) -> bool:
        """Whether the request names the file, its folder if all in that runs later, or its stem if that is given."""
        request, name = self.request().casefold(), PurePath(path).name.casefold()
        folders = [str(each) for each in PurePath(path).parents if RUNS_LATER.held(each)]
        if any(_names(request, each) for each in (path, *folders)):
            return True
        stem = re.escape(name.lstrip(".").partition(".")[0])
        given = name in {*RUNS_LATER.patterns, *MANIFESTS.patterns} or self.held(path) is not None
        return given and re.search(rf"(?<![\w./-]){stem}(?![\w/-]|\.\w)", request) is not None

    def _may_be_own(self, path: str, call: ToolCall, spec: ToolSpec) -> bool:
        """Whether the request may mean the file without its name, or no text can have asked: none was shown."""
        added = _added(call, spec, self.held(path) or "") if MANIFESTS.held(PurePath(path)) else []
        mine = _WORD.findall(str(PurePath(path).with_suffix("")).casefold())
        mine += (word for line in added for word in _WORD.findall(line.casefold()) if len(word) >= _LEAST_STEM)
        request = reduce(lambda text, other: text.replace(other, " "), named_paths(self.request()), self.request())
        said = {*_WORD.findall(request.casefold())}
        shared = any(_alike(one, other) for one in {*mine} for other in said)
        return shared or all(names != "all" or self.made(where) for where, _, names in self.texts())

    def _source(self, path: str, call: ToolCall, spec: ToolSpec, *, strict: bool) -> str:
        """Where a text stands that holds the name of the file or a line that the call adds; "" for nowhere.

        Only a `strict` rule looks at lines, at code, which names its data, and at the project's notes to agents.
        """
        before, suffix = self.held(path), PurePath(path).suffix
        added = _added(call, spec, before or "") if strict and not _deletes(call, path) else ()
        lines = [line for line in added if len(line) >= _LEAST]
        wishes = () if MANIFESTS.held(PurePath(path)) else ("all", "new") if before is None else ("all",)
        for where, text, names in self.texts():
            if not strict and (_CODE.search(where) or PurePath(where).name in NOTES):
                continue
            # A file of code tells its own name, and code that is moved to a file of its kind is work.
            counts = names in wishes and text != path and (where != path or suffix in _PROSE)
            moved = suffix not in _PROSE and PurePath(where).suffix == suffix
            if (counts and _names(text.casefold(), path)) or (not moved and any(line in text for line in lines)):
                return where
        return ""


def _alike(one: str, other: str) -> bool:
    short, long = sorted((one.removesuffix("s"), other.removesuffix("s")), key=len)
    return one == other or (len(short) >= _LEAST_STEM and (short in long or short[:_STEM] == long[:_STEM]))


def _deletes(call: ToolCall, path: str) -> bool:
    return call.tool == "delete_file" or f"*** Delete File: {path}\n" in f"{call.arguments.get('patch')}\n"


def _names(text: str, path: str) -> bool:
    """Whether a casefolded text names this file, by its name alone or by more of its path."""
    path = path.casefold()
    name = path.rpartition("/")[2]
    found = re.finditer(rf"(?<![\w./-])(?:[\w./-]*/)?{re.escape(name)}/?(?![\w/-]|\.\w)", text)
    said = (each[0].removeprefix("./").rstrip("/") for each in found)
    return name in text and any(f"/{path}".endswith(f"/{each}") or each.endswith(f"/{path}") for each in said)


def _added(call: ToolCall, spec: ToolSpec, before: str) -> list[str]:
    """The longest lines of a call that its file does not hold yet."""
    there = {line.strip() for line in before.splitlines()}
    given = texts_of({name: each for name, each in call.arguments.items() if name not in spec.path_fields}, "")
    lines = {line.removeprefix("+").strip() for _, text, _ in given for line in text.splitlines()} - there
    return sorted(lines, key=len, reverse=True)[:_MOST_LINES]
