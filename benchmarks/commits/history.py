"""The commits of a git repository and the files that they change, read with git. Standard library only."""

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
"""The number of bytes in which git looks for NUL, the sign of a binary file."""


class AbsentError(Exception):
    """A git command failed: the repository lacks an object or a revision."""


@dataclass(frozen=True)
class Hunk:
    """Two slices of lines: the old lines, and the new lines that replace them."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True)
class Delta:
    """One file that a commit changes: names, modes and bytes before and after.

    `before` or `after` is None if the file does not exist. `source` and `path` differ only for a renamed file.
    """

    source: str
    path: str
    modes: tuple[str, str]
    before: bytes | None
    after: bytes | None
    hunks: tuple[Hunk, ...] = ()

    @cached_property
    def texts(self) -> tuple[str, str]:
        """The text before and after, "" for a file that does not exist."""
        before = self.before or b""
        after = self.after or b""
        return before.decode("utf-8"), after.decode("utf-8")

    def skip_reason(self) -> str:
        """Return why no text tool can make this change; "" for a change of text."""
        if LINK in self.modes:
            return "link"
        if SUBMODULE in self.modes:
            return "submodule"

        old_mode, new_mode = self.modes
        if old_mode != new_mode and (NOTHING not in self.modes or new_mode == EXECUTABLE):
            return "mode"

        return _binary_reason(self.before or b"") or _binary_reason(self.after or b"")


def _binary_reason(data: bytes) -> str:
    """Return why these bytes are not a text; "" if they are one."""
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
    """A git directory: a bare repository, or the `.git` of a working tree."""

    git_dir: Path

    @classmethod
    def at(cls, path: Path) -> "Repository":
        """Return the repository whose git directory or working tree is at this path."""
        inner = path / ".git"
        git_dir = inner if inner.exists() else path
        return cls(git_dir.resolve())

    def git(self, *arguments: str, data: bytes = b"") -> bytes:
        """Run git and return its output.

        Raises:
            AbsentError: Git fails.
        """
        command = ["git", f"--git-dir={self.git_dir}", *arguments]
        process = subprocess.run(command, input=data, capture_output=True, check=False)

        if process.returncode:
            raise AbsentError(process.stderr.decode(errors="replace").strip())
        return process.stdout

    def commits(self, count: int, before: str) -> list[Commit]:
        """Return the last `count` commits up to `before` that have one parent, newest first."""
        options = ("--no-merges", "--min-parents=1", f"--max-count={count}", "-z", "--format=%H%n%P%n%B")
        entries = self.git("log", *options, before).decode("utf-8", "replace").split("\0")
        return [Commit(*entry.split("\n", 2)) for entry in entries if entry]

    def deltas(self, commit: Commit, *, renames: bool = True) -> list[Delta]:
        """Return the files that a commit changes. Without `renames`, a rename is a deletion and a new file.

        Raises:
            AbsentError: The repository lacks the bytes of a file.
        """
        rename_option = "--find-renames" if renames else "--no-renames"
        fields = self.git("diff-tree", "-r", "-z", "--raw", rename_option, commit.parent, commit.sha).split(b"\0")
        deltas = []

        while len(fields) > 1:
            old_mode, new_mode, old, new, kind = fields.pop(0).decode().removeprefix(":").split()
            source = path = fields.pop(0).decode("utf-8", "surrogateescape")
            if kind[0] == "R":
                path = fields.pop(0).decode("utf-8", "surrogateescape")

            before = self._bytes(old_mode, old)
            after = self._bytes(new_mode, new)
            hunks: tuple[Hunk, ...] = ()
            if before is not None and after is not None:
                hunks = self._hunks(old, new)
            deltas.append(Delta(source, path, (old_mode, new_mode), before, after, hunks))

        return deltas

    def _bytes(self, mode: str, blob: str) -> bytes | None:
        if mode == NOTHING:
            return None
        if mode == SUBMODULE:
            return b""
        return self.git("cat-file", "blob", blob)

    def _hunks(self, old: str, new: str) -> tuple[Hunk, ...]:
        changes = self.git("diff", "--unified=0", "--text", "--no-ext-diff", "--no-textconv", "--no-color", old, new)
        return tuple(_read_hunk_header(match) for match in _HUNK.finditer(changes))


def _read_hunk_header(match: re.Match[bytes]) -> Hunk:
    """Read a hunk header of git. Git counts lines from 1, and an empty range names the line before it."""
    first, count, new_first, new_count = (1 if number is None else int(number) for number in match.groups())
    start = first - 1 if count else first
    new_start = new_first - 1 if new_count else new_first
    return Hunk(start, start + count, new_start, new_start + new_count)


class Workspace:
    """A working tree for the reproduced commits: a clone that shares the repository's objects.

    Its attributes turn off the conversion of line ends, filters and keywords, so files have the bytes of the commits.
    """

    def __init__(self, repository: Repository, root: Path) -> None:
        self.root = root
        command = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(repository.git_dir), str(root)]
        subprocess.run(command, check=True)

        attributes = root / ".git" / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("* -text -eol -filter -ident -working-tree-encoding\n", "utf-8")

    def check_out(self, sha: str) -> None:
        """Check out a commit and remove all other files.

        Raises:
            AbsentError: The repository lacks a file.
        """
        self._git("checkout", "--quiet", "--force", "--detach", sha)
        self._git("clean", "--quiet", "-ffdx")

    def differences(self, sha: str) -> list[str]:
        """Return the differences between the working tree and a commit, ignored files included.

        A difference is a status letter and a name: "A" for an additional file, "D" for a missing one, "M" for other
        bytes.
        """
        self._git("add", "--all", "--force")
        fields = self._git("diff-index", "--cached", "--name-status", "--no-renames", "-z", sha).split(b"\0")
        texts = [field.decode("utf-8", "backslashreplace") for field in fields[:-1]]
        return [f"{letter} {name}" for letter, name in zip(texts[::2], texts[1::2], strict=True)]

    def _git(self, *arguments: str) -> bytes:
        return Repository(self.root / ".git").git(f"--work-tree={self.root}", *arguments)


_TEST: Final = re.compile(r"(?:^|[/_.-])(?:tests?|specs?|__tests__)(?:[/_.-]|$)|(?:Test|Tests|Spec)\.\w+$")
_CODE: Final = re.compile(
    r"\.(?:c|cc|cpp|cs|cjs|go|h|hpp|java|js|jsx|kt|lua|mjs|php|py|pyi|rb|rs|scala|swift|ts|tsx|zig)$"
)


def main_file(deltas: list[Delta]) -> str:
    """Return the file that a person would name: the largest file with code, preferably not a test."""

    def weight(delta: Delta) -> tuple[bool, bool, int]:
        is_code = bool(_CODE.search(delta.source))
        is_test = bool(_TEST.search(delta.source))
        size = len(delta.before or delta.after or b"")
        return is_code, not is_test, size

    return max(deltas, key=weight).source
