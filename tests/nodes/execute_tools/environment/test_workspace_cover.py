import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodes.execute_tools.environment import workspace_cover
from nodes.execute_tools.environment.commands import CommandResult
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.workspace_cover import (
    Cover,
    find_cover,
    git_placeholder,
    linked_repository,
    remove_git_placeholder,
)
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.command_place import Place, command_place, opened


def secret(name: str) -> bool:
    return name.endswith((".env", "secrets"))


def cover_of(root: Path, denied: Callable[[str], bool] = secret, seconds: float = 60) -> Cover | ToolError:
    with closing(open_root(str(root))) as handle:
        before = len(os.listdir("/dev/fd"))
        found = find_cover(handle, denied, time.monotonic() + seconds)
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    return found


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_denied_names_and_repositories_are_found_at_any_depth_and_in_ignored_folders(tmp_path: Path) -> None:
    put(tmp_path, ".env", "a/b/c/prod.env", "build/.env", "secrets/.env", "ok.py", "a/.git", ".git/config", "b/.git/x")
    put(tmp_path, ".gitignore")
    (tmp_path / ".gitignore").write_text("build/\n")
    os.mkfifo(tmp_path / "pipe.env")
    assert cover_of(tmp_path) == Cover(
        repositories=[".git", "a/.git", "b/.git"],
        files=[".env", "a/b/c/prod.env", "build/.env", "pipe.env"],
        folders=["secrets"],
    )


def test_links_are_neither_covered_nor_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(outside, "b.env")
    put(root, "real/a.env")
    for name, target in (("x.env", "real/a.env"), ("out", str(outside)), ("up", ".."), (".git", str(outside))):
        (root / name).symlink_to(target)
    assert cover_of(root) == Cover(files=["real/a.env"])


def test_a_name_that_cannot_be_judged_is_covered(tmp_path: Path) -> None:
    def broken(name: str) -> bool:
        raise ValueError(name)

    put(tmp_path, "a")
    assert cover_of(tmp_path, broken) == Cover(files=["a"])


