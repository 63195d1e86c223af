import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.copies.workspace_copies import (
    Copy,
    Pinned,
    compare_copy,
    delete_copy,
    make_copy,
    open_copy,
    pin_source,
)
from mendgraph.nodes.execute_tools.processes.commands import CommandResult
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.memory_folder import memory_folder
from tests.nodes.execute_tools.files.journaled_runs import EVENTS, killed
from tests.nodes.execute_tools.processes.command_place import opened
from tests.nodes.execute_tools.processes.git_places import (
    FILES,
    committed,
    git,
    head,
    repository,
    tree,
    untouched,
    write,
)


def task(workspace: Path, revision: str = "") -> Any:
    return SimpleNamespace(workspace=str(workspace), revision=revision)


def prepare_copy(source: Any, folder: str, without: Sequence[str] = ()) -> Copy | ToolError:
    return make_copy(source.workspace, source.revision, folder, without=without)


def pin_revision(source: Any) -> Pinned | ToolError:
    return pin_source(source.workspace, source.revision)


def remove_copy(copy: Copy | str) -> ToolError | None:
    return delete_copy(copy if isinstance(copy, str) else copy.folder)


def copied(source: Any, folder: Path) -> Copy:
    copy = prepare_copy(source, str(folder))
    assert isinstance(copy, Copy), copy
    return copy


def patch_of(copy: Copy) -> bytes:
    patch = compare_copy(copy.folder)
    assert isinstance(patch, bytes), patch
    return patch


