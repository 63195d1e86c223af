"""The commits of a git repository and what they change, read with git. Standard library only."""

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

BOM: Final = "\ufeff"
LINK: Final = "120000"
SUBMODULE: Final = "160000"
EXECUTABLE: Final = "100755"
NOTHING: Final = "000000"

_HUNK: Final = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_SNIFFED: Final = 8_000
"""Bytes in which git looks for NUL, the sign of a binary file."""


class AbsentError(Exception):
    """Git failed: what was asked for is not in the repository."""


@dataclass(frozen=True)
class Hunk:
    """Lines of a file from `start` to `end` and the lines that take their place, as slices of the lists of lines."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True)
class Delta:
    """One file that a commit changes: names, modes and bytes before and after; bytes are None where there is no file.

    A file that is renamed has two names, every other one the same name twice.
    """

    source: str
    path: str
    modes: tuple[str, str]
    before: bytes | None
    after: bytes | None
    hunks: tuple[Hunk, ...] = ()

    @cached_property
    def texts(self) -> tuple[str, str]:
        """The text before and after, "" where there is no file."""
        return (self.before or b"").decode("utf-8"), (self.after or b"").decode("utf-8")

    def why_apart(self) -> str:
        """Why no text tool can make this change; "" for a change of text."""
        if LINK in self.modes:
            return "link"
        if SUBMODULE in self.modes:
            return "submodule"
        if self.modes[0] != self.modes[1] and (NOTHING not in self.modes or self.modes[1] == EXECUTABLE):
            return "mode"
        return next((why for data in (self.before, self.after) if data and (why := _why_no_text(data))), "")


def _why_no_text(data: bytes) -> str:
    if b"\0" in data[:_SNIFFED]:
        return "binary"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    return ""


@dataclass(frozen=True)
class Commit:
    """A commit with one parent."""

    sha: str
    parent: str
    message: str


@dataclass(frozen=True)
class Repository:
    """A git directory: a bare one, or the `.git` of a working tree."""

    place: Path

    @classmethod
    def at(cls, path: Path) -> "Repository":
        """The repository at a path, which is its git directory or its working tree."""
        inner = path / ".git"
        return cls((inner if inner.exists() else path).resolve())

    def git(self, *words: str, data: bytes = b"") -> bytes:
        """What git prints.

        Raises:
            AbsentError: git fails.
        """
        command = ["git", f"--git-dir={self.place}", *words]
        done = subprocess.run(command, input=data, capture_output=True, check=False)

        if done.returncode:
            raise AbsentError(done.stderr.decode(errors="replace").strip())
        return done.stdout

    def commits(self, count: int, before: str) -> list[Commit]:
        """The last `count` commits up to `before` that have one parent, the newest first."""
        options = ("--no-merges", "--min-parents=1", f"--max-count={count}", "-z", "--format=%H%n%P%n%B")
        entries = self.git("log", *options, before).decode("utf-8", "replace").split("\0")
        return [Commit(*entry.split("\n", 2)) for entry in entries if entry]

    def deltas(self, commit: Commit, *, renames: bool = True) -> list[Delta]:
        """The files that a commit changes. Without `renames` one that is renamed is one that goes and one that comes.

        Raises:
            AbsentError: the bytes of a file are not in the repository.
        """
        wanted = "--find-renames" if renames else "--no-renames"
        fields = self.git("diff-tree", "-r", "-z", "--raw", wanted, commit.parent, commit.sha).split(b"\0")
        deltas = []

        while len(fields) > 1:
            old_mode, new_mode, old, new, kind = fields.pop(0).decode().removeprefix(":").split()
            source = path = fields.pop(0).decode("utf-8", "surrogateescape")
            if kind[0] == "R":
                path = fields.pop(0).decode("utf-8", "surrogateescape")
            modes = (old_mode, new_mode)
            before, after = (self._bytes(mode, blob) for mode, blob in zip(modes, (old, new), strict=True))
            hunks = self._hunks(old, new) if before is not None and after is not None else ()
            deltas.append(Delta(source, path, modes, before, after, hunks))
        return deltas

    def _bytes(self, mode: str, blob: str) -> bytes | None:
        if mode == NOTHING:
            return None
        return b"" if mode == SUBMODULE else self.git("cat-file", "blob", blob)

    def _hunks(self, old: str, new: str) -> tuple[Hunk, ...]:
        changes = self.git("diff", "--unified=0", "--text", "--no-ext-diff", "--no-textconv", "--no-color", old, new)
        return tuple(map(_hunk, _HUNK.finditer(changes)))


def _hunk(match: re.Match[bytes]) -> Hunk:
    """A header of git's, in which lines count from 1, and an empty range names the line before it."""
    first, count, new_first, new_count = (1 if number is None else int(number) for number in match.groups())
    start = first - 1 if count else first
    new_start = new_first - 1 if new_count else new_first
    return Hunk(start, start + count, new_start, new_start + new_count)


class Workspace:
    """A working tree in which each commit is made again: a clone that borrows the repository's objects.

    Files are the bytes that the commits have: no line end, filter or keyword is converted.
    """

    def __init__(self, repository: Repository, place: Path) -> None:
        self.place = place
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(repository.place), str(place)], check=True
        )
        attributes = place / ".git" / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("* -text -eol -filter -ident -working-tree-encoding\n", "utf-8")

    def check_out(self, sha: str) -> None:
        """Give the working tree the files of a commit, and no others.

        Raises:
            AbsentError: some of them are not in the repository.
        """
        self._git("checkout", "--quiet", "--force", "--detach", sha)
        self._git("clean", "--quiet", "-ffdx")

    def differences(self, sha: str) -> list[str]:
        """What differs between the working tree and a commit, ignored files too: a letter of git's and a name each.

        "A" is a file that the commit has not, "D" one that is missing, "M" one with other bytes.
        """
        self._git("add", "--all", "--force")
        fields = self._git("diff-index", "--cached", "--name-status", "--no-renames", "-z", sha).split(b"\0")
        texts = [field.decode("utf-8", "backslashreplace") for field in fields[:-1]]
        return [f"{letter} {name}" for letter, name in zip(texts[::2], texts[1::2], strict=True)]

    def _git(self, *words: str) -> bytes:
        return Repository(self.place / ".git").git(f"--work-tree={self.place}", *words)


_TEST: Final = re.compile(r"(?:^|[/_.-])(?:tests?|specs?|__tests__)(?:[/_.-]|$)|(?:Test|Tests|Spec)\.\w+$")
_CODE: Final = re.compile(
    r"\.(?:c|cc|cpp|cs|cjs|go|h|hpp|java|js|jsx|kt|lua|mjs|php|py|pyi|rb|rs|scala|swift|ts|tsx|zig)$"
)


def main_file(deltas: list[Delta]) -> str:
    """The file that a person would name: the largest one with code, if possible no test."""

    def weight(delta: Delta) -> tuple[bool, bool, int]:
        is_code, is_test = (bool(pattern.search(delta.source)) for pattern in (_CODE, _TEST))
        return is_code, not is_test, len(delta.before or delta.after or b"")

    return max(deltas, key=weight).source
