import os
import subprocess
from pathlib import Path

import pytest

from nodes.execute_tools.environment import private_git
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.private_git import PrivateGit
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import git, repository, write

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def made(path: Path, objects: str = "") -> PrivateGit:
    own = PrivateGit(str(path))
    assert own.make(objects) is None
    return own


def patch(own: PrivateGit, root: Path, gone: list[str], names: list[str]) -> str:
    with closing(open_root(str(root))) as handle:
        found = own.patch(handle, gone, names)
    assert isinstance(found, bytes), found
    return found.decode()


def kept(own: PrivateGit, root: Path, names: list[str], tree: str = "", gone: tuple[str, ...] = ()) -> str:
    with closing(open_root(str(root))) as handle:
        found = own.keep(handle, names, tree=tree, gone=gone)
    assert isinstance(found, str), found
    return found


def test_the_beginning_has_the_hash_that_git_gives_it(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a": "a\n", "d/b": b"\0", 'odd "\\\n\t\udcff': "x", "run": "x"}
    root = write(tmp_path / "root", files)
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("a\nb")
    own = made(tmp_path / "own.git")
    tree = kept(own, root, [*files, "link"])
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    assert git(root, "write-tree").strip() == tree
    assert kept(made(tmp_path / "empty.git"), root, []) == EMPTY_TREE


def test_a_patch_tells_what_is_gone_and_what_is_new(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"a": "a\n", "gone": "x\n"})
    own = made(tmp_path / "own.git")
    kept(own, root, ["a", "gone"])
    assert patch(own, root, [], ["a"]) == ""
    write(root, {"a": "b\n"})
    said = patch(own, root, ["gone"], ["a"])
    assert [line for line in said.splitlines() if line[:1] in "+-"] == [
        *("--- a/a", "+++ b/a", "-a", "+b"),
        *("--- a/gone", "+++ /dev/null", "-x"),
    ]
    assert patch(own, root, ["gone"], ["a"]) == said


def test_what_a_repository_has_is_not_stored_again(tmp_path: Path) -> None:
    main = repository(tmp_path / "a\nmain", {"a": os.urandom(100_000), "b": "b"})
    tree = git(main, "rev-parse", "HEAD^{tree}").strip()
    own = made(tmp_path / "own.git", str(main / ".git/objects"))
    assert kept(own, main, [], tree) == tree
    size = sum(path.stat().st_size for path in (tmp_path / "own.git").rglob("*") if path.is_file())
    assert size < 10_000
    assert kept(own, main, [], tree, ("b",)) != tree
    assert patch(own, main, [], ["b"]).startswith("diff --git a/b b/b\nnew file mode 100644\n")


def test_a_patch_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a\n" * 1_000})
    own = made(tmp_path / "own.git")
    kept(own, root, [])
    monkeypatch.setattr(private_git, "MOST_PATCH_BYTES", 500)
    with closing(open_root(str(root))) as handle:
        found = own.patch(handle, [], ["a"])
    message = "The patch has more than 500 bytes: what was changed is in the copy itself."
    assert found == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a", "b": "b"})
    own = made(tmp_path / "own.git")
    os.mkfifo(root / "pipe")
    with closing(open_root(str(root))) as handle:
        for name, said in (("gone", "there is no such file"), ("pipe", "it is not a regular file")):
            found = own.keep(handle, ["a", name])
            assert isinstance(found, ToolError)
            assert f"Cannot read '{name}': {said}" in found.message
        monkeypatch.setattr(os, "read", lambda *_: b"")
        found = own.keep(handle, ["b"])
    assert isinstance(found, ToolError)
    assert found.message == "Cannot read 'b': 'b' became shorter while it was read."


def test_what_could_not_be_read_is_told_also_when_git_is_gone_before_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "root", {"a": "a"})
    own = made(tmp_path / "own.git")
    kill = subprocess.Popen.kill

    def kill_and_wait(process: "subprocess.Popen[bytes]") -> None:
        kill(process)
        process.wait()

    monkeypatch.setattr(subprocess.Popen, "kill", kill_and_wait)
    with closing(open_root(str(root))) as handle:
        found = own.keep(handle, ["a", "gone"])
    assert isinstance(found, ToolError)
    assert found.message.startswith("Cannot read 'gone': there is no such file")


def test_a_git_that_is_missing_or_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a"})
    own = made(tmp_path / "own.git")
    (tmp_path / "file").touch()
    with closing(open_root(str(root))) as handle:
        for failed in (
            own.patch(handle, [], ["a"]),
            own.keep(handle, [], tree="0" * 40),
            PrivateGit(str(tmp_path / "no.git")).keep(handle, ["a"]),
            PrivateGit(str(tmp_path / "file")).make(),
        ):
            assert isinstance(failed, ToolError)
            assert failed.message.startswith("Git could not ")
        assert isinstance(own.keep(handle, ["a"]), str)
        monkeypatch.setattr(private_git, "run_git", lambda *_, **__: ProcessResult(1, b"", b"fatal: broken"))
        for failed in (own.patch(handle, [], ["a"]), own.keep(handle, ["a"])):
            assert isinstance(failed, ToolError)
            assert failed.message.endswith(": broken.")
        gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no git")
        monkeypatch.setattr(private_git, "run_git", lambda *_, **__: gone)
        assert [own.patch(handle, [], ["a"]), own.keep(handle, ["a"]), own.make()] == [gone] * 3
        monkeypatch.setattr(private_git, "git_program", lambda: gone)
        assert own.keep(handle, ["a"]) == gone


def test_a_disk_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_git, "open", full, raising=False)
    found = PrivateGit(str(tmp_path / "own.git")).make("/objects")
    message = f"Cannot make a repository at '{tmp_path}/own.git': the disk is full."
    assert found == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_git_is_ended_with_what_feeds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a"})
    own = made(tmp_path / "own.git")

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(private_git, "open_regular", interrupted)
    with closing(open_root(str(root))) as handle, pytest.raises(KeyboardInterrupt):
        own.keep(handle, ["a"])