def test_names_that_are_no_text_are_judged_as_well(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.env")).touch()
    (tmp_path / "new\nline.env").touch()
    assert cover_of(tmp_path) == Cover(files=["new\nline.env", "\udcff.env"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_we_may_not_read_is_covered(tmp_path: Path) -> None:
    put(tmp_path, "closed/.env")
    (tmp_path / "closed").chmod(0)
    try:
        assert cover_of(tmp_path) == Cover(folders=["closed"])
    finally:
        (tmp_path / "closed").chmod(0o700)


TOO_MUCH = (
    "unavailable: The workspace has more than {} denied files or folders, or {} repositories, so no command is run in"
    " it: move what is not needed out of it."
)
TOO_DEEP = "unavailable: The workspace has more than 1 folders below each other, so no command is run in it."
TOO_LARGE = "timeout: The workspace is too large to be looked through for denied files in the time of one command."


@pytest.mark.parametrize(
    ("name", "most", "seconds", "error"),
    [
        ("MOST_COVERED", 1, 60, TOO_MUCH.format(1, 100)),
        ("MOST_REPOSITORIES", 1, 60, TOO_MUCH.format(1000, 1)),
        ("DEEPEST", 1, 60, TOO_DEEP),
        ("MOST_COVERED", 2, -1, TOO_LARGE),
    ],
)
def test_what_is_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int, seconds: float, error: str
) -> None:
    put(tmp_path, "a/b/c", "1.env", "a/2.env", ".git", "a/.git")
    monkeypatch.setattr(workspace_cover, name, most)
    found = cover_of(tmp_path, seconds=seconds)
    assert isinstance(found, ToolError)
    assert f"{found.code.value}: {found.message}" == error


def test_bounds_themselves_are_not_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/c", "1.env", "a/2.env", ".git", "a/.git")
    for name, most in (("MOST_COVERED", 2), ("MOST_REPOSITORIES", 2), ("DEEPEST", 1)):
        monkeypatch.setattr(workspace_cover, name, most)
    assert cover_of(tmp_path) == Cover([".git", "a/.git"], ["1.env", "a/2.env"])


def test_an_absent_git_gets_a_placeholder_for_a_while(tmp_path: Path) -> None:
    with closing(open_root(str(tmp_path))) as root:
        assert git_placeholder(root) is True
        assert (tmp_path / ".git").is_dir()
        assert git_placeholder(root) is False
        remove_git_placeholder(root)
        assert not (tmp_path / ".git").exists()
        put(tmp_path, ".git/config")
        remove_git_placeholder(root)
        assert (tmp_path / ".git/config").exists()


def test_a_git_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".git").symlink_to("elsewhere")
    with closing(open_root(str(tmp_path))) as root:
        message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
        assert git_placeholder(root) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_only_a_worktree_that_its_repository_knows_is_linked(tmp_path: Path) -> None:
    main, tree, false = tmp_path / "main", tmp_path / "tree", tmp_path / "false"
    for folder in (main, false):
        folder.mkdir()
    git(main, "init")
    git(main, "commit", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", str(tree))
    assert linked_repository(str(tree)) == str(main / ".git")
    (false / ".git").write_text((tree / ".git").read_text())
    assert linked_repository(str(false)) is None
    assert linked_repository(str(main)) is None


@pytest.mark.parametrize(
    "pointer", ["", "gitdir: /root/.ssh", "gitdir: /", "gitdir: ../outside/worktrees/x", "x", "\0"]
)
def test_a_pointer_to_any_other_folder_is_not_followed(tmp_path: Path, pointer: str) -> None:
    root = tmp_path / "root"
    put(root, ".git")
    put(tmp_path, "outside/worktrees/x/gitdir", "outside/HEAD")
    (root / ".git").write_text(pointer)
    assert linked_repository(str(root)) is None
    (root / ".git").unlink()
    assert linked_repository(str(root)) is None


# --- What the cover is worth


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", [".env", "src/.env", "src/keys/one", "link"])
def test_a_denied_file_cannot_be_read_by_any_name(place: Place, name: str) -> None:
    (place.root / "link").symlink_to("src/keys/one")
    for script in (f"cat {name}", f"cat {place.root}/{name}", f"cp {name} copy; cat copy", f"ln {name} hard; cat hard"):
        assert "canary" not in place.says(script)
    assert "canary" not in place.says(f"mv src moved; cat {name.replace('src', 'moved')}; mv moved src")


def test_a_denied_file_cannot_be_changed_or_removed(place: Place) -> None:
    place.says(
        "echo x > .env; rm -f .env; mv .env other; ln -sf a .env; chmod 777 .env; echo x > src/keys/one;"
        "rm -rf src/keys; echo x > src/keys/new; mv src/keys moved"
    )
    assert (place.root / ".env").read_text() == "canary of .env\n"
    assert os.listdir(place.root / "src/keys") == ["one"]
    assert (place.root / "src/keys/one").read_text() == "canary of src/keys/one\n"


def test_a_repository_is_readable_but_cannot_be_changed_moved_or_removed(place: Place) -> None:
    (place.root / "src/sub/.git").mkdir(parents=True)
    said = place.says(
        "cat .git/config; for g in .git src/sub/.git; do echo x > $g/new; mkdir $g/hooks; mv $g away; rm -rf $g;"
        "chmod 777 $g; ln -sfn /tmp $g; done; echo x > .git/config"
    )
    assert said.startswith("canary of .git/config\n")
    assert (os.listdir(place.root / ".git"), os.listdir(place.root / "src/sub/.git")) == (["config"], [])
    assert (place.root / ".git/config").read_text() == "canary of .git/config\n"


def test_a_repository_cannot_be_made_where_there_is_none(place: Place) -> None:
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    said = place.says("git init 2>&1; mkdir -p .git/hooks; echo x > .git; rmdir .git; mv .git away; ln -s /tmp .git")
    assert said.count(".git") >= 5
    assert not (place.root / ".git").exists()
    assert not (place.root / "away").exists()


def test_a_repository_that_is_a_file_cannot_be_changed(place: Place) -> None:
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    (place.root / ".git").write_text("gitdir: /elsewhere\n")
    place.says("echo x > .git; rm -f .git; mv .git away; mkdir .git")
    assert (place.root / ".git").read_text() == "gitdir: /elsewhere\n"


def test_git_works_in_a_repository_and_in_a_linked_worktree(tmp_path: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=trunk")
    main, root = tmp_path.resolve() / "main", tmp_path.resolve() / "root"
    for line in (("init", str(main)), ("-C", str(main), "commit", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *identity, *line], check=True, capture_output=True)
    subprocess.run(
        ["git", "-C", str(main), "worktree", "add", "-b", "side", str(root)], check=True, capture_output=True
    )
    (root / "new").touch()
    result = opened(tmp_path / "root").run(["git", "status", "--short", "--branch"])
    assert isinstance(result, CommandResult)
    assert (result.stdout.head, result.stderr.head) == (b"## side\n?? new\n", b"")
    for argv in (["git", "add", "new"], ["sh", "-c", f"echo x > {main}/.git/x"]):
        refused = opened(tmp_path / "root").run(argv)
        assert isinstance(refused, CommandResult)
        assert b"ead-only file system" in refused.stderr.head
