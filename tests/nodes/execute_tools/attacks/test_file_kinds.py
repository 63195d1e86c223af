"""Files of every kind under every tool that changes a text: what is kept to the byte, and what is refused and why.

Each call turns the word alpha into ALPHA, or adds a line gamma at the end.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.tools.apply_patch import apply_patch
from mendgraph.nodes.execute_tools.tools.edit_file import edit_file, multi_edit
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.write_file import append_file, write_file
from mendgraph.nodes.records import ToolErrorCode
from tests.nodes.execute_tools.conftest import Bench

INVALID, DENIED = ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.PERMISSION_DENIED
BOM = b"\xef\xbb\xbf"
LARGEST = 10_000_000
EDIT = {"old_str": "alpha", "new_str": "ALPHA"}

CALLS: dict[str, Callable[[Bench], ToolOutput]] = {
    "edit_file": lambda bench: bench.run(edit_file, path="f", **EDIT),
    "multi_edit": lambda bench: bench.run(multi_edit, path="f", edits=[EDIT]),
    "write_file": lambda bench: bench.run(write_file, path="f", content="ALPHA\nbeta\n"),
    "append_file": lambda bench: bench.run(append_file, path="f", content="gamma\n"),
    "apply_patch": lambda bench: bench.run(
        apply_patch, patch="*** Begin Patch\n*** Update File: f\n-alpha\n+ALPHA\n*** End Patch\n"
    ),
}


class Refused(NamedTuple):
    """An error: its code, and how its message begins, but for the place that a tool of many edits puts before it."""

    code: ToolErrorCode
    message: str


_PLACE = re.compile(r"(?:Line \d+ of the patch|Edit 1 of 1 failed, so none was made): ")
Result = bytes | Refused


@dataclass(frozen=True)
class Kind:
    """A file, and what it comes to: `edited` by edit_file and multi_edit, `patched` the same where it is not said."""

    name: str
    data: bytes
    edited: Result
    written: Result
    appended: Result
    patched: Result | None = None
    mode: int = 0o644
    link: str = ""

    def result(self, tool: str) -> Result:
        """What comes of the tool's call."""
        others = {"write_file": self.written, "append_file": self.appended, "apply_patch": self.patched}
        return others.get(tool) or self.edited


def refused(name: str, data: bytes, refusal: Refused, *, mode: int = 0o644, link: str = "") -> Kind:
    """A file that no tool changes."""
    return Kind(name, data, refusal, refusal, refusal, mode=mode, link=link)


def not_text(name: str, data: bytes, what: str) -> Kind:
    """A file that holds no UTF-8."""
    return refused(name, data, Refused(INVALID, f"'f' is {what}; only UTF-8 text can be edited."))


ODD = "alpha\x0cé😀\u2028\rbeta".encode()
TEXT = b"alpha\nbeta\n"
MISS = Refused(INVALID, "old_str does not occur in 'f'. Nothing in it is near: read_file it first.")
NO_PLACE = Refused(INVALID, "the lines of this hunk do not occur in 'f'.")
NOT_HERE = Refused(DENIED, "'f' is outside the workspace")

KINDS = (
    Kind(
        "CRLF",
        b"alpha\r\nbeta\r\n",
        edited=b"ALPHA\r\nbeta\r\n",
        written=b"ALPHA\r\nbeta\r\n",
        appended=b"alpha\r\nbeta\r\ngamma\r\n",
    ),
    Kind(
        "BOM and CRLF",
        BOM + b"alpha\r\nbeta\r\n",
        edited=BOM + b"ALPHA\r\nbeta\r\n",
        written=BOM + b"ALPHA\r\nbeta\r\n",
        appended=BOM + b"alpha\r\nbeta\r\ngamma\r\n",
    ),
    Kind(
        "no final newline",
        b"alpha\nbeta",
        edited=b"ALPHA\nbeta",
        written=b"ALPHA\nbeta\n",
        appended=b"alpha\nbeta\ngamma\n",
    ),
    Kind(
        "odd characters",
        ODD,
        edited=ODD.replace(b"alpha", b"ALPHA"),
        written=b"ALPHA\nbeta\n",
        appended=ODD + b"\ngamma\n",
        patched=NO_PLACE,
    ),
    Kind("empty", b"", edited=MISS, written=b"ALPHA\nbeta\n", appended=b"gamma\n", patched=NO_PLACE),
    Kind(
        "executable",
        TEXT,
        edited=b"ALPHA\nbeta\n",
        written=b"ALPHA\nbeta\n",
        appended=TEXT + b"gamma\n",
        mode=0o755,
    ),
    Kind(
        "link inside",
        TEXT,
        edited=b"ALPHA\nbeta\n",
        written=b"ALPHA\nbeta\n",
        appended=TEXT + b"gamma\n",
        mode=0o640,
        link="real/file",
    ),
    refused("link outside", TEXT, NOT_HERE, link="../outside"),
    refused("mode 0444", TEXT, Refused(DENIED, "Cannot write 'f': the file permissions do not allow it."), mode=0o444),
    refused(
        "over 10 MB",
        TEXT.ljust(LARGEST + 1, b"x"),
        Refused(ToolErrorCode.IO_ERROR, f"'f' is too large to read at once: {LARGEST + 1} bytes, and {LARGEST} are"),
    ),
    not_text("NUL", b"alpha\x00\n", "a binary file of 7 bytes"),
    not_text("UTF-16 with BOM", b"\xff\xfe" + "alpha\n".encode("utf-16-le"), "a UTF-16 text of 14 bytes"),
    not_text("Latin-1", b"alpha\ncaf\xe9\n", "a file of 11 bytes that is not UTF-8 (line 2 has the byte 0xE9)"),
)


class Scene(NamedTuple):
    """The workspace, and the file that is behind `f`."""

    bench: Bench
    real: Path

    def state(self) -> dict[str, str]:
        """What there is beside the content: every name, with its kind and mode, and where links lead."""
        found = [self.bench.root.parent, *sorted(self.bench.root.parent.rglob("*"))]
        return {str(each): f"{each.lstat().st_mode:o} {each.readlink() if each.is_symlink() else ''}" for each in found}


def new_scene(folder: Path, kind: Kind) -> Scene:
    """A workspace with this file, and the thread has tried to read it."""
    root = folder / "root"
    real = Path(os.path.normpath(root / (kind.link or "f")))
    real.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    real.write_bytes(kind.data)
    real.chmod(kind.mode)
    if kind.link:
        (root / "f").symlink_to(kind.link)
    bench = Bench(root)
    bench.run(read_file, path="f")
    return Scene(bench, real)


@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_is_kept_to_the_byte_or_the_call_refused(tmp_path: Path, kind: Kind, tool: str) -> None:
    scene = new_scene(tmp_path, kind)
    before, expected = scene.state(), kind.result(tool)
    output = CALLS[tool](scene.bench)
    error = output.result.error
    if isinstance(expected, bytes):
        assert error is None
        assert scene.real.read_bytes() == expected
        assert [change.path for change in output.changes] == [kind.link or "f"]
    else:
        assert error is not None
        assert error.code is expected.code
        assert _PLACE.sub("", error.message).startswith(expected.message)
        assert scene.real.read_bytes() == kind.data
        assert (output.changes, output.files_read) == ((), {})
    assert scene.state() == before
    assert stat.S_IMODE(scene.real.stat().st_mode) == kind.mode