def apply(patch: bytes, folder: str) -> None:
    subprocess.run(["git", "apply", "--allow-empty", "-"], input=patch, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


SOURCES = ("repository", "bare", "shallow", "folder")


def source_of(place: Path, kind: str) -> Any:
    main = repository(place / "main")
    if kind == "bare":
        git(main, "clone", "--quiet", "--bare", ".", str(place / "bare.git"))
        return task(place / "bare.git")
    if kind == "shallow":
        git(main, "commit", "--quiet", "--allow-empty", "-m", "second")
        git(place, "clone", "--quiet", "--depth", "1", f"file://{main}", "shallow")
        return task(place / "shallow")
    return task(write(place / "folder", FILES) if kind == "folder" else main)


@pytest.mark.parametrize("kind", SOURCES)
def test_copy_is_made_once_compared_and_taken_away(place: Path, kind: str) -> None:
    source = source_of(place, kind)
    folder = place / "copies/one"
    copy = copied(source, folder)
    assert (copy.root, copy.folder, copy.notes) == (str(folder / "workspace"), str(folder), ())
    assert tree(folder / "workspace") == {name: (False, text.encode()) for name, text in FILES.items()}
    assert compare_copy(copy.folder) == b""
    write(Path(copy.root), {"a.txt": "b\n", "new/c": "c", "x.log": "ignored", "build/d": "ignored"})
    patch = patch_of(copy)
    assert open_copy(str(folder)) == prepare_copy(source, str(folder)) == copy
    assert patch_of(copy) == patch
    assert (Path(copy.root) / "a.txt").read_text() == "b\n"
    other = copied(source, place / "copies/two")
    assert other.base == copy.base
    apply(patch, other.root)
    assert tree(Path(other.root)) == {
        name: kept for name, kept in tree(Path(copy.root)).items() if name not in {"x.log", "build/d"}
    }
    assert [remove_copy(copy), remove_copy(str(folder)), remove_copy(other)] == [None, None, None]
    assert os.listdir(place / "copies") == []
    assert open_copy(str(folder)) is None
    worktrees = [path for path in place.rglob("worktrees") if path.is_dir()]
    assert worktrees == []


def test_repository_of_a_copy_stays_as_it_is(place: Path) -> None:
    main = repository(place / "main")
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        path = main / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {place}/hooked\n")
        path.chmod(0o755)
    git(main, "config", "filter.own.smudge", f"touch {place}/filtered; cat")
    git(main, "config", "filter.own.required", "true")
    git(main, "config", "includeIf.gitdir:**/worktrees/**.path", str(main / ".git/more"))
    write(main, {".git/more": f'[filter "more"]\n\tsmudge = touch {place}/filtered; cat\n'})
    git(main, "config", "core.fsmonitor", f"touch {place}/watched; false")
    write(main, {".git/info/attributes": "*.txt filter=own\n*.py filter=more\n", "untracked": "x"})
    for name in ("hooked", "watched", "filtered"):
        (place / name).unlink(missing_ok=True)
    before, files = untouched(main), tree(main)
    copy = copied(task(main), place / "one")
    assert git(Path(copy.root), "-c", "core.fsmonitor=false", "rev-parse", "--abbrev-ref", "HEAD") == "HEAD\n"
    write(Path(copy.root), {"a.txt": "changed"})
    assert b"+changed" in patch_of(copy)
    assert remove_copy(copy) is None
    assert (untouched(main), tree(main)) == (before, files)
    assert sorted(os.listdir(place)) == ["main"]


def test_copies_of_a_commit_do_not_follow_the_branch(place: Path) -> None:
    main = repository(place / "main")
    pinned = pin_revision(task(main))
    assert not isinstance(pinned, ToolError)
    assert (pinned.revision, pinned.notes) == (head(main), ())
    committed(write(main, {"a.txt": "later"}))
    copy = copied(task(main, pinned.revision), place / "one")
    assert (Path(copy.root) / "a.txt").read_text() == "a\n"
    assert copy.base == pinned.revision != head(main)


def test_what_is_not_committed_is_told_before_anything_is_made(place: Path) -> None:
    main = repository(place / "main")
    write(main, {"a.txt": "changed", "untracked": "x"})
    refused = pin_revision(task(main))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.CONFLICT
    assert refused.message == (
        f"The repository '{main}' has changes that are not committed ('a.txt'), and copies are made of commits. Commit"
        ' or stash them, or say "revision": "HEAD" to work without them.'
    )
    assert prepare_copy(task(main), str(place / "one")) == refused
    copy = copied(task(main, "HEAD"), place / "one")
    assert (Path(copy.root) / "a.txt").read_text() == "a\n"
    git(main, "checkout", "--quiet", "a.txt")
    note = "Files that git does not track are in no copy: commit what is needed."
    assert copied(task(main), place / "two").notes == (note,)


def test_folder_of_a_repository_is_the_workspace(place: Path) -> None:
    main = repository(place / "main", {**FILES, "src/.gitattributes": "*.py text eol=crlf\n"})
    copy = copied(task(main / "src"), place / "plain")
    assert copy.root.endswith("/workspace/src")
    assert tree(Path(copy.root))["b.py"] == (False, b"b = 1\r\n")
    assert compare_copy(copy.folder) == b""
    write(Path(copy.root), {"b.py": "b = 2\r\n", "c.py": "c"})
    assert b"diff --git a/c.py b/c.py" in patch_of(copy)
    assert b"-b = 1\r\n+b = 2\r\n" in patch_of(copy)
    (main / "out").mkdir()
    write(main / "out", {"x": "x"})
    assert tree(Path(copied(task(main / "out"), place / "stranger").root)) == {"x": (False, b"x")}
    for revision, said in (("HEAD", "is not in the commit"), ("nothing", "There is no commit")):
        refused = prepare_copy(task(main / "out", revision), str(place / "no"))
        assert isinstance(refused, ToolError)
        assert said in refused.message


def test_submodules_are_told_and_filters_are_not_run(place: Path) -> None:
    inner = repository(place / "inner")
    main = repository(place / "main", {**FILES, ".gitattributes": "*.bin filter=lfs diff=lfs -text\n", "x.bin": "ptr"})
    git(main, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "vendor/inner")
    committed(main)
    copy = copied(task(main), place / "one")
    assert copy.notes == ("Submodules are empty folders in a copy: 'vendor/inner'.",)
    assert os.listdir(Path(copy.root) / "vendor/inner") == []
    assert compare_copy(copy.folder) == b""
    write(Path(copy.root), {"vendor/inner/x": "x", "x.bin": "changed"})
    other = copied(task(main), place / "two")
    apply(patch_of(copy), other.root)
    (Path(copy.root) / "vendor/inner/x").unlink()
    assert tree(Path(other.root)) == tree(Path(copy.root))


def test_place_of_the_copies_is_not_copied_into_them(place: Path) -> None:
    source = write(place / "main", FILES)
    first = copied(task(source), source / "out/one")
    second = copied(task(source), source / "out/two")
    assert tree(Path(second.root)) == tree(Path(first.root)) == {n: (False, t.encode()) for n, t in FILES.items()}
    beside = copied(task(source), source / "alone")
    assert "alone/workspace/a.txt" not in tree(Path(beside.root))
    (place / "all").mkdir()
    copy = prepare_copy(task(source), str(place / "all/one"), without=[str(source / "out"), str(source / "alone")])
    assert isinstance(copy, Copy)
    assert sorted(os.listdir(copy.root)) == [".gitignore", "a.txt", "src"]


def test_folder_that_holds_something_else_is_left_alone(place: Path) -> None:
    source = write(place / "main", FILES)
    write(place / "mine", {"x": "x"})
    for found in (prepare_copy(task(source), str(place / "mine")), remove_copy(str(place / "mine"))):
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.CONFLICT
        assert "is not empty and holds no copy of a workspace" in found.message
    assert tree(place / "mine") == {"x": (False, b"x")}
    copied(task(source), place / "one")
    other = prepare_copy(task(repository(place / "other")), str(place / "one"))
    assert isinstance(other, ToolError)
    assert other.code is ToolErrorCode.CONFLICT
    assert "holds a copy of another workspace or revision" in other.message


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        ("nothing", "", "not_found: Cannot copy the workspace '{place}/nothing': there is no such file or directory."),
        ("file", "", "invalid_argument: The workspace '{place}/file' is no folder: unpack an archive first"),
        ("folder", "main", "invalid_argument: '{place}/folder' is no git repository, so it has no revision 'main'"),
        ("folder", "--x", "invalid_argument: '--x' is no git revision"),
    ],
)
def test_what_cannot_be_copied(place: Path, name: str, revision: str, said: str) -> None:
    write(place, {"file": "x", "folder/x": "x"})
    refused = prepare_copy(task(place / name, revision), str(place / "copies/one"))
    assert isinstance(refused, ToolError)
    assert f"{refused.code.value}: {refused.message}".startswith(said.format(place=place))
    assert tree(place / "copies") == {}


