from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nodes.execute_tools.environment.change_places import (
    MOST_CHANGES,
    Change,
    DeleteFile,
    MoveFile,
    PlacedChange,
    WriteFile,
    listed,
    placed_changes,
)
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.layout import DENIAL, no_env, sha, tree_of

A, B = sha(b"a = 1\r\n"), sha(b"b = 2\n")


def placed(root: Path, *changes: Change) -> list[PlacedChange] | ToolError:
    before = tree_of(root)
    found = placed_changes(JudgedPaths(str(root), no_env), changes)
    assert tree_of(root) == before
    return found


def test_each_change_gets_the_places_of_its_paths(root: Path) -> None:
    changes: Sequence[Change] = (
        WriteFile("./a.py", b"", A),
        WriteFile("new/file.py", b""),
        MoveFile("src/b.py", "src/c.py", B),
    )
    assert placed(root, *changes) == [
        PlacedChange(changes[0], Place("a.py", "a.py")),
        PlacedChange(changes[1], Place("new/file.py", "new/file.py", missing=True)),
        PlacedChange(changes[2], Place("src/b.py", "src/b.py"), Place("src/c.py", "src/c.py", missing=True)),
    ]


def test_a_file_is_written_through_a_link_and_moved_out_of_a_linked_directory(root: Path) -> None:
    (root / "folder").symlink_to("src")
    found = placed(root, WriteFile("link.py", b"", B))
    assert isinstance(found, list)
    assert found[0].names == ("src/b.py",)
    found = placed(root, MoveFile("folder/b.py", "folder/c.py", B))
    assert isinstance(found, list)
    assert found[0].names == ("src/b.py", "src/c.py")


INVALID, CONFLICT = ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.CONFLICT

REFUSED: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("nope", b"", A), CONFLICT, "Cannot write 'nope': it is gone."),
    (
        WriteFile("a.py", b""),
        CONFLICT,
        "Cannot write 'a.py': it exists already; read it first, then replace it.",
    ),
    (WriteFile("src", b""), INVALID, "Cannot write 'src': it is a directory, and a file is needed."),
    (
        DeleteFile("link.py", B),
        INVALID,
        "Cannot delete 'link.py': it is a symbolic link to 'src/b.py'. Name the file itself.",
    ),
    (
        MoveFile("link.py", "new", B),
        INVALID,
        "Cannot move 'link.py': it is a symbolic link to 'src/b.py'. Name the file itself.",
    ),
    (
        MoveFile("a.py", "dangling", A),
        INVALID,
        "Cannot move to 'dangling': it is a symbolic link to 'src/nothing'. Name the file itself.",
    ),
    (MoveFile("a.py", "src/b.py", A), CONFLICT, "Cannot move to 'src/b.py': it exists already."),
    (MoveFile("a.py", "link.py", A), CONFLICT, "Cannot move to 'link.py': it exists already."),
    (MoveFile("a.py", "src", A), CONFLICT, "Cannot move to 'src': it exists already."),
    (MoveFile("a.py", "a.py", A), CONFLICT, "Cannot move to 'a.py': it exists already."),
    (
        MoveFile("a.py", "src/b.py/c", A),
        INVALID,
        "Cannot resolve 'src/b.py/c': a part of it is a file where a directory is needed.",
    ),
    (DeleteFile("src/b.js", B), ToolErrorCode.NOT_FOUND, "No such file: 'src/b.js'. Did you mean 'src/b.py'?"),
]


@pytest.mark.parametrize(("change", "code", "message"), REFUSED)
def test_what_cannot_be_done(root: Path, change: Change, code: ToolErrorCode, message: str) -> None:
    (root / "dangling").symlink_to("src/nothing")
    found = placed(root, change)
    assert isinstance(found, ToolError)
    assert (found.code, found.message) == (code, message)


SPELLINGS: dict[str, Callable[[str], Change]] = {
    "write": lambda path: WriteFile(path, b"", ""),
    "replace": lambda path: WriteFile(path, b"", sha(b"secret")),
    "delete": lambda path: DeleteFile(path, sha(b"secret")),
    "move from": lambda path: MoveFile(path, "new.py", sha(b"secret")),
    "move to": lambda path: MoveFile("a.py", path, A),
}


@pytest.mark.parametrize("kind", SPELLINGS)
@pytest.mark.parametrize("path", [".env", "innocent.txt", ".git/config", "src/../.env", "new/.env", ".git/new"])
def test_what_the_judge_denies_is_denied_at_both_ends(root: Path, kind: str, path: str) -> None:
    assert placed(root, SPELLINGS[kind](path)) == DENIAL


@pytest.mark.parametrize("kind", SPELLINGS)
@pytest.mark.parametrize("path", ["../new.py", "/etc/passwd", "out/secret.txt", "out/new.py", "out.txt", "~/x"])
def test_nothing_leads_out_at_either_end(root: Path, kind: str, path: str) -> None:
    found = placed(root, SPELLINGS[kind](path))
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.PERMISSION_DENIED


OVERLAPS: list[tuple[tuple[Change, ...], str]] = [
    ((WriteFile("a.py", b"1", A), WriteFile("a.py", b"2", A)), "'a.py'"),
    ((WriteFile("a.py", b"1", A), DeleteFile("./src/../a.py", A)), "'a.py'"),
    ((WriteFile("src/b.py", b"1", B), WriteFile("link.py", b"2", B)), "'src/b.py'"),
    ((WriteFile("folder/b.py", b"1", B), DeleteFile("src/b.py", B)), "'src/b.py'"),
    ((WriteFile("new.py", b"1"), MoveFile("a.py", "new.py", A)), "'new.py'"),
    ((MoveFile("a.py", "src/new.py", A), WriteFile("folder/new.py", b"1")), "'src/new.py'"),
    ((MoveFile("a.py", "new.py", A), MoveFile("src/b.py", "new.py", B)), "'new.py'"),
    ((MoveFile("a.py", "new.py", A), DeleteFile("a.py", A)), "'a.py'"),
]


@pytest.mark.parametrize(("changes", "name"), OVERLAPS)
def test_two_changes_of_one_file_are_refused_under_whatever_names(
    root: Path, changes: tuple[Change, ...], name: str
) -> None:
    (root / "folder").symlink_to("src")
    for order in (changes, changes[::-1]):
        assert placed(root, *order) == ToolError(
            code=INVALID, message=f"Two of these changes concern {name}: make one of them."
        )


def test_a_new_file_is_no_directory_of_another_one(root: Path) -> None:
    assert placed(root, WriteFile("x/y/z", b""), WriteFile("x", b"")) == ToolError(
        code=INVALID, message="'x' cannot be a file here, because 'x/y/z' needs it as a directory."
    )


@pytest.mark.parametrize(("count", "fits"), [(MOST_CHANGES, True), (MOST_CHANGES + 1, False)])
def test_the_number_of_changes_is_bounded(root: Path, count: int, fits: bool) -> None:
    found = placed(root, *(WriteFile(f"new/{number}", b"") for number in range(count)))
    assert isinstance(found, list) is fits
    if isinstance(found, ToolError):
        assert found.message == "201 files are too many for one change: 200 are allowed."


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["a"], "'a'"),
        (["a", "b", "a"], "'a', 'b'"),
        (["a", "b\n", "c"], "'a', 'b\\n', 'c'"),
        (["a", "b", "c", "d", "e"], "'a', 'b', 'c' and 2 more"),
    ],
)
def test_paths_are_listed_in_a_sentence(paths: list[str], text: str) -> None:
    assert listed(paths) == text
