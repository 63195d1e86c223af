"""Texts of others made fit for a page: without secrets, with control characters shown, and of bounded length. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodes.execute_tools.secrets.redact import Redactor
from nodes.language.display import one_line, plain

_LINE: Final = 200
"""Characters of what stands on one line."""


@dataclass(frozen=True)
class Bounds:
    """How much of a run is shown: characters of one text, steps with their calls, and nodes of the path."""

    text: int = 20_000
    steps: int = 400
    path: int = 600


LEVELS: Final = (Bounds(), Bounds(4_000, 400, 400), Bounds(1_000, 300, 300), Bounds(400, 120, 200))
"""From generous to narrow: a page that is too large is made again with the next one."""


@dataclass(frozen=True)
class Shown:
    """A text as it stands on the page, and how many characters of it were left out at its end."""

    text: str
    left_out: int = 0


@dataclass(frozen=True)
class Field:
    """A named value: of a call's arguments, of a result. A `block` has lines of its own."""

    name: str
    value: Shown
    block: bool


@dataclass(frozen=True)
class DiffLine:
    """A line of a diff: `added`, `removed`, `same`, or `file`, `head` and `note`, which are about it."""

    kind: str
    text: str


def visible(text: str) -> str:
    """The text with control characters written as escapes; line by line, which is quicker for those that have none."""
    return "\n".join(map(plain, text.split("\n")))


@dataclass(frozen=True)
class Texts:
    """Cleans what others said."""

    redactor: Redactor
    bounds: Bounds

    def line(self, text: str, limit: int = _LINE) -> str:
        """On one line."""
        return one_line(self.redactor.text(text), limit)

    def shown(self, text: str, limit: int | None = None) -> Shown:
        """As it is, with its lines; secrets go before anything is cut, so that half of one is never left."""
        clean = self.redactor.text(text.replace("\r\n", "\n"))
        most = self.bounds.text if limit is None else min(limit, self.bounds.text)
        return Shown(visible(clean[:most]), max(0, len(clean) - most))

    def fields(self, values: Mapping[str, Any]) -> list[Field]:
        """Each value by its name; what is no text as JSON."""
        clean = self.redactor.content(dict(values))
        named = clean if isinstance(clean, dict) else {"value": clean}
        return [self._field(name, value) for name, value in named.items() if value not in (None, "", [], {})]

    def diff(self, diff: str) -> tuple[list[DiffLine], int]:
        """The lines of a unified diff, and how many characters were left out."""
        shown = self.shown(diff.removesuffix("\n"))
        return list(_diff_lines(shown.text)), shown.left_out

    def _field(self, name: str, value: Any) -> Field:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
        if not isinstance(value, str) and len(text) < _LINE:
            text = json.dumps(value, ensure_ascii=False, default=str)
        return Field(self.line(name, 80), self.shown(text), block="\n" in text or len(text) > 100)


def _diff_lines(text: str) -> Iterator[DiffLine]:
    kinds = {"+": "added", "-": "removed", "@": "head", "\\": "note", "[": "note"}
    for number, line in enumerate(text.split("\n")):
        heading = number < 2 and line.startswith(("--- ", "+++ "))
        yield DiffLine("file" if heading else kinds.get(line[:1], "same"), line)
