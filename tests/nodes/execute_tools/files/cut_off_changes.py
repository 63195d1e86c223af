"""Changes of a small workspace, and that workspace with the journal of what is done there."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from mendgraph.nodes.execute_tools.files.workspace import Change, DeleteFile, MoveFile, Workspace, WriteFile
from mendgraph.nodes.execute_tools.journal.recovery import Recovered, recover
from tests.nodes.execute_tools.files.layout import allow, sha
from tests.nodes.execute_tools.files.recorder_doubles import MemoryJournal

FILES = {"a": 0o751, "d/b": 0o644, "d/c": 0o444, "e": 0o600}
"""The files of the workspace with their modes; each holds the last letter of its name."""

Tree = dict[str, tuple[int, bytes | str]]

CHANGES: dict[str, list[Change]] = {
    "replace": [WriteFile("a", b"new a", sha(b"a"))],
    "create": [WriteFile("x/y/n", b"new")],
    "delete": [DeleteFile("d/b", sha(b"b"))],
    "move": [MoveFile("a", "x/a", sha(b"a"))],
    "move and change": [MoveFile("d/b", "b", sha(b"b"), b"new b")],
    "mode": [WriteFile("a", b"a", sha(b"a"), mode=0o600)],
    "the same again": [WriteFile("a", b"a", sha(b"a"))],
    "two replaced": [WriteFile("a", b"new a", sha(b"a")), WriteFile("d/b", b"new b", sha(b"b"), mode=0o604)],
    "a mode and a file": [WriteFile("a", b"a", sha(b"a"), mode=0o600), WriteFile("n", b"new", mode=0o640)],
    "three": [
        WriteFile("x/n", b"new"),
        DeleteFile("d/b", sha(b"b")),
        MoveFile("e", "z", sha(b"e")),
    ],
    "all": [
        WriteFile("x/y/n", b"new"),
        WriteFile("a", b"new a", sha(b"a")),
        DeleteFile("d/b", sha(b"b")),
        MoveFile("d/c", "x/c", sha(b"c")),
        MoveFile("e", "z/e", sha(b"e"), b"new e"),
    ],
}

OUTSIDE = {"a": b"new a", "b": b"b", "c": b"c", "e": b"new e"}
"""Files that would be taken for those of a change, if a link to them were followed."""


class Place(NamedTuple):
    """A workspace, and the journal of what is done there."""

    root: Path
    journal: MemoryJournal

    def change(self, changes: list[Change]) -> object:
        return Workspace(str(self.root), allow).recorded(self.journal).change_files(changes)

    def recover(self) -> tuple[Recovered, ...]:
        return recover(self.journal, str(self.root))

    def tree(self) -> Tree:
        """Every name with its mode and what it holds, folders without their times."""
        return {
            str(path.relative_to(self.root)): (
                stat.S_IMODE(path.lstat().st_mode),
                os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes(),
            )
            for path in sorted(self.root.rglob("*"))
        }
