"""Whose wish a change is: the request's, or that of a text which the model was shown (a file, a page, a note).

Only changes that reach further than their file are looked at: of files that run later, of manifests, and deletions. A
text is known by the names of files and by lines that it holds, not by what it means; so a wish in other words leaves
no trace.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

from mendgraph.nodes.guard import file_rules
from mendgraph.nodes.records import Effect, FileChange, ToolCall, ToolSpec

LED_BY_TEXT: Final = "led_by_text"
"""The rule that refuses a change which a text asks for, and not the request."""

_LEAST: Final = 12
"""Characters of a line that says where it comes from; a shorter one is `import os`."""
_MOST_LINES: Final = 200
_PROSE: Final = frozenset({".md", ".mdc", ".rst", ".txt"})
_DELETE: Final = "*** Delete File:"


class Shown(NamedTuple):
    """A text that the model was shown, and the file, page or tool that it comes from.

    `names` says for which files a name in it is a wish: "all"; "new" ones, as the output of a program names those that
    are there with each failure; or "none", as an error names what was asked for.
    """

    where: str
    text: str
    names: str = "all"


def texts_of(data: object, where: str, names: str = "all") -> Iterator[Shown]:
    """All texts in a result, each from the file or page that is named beside it."""
    if isinstance(data, str):
        yield Shown(where, data, names)
    elif isinstance(data, Mapping):
        where = str(data.get("path") or data.get("url") or where)
    for each in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from texts_of(each, where, names)


@dataclass(frozen=True)
class Wishes:
    """What tells whose wish a change of a file is; nothing is asked before a call needs it.

    `request` gives the person's own words, `texts` what the model was shown, `held` what a file holds now (None for no
    file), `real` where a path leads, by links too. `changes` are those of this turn.
    """

    request: Callable[[], str] = str
    texts: Callable[[], Iterable[Shown]] = tuple
    held: Callable[[str], str | None] = lambda _: None
    real: Callable[[str], str] = str
    changes: Sequence[FileChange] = ()

    def led(self, call: ToolCall, spec: ToolSpec, targets: Sequence[str]) -> tuple[str, str, str] | None:
        """The first file whose change nobody but a text asks for, what it is, and where that text stands; or None."""
        if spec.effect not in {Effect.WRITE, Effect.NONE}:  # the second names paths that a child may change
            return None
        for path in dict.fromkeys(name for target in targets for name in (target, self.real(target))):
            kind = self.kind(path)
            deleted = not kind and _deletes(call, path) and self.held(path) is not None and not self._is_made(path)
            if (kind or deleted) and not self._is_requested(path) and (where := self._source(path, call, spec)):
                return path, kind or "a file that this run has not made", where
        return None

    def kind(self, path: str) -> str:
        """What a file is of which a change reaches further, for a person; "" for any other."""
        name = PurePath(path)
        kind = file_rules.RUNS_LATER.held(name) or file_rules.MANIFESTS.held(name) or ""
        if not kind and file_rules.runs_later(name, new=True) and self.held(path) is None:
            return "what Python imports in place of a module of its own"
        return kind

    def why(self, call: ToolCall, spec: ToolSpec, names: Sequence[str]) -> str:
        """Why a person is asked for this change each time: what the file is, and which text asks for it; or ""."""
        if spec.effect is not Effect.WRITE:
            return ""
        if led := self.led(call, spec, names):
            return f"{led[1]}; asked for in {led[2]}, not in the request"
        kinds = (self.kind(name) or "project configuration" * _is_config(name) for name in names)
        return next(filter(None, kinds), "")

    def _is_made(self, path: str) -> bool:
        return any(change.path == path and not change.sha256_before for change in self.changes)

    def _is_requested(self, path: str) -> bool:
        """Whether the request names the file, its folder if all in that runs later, or its stem if that is given."""
        request, parts = self.request().casefold(), path.split("/")
        folders = ("/".join(parts[:end]) for end in range(1, len(parts)))
        wanted = [path, *(each for each in folders if file_rules.RUNS_LATER.held(PurePath(each)))]
        if any(_names(request, each) for each in wanted):
            return True
        name = parts[-1].casefold()
        stem = name.lstrip(".").partition(".")[0]
        given = name in {*file_rules.RUNS_LATER.patterns, *file_rules.MANIFESTS.patterns}
        alone = rf"(?<![\w./-]){re.escape(stem)}(?![\w/-]|\.\w)"
        return stem in request and re.search(alone, request) is not None and (given or self.held(path) is not None)

    def _source(self, path: str, call: ToolCall, spec: ToolSpec) -> str:
        """Where a text stands that holds the name of the file or a line that the call adds; "" for nowhere."""
        before = self.held(path)
        lines = () if _deletes(call, path) else _added(call, spec, before or "")
        named, suffix = file_rules.MANIFESTS.held(PurePath(path)) is None, PurePath(path).suffix
        for where, text, names in self.texts():
            counts = named and (names == "all" or (names == "new" and before is None)) and text != path
            counts = counts and (where != path or suffix in _PROSE)  # code tells its own name
            # Code that is moved to a file of its kind is work.
            moved = suffix not in _PROSE and PurePath(where).suffix == suffix
            if (counts and _names(text.casefold(), path)) or (not moved and any(line in text for line in lines)):
                return where
        return ""


def _is_config(path: str) -> bool:
    return file_rules.is_project_config(PurePath(path))


def _deletes(call: ToolCall, path: str) -> bool:
    patch = call.arguments.get("patch")
    return call.tool == "delete_file" or (isinstance(patch, str) and f"{_DELETE} {path}\n" in f"{patch}\n")


def _names(text: str, path: str) -> bool:
    """Whether a casefolded text names this file, by its name alone or by more of its path."""
    path = path.casefold()
    name = path.rpartition("/")[2]
    if name not in text:
        return False
    for found in re.finditer(rf"(?<![\w./-])(?:[\w./-]*/)?{re.escape(name)}/?(?![\w/-]|\.\w)", text):
        said = found[0].removeprefix("./").rstrip("/")
        if f"/{path}".endswith(f"/{said}") or said.endswith(f"/{path}"):
            return True
    return False


def _added(call: ToolCall, spec: ToolSpec, before: str) -> list[str]:
    """The longest lines of a call that its file does not hold yet."""
    there = {line.strip() for line in before.splitlines()}
    given = texts_of({name: each for name, each in call.arguments.items() if name not in spec.path_fields}, "")
    lines = {line.removeprefix("+").strip() for each in given for line in each.text.splitlines()} - there
    return sorted((line for line in lines if len(line) >= _LEAST), key=len, reverse=True)[:_MOST_LINES]
