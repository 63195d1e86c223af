"""Layouts and spellings, each with the expected result of reading, listing and writing.

Source: the layouts of Go's tests of os.Root, and ours.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from tests.extent import slow
from tests.workspace.attacks.layouts import SECRET, build, picture

DENIED, INVALID, MISSING = ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.NOT_FOUND
NO_FILE: Final = "a directory, a pipe or a socket inside: it cannot be read, and nothing is wrong with its name"
LONG_CHAIN = tuple(f"{number} => {number + 1}" for number in range(60))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the rows have /proc, and names that macOS refuses")

KINDS: dict[str, tuple[tuple[str, ...], str | ToolErrorCode]] = {
    "a file": (("b",), "b"),
    "a directory": (("b/f",), NO_FILE),
    "nothing": ((), MISSING),
    "a link to a file": (("b => f", "f"), "f"),
    "a link to nothing": (("b => new",), MISSING),
    "a link to a file outside": (("b => ../outside/secret.txt",), DENIED),
    "a link to a directory outside": (("b => ../outside",), DENIED),
    "a link to nothing outside": (("b => ../outside/new",), DENIED),
    "a link to the directory above": (("b => ..",), DENIED),
    "a link to itself": (("b => b",), INVALID),
    "a link to a denied file": (("b => .env", ".env!"), DENIED),
    "a hard link to a denied file": ((".env!", "b == .env"), DENIED),
    "a hard link to an allowed file": (("f", "b == f"), "b"),
    "a pipe": (("b|",), NO_FILE),
    "a socket": (("b%",), NO_FILE),
}
SPELLINGS = ("b", ".//b", "DIR/./../b", "../root/b", "/{root}/b", "DIR/../../root/b")
ROWS: list[tuple[str, tuple[str, ...], str | ToolErrorCode]] = [
    *((path, (*lines, "DIR/"), expected) for lines, expected in KINDS.values() for path in SPELLINGS),
    # dots, slashes, absolute names, homes, /proc
    ("a/../a/b/../../a/b/../b/c", ("a/b/c",), "a/b/c"),
    ("a/../f", ("a => b/c", "b/c/", "f"), "f"),
    ("b/", ("b",), INVALID),
    ("..", (), DENIED),
    ("a/../../outside/secret.txt", ("a/",), DENIED),
    ("../" * 40 + "{outside}/secret.txt", (), DENIED),
    ("{root}-evil/secret.txt", (), DENIED),
    ("..hidden", (), MISSING),
    ("..\\f", ("f",), MISSING),
    ("//etc/passwd", (), DENIED),
    ("~/new", (), DENIED),
    ("/proc/self/root{outside}/secret.txt", (), DENIED),
    ("/proc/self/fd/{fd}", (), DENIED),
    ("/dev/zero", (), DENIED),
    ("file://{outside}/secret.txt", (), DENIED),
    ("C:\\x", (), DENIED),
    # links
    ("l", ("l => /proc/self/root{outside}/secret.txt",), DENIED),
    ("l", ("l => /proc/self/fd/{fd}",), DENIED),
    ("l", ("l => /dev/zero",), DENIED),
    ("l", ("l => ../outside/pipe",), DENIED),
    ("l/root/f", ("l => ..", "f"), "f"),
    ("l/outside/secret.txt", ("l => ..",), DENIED),
    ("l/f", ("l => {root}/d", "d/f"), "d/f"),
    ("l", ("l => a/b/c/f", "a/b => e", "a/e => ../g", "g => h/i/j", "h/i/j => ..", "h/c/f"), "h/c/f"),
    ("1", ("1 => 2", "2 => 3", "3 => ../outside/secret.txt"), DENIED),
    ("0", (*LONG_CHAIN, "60"), "60"),
    ("l/f", ("l => m", "m => l"), INVALID),
    ("l/dir/deep.txt", ("l => {outside}",), DENIED),
    ("l/a/new", ("l => ../outside",), DENIED),
    ("l/m/secret.txt", ("l => d", "d/m => ../../outside"), DENIED),
    ("f/x", ("f",), INVALID),
    # names that are no names, and names that are
    ("", ("f",), INVALID),
    ("f\0/../f", ("f",), INVALID),
    ("f\ud800", (), INVALID),
    ("\u00e4" * 128, (), INVALID),
    ("a/" * 2500, (), INVALID),
    ("a\nb", ("a\nb",), "a\nb"),
    ("-rf", ("-rf",), "-rf"),
    # denied names, however they are spelled
    ("../root/.env", (".env!",), DENIED),
    (".env/", (".env!",), DENIED),
    (".ENV", (".ENV!",), DENIED),
    (".e\u200bnv", (".e\u200bnv!",), DENIED),
    (".\uff45\uff4e\uff56", (".\uff45\uff4e\uff56!",), DENIED),
    ("d\\.env", ("d\\.env!",), DENIED),
    (".env~", (".env~!",), DENIED),
    (".GIT/config", (".GIT/config!",), DENIED),
    ("git~1/config", ("git~1/config!",), DENIED),
    ("d/config", (".git/config!", "d => .git"), DENIED),
    ("l", (".env!", "l => m", "m => {root}/.env"), DENIED),
    (".env", ("f", ".env => f"), DENIED),
    ("d/n.txt", (".git/config!", "d/n.txt == .git/config"), DENIED),
    ("m", (".env!", "l == .env", "m => l"), DENIED),
    (".env.example", (".env.example",), ".env.example"),
    ("l", ("l == {outside}/library.py",), "l"),
]


def code_of(answer: object) -> ToolErrorCode | None:
    """A refusal is one printable line and reveals no secret."""
    if not isinstance(answer, ToolError):
        return None
    assert answer.message.isprintable()
    assert SECRET.decode() not in str(answer)
    return answer.code


def plainly_read(root: Path, path: str) -> bool:
    """The failing control: whether the plain call reveals a secret."""
    try:
        with open(
            os.path.join(root, path), "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            return file.read(100) == SECRET
    except (OSError, ValueError):
        return False


@slow
def test_every_layout_has_its_expected_result(tmp_path: Path) -> None:
    secret_file = tmp_path / "held.txt"
    secret_file.write_bytes(SECRET)
    lost = 0
    with secret_file.open("rb") as handle:
        handles = len(os.listdir("/dev/fd"))
        for number, (spelling, lines, expected) in enumerate(ROWS):
            base = tmp_path.resolve() / str(number)
            root = build(base, lines, fd=handle.fileno())
            path = spelling.format(root=root, outside=base / "outside", fd=handle.fileno())
            workspace, before = Workspace(str(root), partial(judge_path, rules=DEFAULT_GUARDRAIL_RULES)), picture(base)
            read, listed = workspace.read_file(path), workspace.list_directory(path)
            code = code_of(read)
            if not isinstance(expected, ToolErrorCode) and expected != NO_FILE:
                assert isinstance(read, FileContent), (spelling, lines, read)
                assert read.path == expected
            else:
                assert code is (INVALID if expected == NO_FILE else expected), (spelling, lines, read)
            if expected in {DENIED, INVALID}:
                assert code_of(listed) is not None, (spelling, lines)
                written = workspace.write_file(path, b"new", expected_sha256="")
                assert isinstance(written, ToolError), (spelling, lines)
                assert list(workspace.walk(path)) == []
            lost += expected is DENIED and plainly_read(root, path)
            assert picture(base) == before, (spelling, lines)
            assert len(os.listdir("/dev/fd")) == handles, "a handle was left open"
    assert lost > 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
@pytest.mark.parametrize("mode", [0o000, 0o111])
def test_directory_without_permissions_is_a_typed_denial(tmp_path: Path, mode: int) -> None:
    root = build(tmp_path.resolve(), ("d/f",))
    (root / "d").chmod(mode)
    listed = Workspace(str(root), lambda *_: None).list_directory("d")
    (root / "d").chmod(0o755)
    assert code_of(listed) is DENIED
