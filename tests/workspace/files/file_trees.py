"""The state of a file tree, and changes of each kind."""

import stat
from pathlib import Path

from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, WriteFile
from tests.workspace.files.layout import sha

A, B = sha(b"a = 1\r\n"), sha(b"b = 2\n")


def file_states(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, inode and content of each path."""
    return {
        str(path.relative_to(root)): (
            status.st_mode,
            status.st_ino,
            path.read_bytes() if stat.S_ISREG(status.st_mode) else b"",
        )
        for path in root.rglob("*")
        for status in [path.lstat()]
    }


def modes(root: Path) -> dict[str, int]:
    return {name: stat.S_IMODE(mode) for name, (mode, _, _) in file_states(root).items() if stat.S_ISREG(mode)}


def changes_of_all_kinds(root: Path) -> list[Change]:
    (root / "c.py").write_bytes(b"c")
    (root / "d.py").write_bytes(b"d")
    (root / "d.py").chmod(0o751)
    return [
        WriteFile("x/y/new.py", b"new"),
        WriteFile("a.py", b"a = 2\n", A),
        DeleteFile("src/b.py", B),
        MoveFile("c.py", "x/c.py", sha(b"c")),
        MoveFile("d.py", "z/d.py", sha(b"d"), b"dd"),
        WriteFile("last.py", b"last"),
    ]