def test_one_copy_is_made_once_by_many(place: Path) -> None:
    main, start = repository(place / "main"), threading.Barrier(4)

    def make(_: int) -> Any:
        start.wait()
        return prepare_copy(task(main), str(place / "one"))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(make, range(4)))) == 1
    assert git(main, "worktree", "list").count("detached") == 1


@pytest.mark.parametrize("kind", ["repository", "folder"])
def test_copy_that_was_cut_off_is_made_anew(place: Path, kind: str) -> None:
    source = source_of(place, kind)
    whole = copied(source, place / "whole")
    nth, cut = 1, 0
    while killed(nth, lambda: prepare_copy(source, str(place / "one")), EVENTS | {"subprocess.Popen"}):
        cut += 1
        nth += 4
        if cut % 2:  # what a cut-off copy has left can also be taken away
            assert remove_copy(str(place / "one")) is None
            assert not (place / "one").exists()
    assert cut > 2
    copy = copied(source, place / "one")
    assert tree(Path(copy.root)) == tree(Path(whole.root))
    assert (compare_copy(copy.folder), copy.base) == (b"", whole.base)
    while killed(nth := nth // 2, lambda: remove_copy(copy)) and nth > 1:
        assert open_copy(copy.folder) is None
    assert remove_copy(copy) is None
    if (place / "main/.git/worktrees").exists():
        assert os.listdir(place / "main/.git/worktrees") == [os.path.basename(whole_records(whole))]


def whole_records(copy: Copy) -> str:
    return (Path(copy.root) / ".git").read_text().removeprefix("gitdir: ").strip()


def test_command_sees_the_repository_and_cannot_change_it(tmp_path: Path) -> None:
    main = repository(tmp_path.resolve() / "main", {**FILES, "secret-of-the-source": "s"})
    copy = copied(task(main), tmp_path.resolve() / "one")
    (main / "untracked").write_text("canary")
    before = untouched(main)
    commands = opened(Path(copy.root))

    def said(*argv: str) -> tuple[int, bytes, bytes]:
        result = commands.run(list(argv))
        assert isinstance(result, CommandResult), result
        return result.exit_code, result.stdout.head, result.stderr.head

    write(Path(copy.root), {"a.txt": "changed\n"})
    assert said("git", "status", "--short") == (0, b" M a.txt\n", b"")
    assert said("git", "log", "--format=%s") == (0, b"more\n", b"")
    for script in (
        "git commit --quiet --all --message x",
        "git stash",
        "git branch mine",
        f"echo x > {main}/.git/config",
        f"echo x > {main}/.git/worktrees/*/HEAD",
        "echo x > .git",
        "rm .git",
        f"git --git-dir={main}/.git update-ref refs/heads/main HEAD~0 && git --git-dir={main}/.git tag t",
    ):
        assert said("sh", "-c", script)[0] != 0, script
    for name in ("untracked", "a.txt", ""):
        assert said("sh", "-c", f"cat {main}/{name} || ls {main}/src")[0] != 0
    assert (untouched(main), head(main)) == (before, copy.base)
    assert b"+changed" in patch_of(copy)
