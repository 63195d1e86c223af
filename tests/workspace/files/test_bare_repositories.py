"""No tool makes a bare repository in the workspace, or changes one."""

import subprocess
from pathlib import Path

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, Workspace, WriteFile
from tests.workspace.files.layout import allow, sha
from tests.workspace.processes.git_places import write

HEAD = WriteFile("docs/HEAD", b"ref: refs/heads/main\n")
CONFIG = WriteFile("docs/config", b"[core]\n\tfsmonitor = id\n")
OBJECT = WriteFile("docs/objects/info/packs", b"")
REF = WriteFile("docs/refs/heads/main", b"0\n")
COMMON = WriteFile("docs/commondir", b"../other\n")
SPARE = WriteFile("docs/spare", b"ref: refs/heads/main\n")


def refusal_of(workspace: Workspace, *changes: Change) -> str:
    """The refusal of the last change, or of all of them together; "" for none."""
    done = workspace.change_files(changes)
    if not isinstance(done, ToolError):
        return ""
    assert done.code is ToolErrorCode.PERMISSION_DENIED
    return done.message


PARTS: list[tuple[Change, ...]] = [
    (CONFIG, HEAD),
    (HEAD, CONFIG),
    (OBJECT, REF, HEAD),
    (HEAD, OBJECT),
    (HEAD, REF),
    (HEAD, COMMON),
    (COMMON, HEAD),
    (CONFIG, SPARE, MoveFile("docs/spare", "docs/HEAD", sha(SPARE.data))),
    (HEAD, SPARE, MoveFile("docs/spare", "docs/config", sha(SPARE.data))),
    (CONFIG, WriteFile("docs/head", b"")),
    (CONFIG, WriteFile("docs/../docs/./HEAD", b"")),
]


def test_last_file_of_a_bare_repository_is_refused(tmp_path: Path) -> None:
    for number, (*before, last) in enumerate(PARTS):
        (tmp_path / str(number)).mkdir()
        workspace = Workspace(str(tmp_path / str(number)), allow)
        assert [refusal_of(workspace, change) for change in before] == [""] * len(before)
        assert "would make 'docs' a git repository" in refusal_of(workspace, last), last


def test_bare_repository_is_refused_as_one_change(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path), allow)
    assert "would make 'docs' a git repository" in refusal_of(workspace, CONFIG, OBJECT, REF, HEAD)
    assert not (tmp_path / "docs").exists()


def test_bare_repository_at_the_root_or_through_a_link_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"docs/config": "", "config": ""})
    (tmp_path / "link").symlink_to("docs")
    workspace = Workspace(str(tmp_path), allow)
    assert "would make 'docs' a git repository" in refusal_of(workspace, WriteFile("link/HEAD", b""))
    assert "would make '.' a git repository" in refusal_of(workspace, WriteFile("HEAD", b""))


def test_existing_bare_repository_is_not_changed(tmp_path: Path) -> None:
    bare = tmp_path / "store"
    subprocess.run(["git", "init", "--quiet", "--bare", "--template=", str(bare)], check=True)
    workspace = Workspace(str(tmp_path), allow)
    for change in (
        WriteFile("store/config", b"", sha((bare / "config").read_bytes())),
        WriteFile("store/hooks/post-update", b""),
        DeleteFile("store/HEAD", sha((bare / "HEAD").read_bytes())),
    ):
        assert "is a part of the git repository 'store'" in refusal_of(workspace, change)
    assert refusal_of(workspace, WriteFile("store/main/src/a.py", b"")) == ""


def test_files_that_make_no_repository_are_written(tmp_path: Path) -> None:
    write(tmp_path, {"docs/HEAD": "", "docs/notes": "", "other/config": "", "hooks/a": ""})
    workspace = Workspace(str(tmp_path), allow)
    for name in ("docs/info", "docs/more/config", "other/objects", "other/refs/a", "hooks/b", "HEAD.md"):
        assert refusal_of(workspace, WriteFile(name, b"")) == ""
    assert refusal_of(workspace, WriteFile("docs/HEAD", b"x", sha(b""))) == ""
