"""What `.gitignore` files hide."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from pathspec import GitIgnoreSpec

from nodes.execute_tools.environment.listing import Entry

IGNORE_FILE = ".gitignore"

ReadFile = Callable[[str], bytes]
"""(workspace-relative path) -> the bytes, b"" where there is nothing to read."""


@dataclass(frozen=True)
class IgnoreRules:
    """The `.gitignore` files that hold for a directory, outermost first, each with the directory it stands in."""

    specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    @classmethod
    def above(cls, parts: Sequence[str], read_file: ReadFile) -> Self:
        """The rules of the directories above the one that `parts` name; none if they hide that one itself."""
        rules = cls()
        for depth, name in enumerate(parts):
            here = "/".join(parts[:depth])
            rules = rules._and(here, read_file)
            if rules.ignores(Entry(f"{here}/{name}".lstrip("/"), "directory", 0)):
                rules = cls()
        return rules

    def within(self, directory: str, entries: Iterable[Entry], read_file: ReadFile) -> Self:
        """The rules inside `directory` ("." is the workspace), which holds `entries`; its own outweigh those above."""
        here = "" if directory == "." else directory
        has_own = any(entry.kind == "file" and entry.path == _ignore_file_of(here) for entry in entries)
        return self._and(here, read_file) if has_own else self

    def _and(self, directory: str, read_file: ReadFile) -> Self:
        spec = _compile(read_file(_ignore_file_of(directory)).decode(errors="replace"))
        prefix = f"{directory}/" if directory else ""
        return self if spec is None else replace(self, specs=(*self.specs, (prefix, spec)))

    def ignores(self, entry: Entry) -> bool:
        """Whether the innermost rule that speaks of this entry hides it."""
        slash = "/" if entry.kind == "directory" else ""
        for prefix, spec in reversed(self.specs):
            verdict = spec.check_file(f"{entry.path.removeprefix(prefix)}{slash}").include
            if verdict is not None:
                return verdict
        return False


def _ignore_file_of(directory: str) -> str:
    return f"{directory}/{IGNORE_FILE}" if directory else IGNORE_FILE


def _compile(text: str) -> GitIgnoreSpec | None:
    """The rules of one file, None where it has none. A line that no git would understand is passed over."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        return GitIgnoreSpec.from_lines(lines) if lines else None
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_valid(line)])


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
