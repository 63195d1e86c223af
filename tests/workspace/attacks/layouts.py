"""Small file trees written down line by line, and a picture of a tree to compare before and after.

Source: the lines are those of Go's tests of os.Root, with a few more kinds.
"""

import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

SECRET = b"secret canary 7f3a"
INSIDE = b"inside"


def build(base: Path, lines: Sequence[str], **values: object) -> Path:
    """`root` in `base` as the lines say, with `outside` and `root-evil` beside it, full of secrets.

    A line is `d/` (a directory), `f` (a file), `f!` (a file with a secret), `a => b` (a link), `a == b` (another name
    of the file b), `p|` (a pipe) or `s%` (a socket). `{root}`, `{outside}` and the names in `values` are replaced.
    """
    root, outside = base / "root", base / "outside"
    for folder in (root, outside / "dir", base / "root-evil"):
        folder.mkdir(parents=True)
    for secret in (outside / "secret.txt", outside / "dir" / "deep.txt", base / "root-evil" / "secret.txt"):
        secret.write_bytes(SECRET)
    (outside / "library.py").write_bytes(INSIDE)
    os.mkfifo(outside / "pipe")
    for line in lines:
        _make(root, line.format(root=root, outside=outside, **values))
    return root


def _make(root: Path, line: str) -> None:
    name, link, target = line.partition(" => ")
    name, twin, source = name.partition(" == ")
    place = root / name.rstrip("/!|%")
    place.parent.mkdir(parents=True, exist_ok=True)
    if link:
        place.symlink_to(target)
    elif twin:
        os.link(root / source, place)
    elif name.endswith("/"):
        place.mkdir(parents=True, exist_ok=True)
    elif name.endswith("|"):
        os.mkfifo(place)
    elif name.endswith("%"):
        _bind(place)
    else:
        place.write_bytes(SECRET if name.endswith("!") else INSIDE)


def _bind(place: Path) -> None:
    """Bind a socket by a relative name, because the kernel limits names to 108 bytes."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(place.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    finally:
        os.fchdir(before)
        os.close(before)


def picture(base: Path) -> dict[str, tuple[str, int, object]]:
    """Kind, permissions, and bytes or target of each entry below the folder; links are not followed."""
    seen: dict[str, tuple[str, int, object]] = {}
    for folder, directories, files, handle in os.fwalk(base):  # by handle: some paths are too long to be spelled
        for name in (*directories, *files):
            status = os.lstat(name, dir_fd=handle)
            kind = stat.filemode(status.st_mode)[0]
            seen[os.path.relpath(os.path.join(folder, name), base)] = (
                kind,
                status.st_mode,
                _content(name, kind, handle),
            )
    return seen


def _content(name: str, kind: str, handle: int) -> object:
    if kind == "l":
        return os.readlink(name, dir_fd=handle)
    if kind != "-":
        return None
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=handle), "rb") as file:
        return file.read()
