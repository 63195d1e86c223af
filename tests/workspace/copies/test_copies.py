"""Copies of a workspace for the tasks of a batch: complete, separate from their source, and removed without a trace."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.copies.workspace_copies import (
    compare_copy,
    delete_copy,
    make_copy,
    open_copy,
    pin_source,
)
from tests.extent import slow
from tests.memory_folder import memory_folder
from tests.workspace.copies.copy_actions import apply_patch, error_of, made_copy, patch_of
from tests.workspace.files.journaled_runs import EVENTS, run_until_killed
from tests.workspace.processes.command_place import opened
from tests.workspace.processes.git_places import FILES, git, head, protected_files, repository, tree, write


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


Source = Literal["repository", "bare", "shallow", "folder"]


def source_of(place: Path, kind: Source) -> Path:
    if kind == "folder":
        return write(place / "folder", FILES)
    main = repository(place / "main")
    if kind == "bare":
        git(main, "clone", "--quiet", "--bare", ".", str(place / "bare.git"))
        return place / "bare.git"
    if kind == "shallow":
        git(main, "commit", "--quiet", "--allow-empty", "-m", "second")
        git(place, "clone", "--quiet", "--depth", "1", f"file://{main}", "shallow")
        return place / "shallow"
    return main


@slow
@pytest.mark.parametrize("kind", ["repository", "bare", "shallow", "folder"])
def test_copy_is_made_once_compared_and_deleted(place: Path, kind: Source) -> None:
    source, folder = source_of(place, kind), place / "copies/one"
    copy = made_copy(source, folder)
    assert (copy.root, copy.folder, copy.notes) == (str(folder / "workspace"), str(folder), ())
    assert tree(folder / "workspace") == {name: (False, text.encode()) for name, text in FILES.items()}
    assert compare_copy(copy.folder) == b""
    write(Path(copy.root), {"a.txt": "b\n", "new/c": "c", "x.log": "ignored", "build/d": "ignored"})
    patch = patch_of(copy)
    assert open_copy(str(folder)) == made_copy(source, folder) == copy
    assert patch_of(copy) == patch

    other = made_copy(source, place / "copies/two")
    assert other.base == copy.base
    apply_patch(patch, other.root)
    expected = {name: file for name, file in tree(Path(copy.root)).items() if name not in {"x.log", "build/d"}}
    assert tree(Path(other.root)) == expected

    assert [delete_copy(copy.folder), delete_copy(str(folder)), delete_copy(other.folder)] == [None] * 3
    assert (os.listdir(place / "copies"), open_copy(str(folder))) == ([], None)
    assert not any(path.is_dir() for path in place.rglob("worktrees"))


def test_copying_leaves_the_repository_unchanged_and_runs_nothing(place: Path) -> None:
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
    before, files = protected_files(main), tree(main)
    copy = made_copy(main, place / "one")
    write(Path(copy.root), {"a.txt": "changed"})
    assert b"+changed" in patch_of(copy)
    assert delete_copy(copy.folder) is None
    assert (protected_files(main), tree(main)) == (before, files)
    assert os.listdir(place) == ["main"]


def test_uncommitted_changes_are_refused_before_a_copy_is_made(place: Path) -> None:
    main = repository(place / "main")
    write(main, {"a.txt": "changed", "untracked": "x"})
    refused = pin_source(str(main), "")
    assert refused == make_copy(str(main), "", str(place / "one"))
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.CONFLICT
    assert refused.message == (
        f"The repository '{main}' has changes that are not committed ('a.txt'), and copies are made of commits. Commit"
        ' or stash them, or say "revision": "HEAD" to work without them.'
    )
    assert (Path(made_copy(main, place / "one", "HEAD").root) / "a.txt").read_text() == "a\n"
    git(main, "checkout", "--quiet", "a.txt")
    note = "Copies do not contain files that git does not track: commit what is needed."
    assert made_copy(main, place / "two").notes == (note,)


def test_folder_with_other_content_is_refused_and_unchanged(place: Path) -> None:
    source = write(place / "main", FILES)
    write(place / "mine", {"x": "x"})
    refused = error_of(make_copy(str(source), "", str(place / "mine")))
    assert refused.startswith("conflict: ")
    assert "is not empty and not a copy of a workspace" in refused
    assert isinstance(delete_copy(str(place / "mine")), ToolError)
    assert tree(place / "mine") == {"x": (False, b"x")}
    made_copy(source, place / "one")
    other = repository(place / "other")
    assert "contains a copy of another workspace or revision" in error_of(make_copy(str(other), "", str(place / "one")))


def test_concurrent_threads_make_a_copy_once(place: Path) -> None:
    main, start = repository(place / "main"), threading.Barrier(4)

    def make(_: int) -> Any:
        start.wait()
        return make_copy(str(main), "", str(place / "one"))

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(make, range(4))
    assert others == [first] * 3
    assert git(main, "worktree", "list").count("detached") == 1


@slow
@pytest.mark.parametrize("kind", ["repository", "folder"])
def test_interrupted_copy_is_completed_on_the_next_attempt(place: Path, kind: Source) -> None:
    source, folder = source_of(place, kind), place / "one"
    complete = made_copy(source, place / "whole")
    nth, cut = 1, 0
    while run_until_killed(nth, lambda: make_copy(str(source), "", str(folder)), EVENTS | {"subprocess.Popen"}):
        cut += 1
        nth += 12
        if cut % 2:  # the rest of an interrupted copy can also be removed
            assert delete_copy(str(folder)) is None
            assert not folder.exists()
    assert cut > 2
    copy = made_copy(source, folder)
    assert tree(Path(copy.root)) == tree(Path(complete.root))
    assert (compare_copy(copy.folder), copy.base) == (b"", complete.base)
    while run_until_killed(nth := nth // 2, lambda: delete_copy(copy.folder)) and nth > 1:
        assert open_copy(copy.folder) is None
    assert delete_copy(copy.folder) is None
    if kind == "repository":
        records = (Path(complete.root) / ".git").read_text().removeprefix("gitdir: ").strip()
        assert os.listdir(place / "main/.git/worktrees") == [os.path.basename(records)]


@slow
def test_command_in_a_copy_sees_the_repository_and_cannot_change_it(tmp_path: Path) -> None:
    main = repository(tmp_path.resolve() / "main", {**FILES, "secret-of-the-source": "s"})
    copy = made_copy(main, tmp_path.resolve() / "one")
    (main / "untracked").write_text("canary")
    before, commands = protected_files(main), opened(Path(copy.root))

    def run(*argv: str) -> tuple[int, bytes, bytes]:
        result = commands.run(list(argv))
        assert isinstance(result, CommandResult), result
        return result.exit_code, result.stdout.head, result.stderr.head

    write(Path(copy.root), {"a.txt": "changed\n"})
    assert run("git", "status", "--short") == (0, b" M a.txt\n", b"")
    assert run("git", "log", "--format=%s") == (0, b"more\n", b"")
    for script in (
        "git commit --quiet --all --message x",
        "git stash",
        "git branch mine",
        f"echo x > {main}/.git/config",
        f"echo x > {main}/.git/worktrees/*/HEAD",
        "echo x > .git",
        "rm .git",
        f"git --git-dir={main}/.git update-ref refs/heads/main HEAD~0 && git --git-dir={main}/.git tag t",
        *(f"cat {main}/{name} || ls {main}/src" for name in ("untracked", "a.txt", "")),
    ):
        assert run("sh", "-c", script)[0] != 0, script
    assert (protected_files(main), head(main)) == (before, copy.base)
    assert b"+changed" in patch_of(copy)
