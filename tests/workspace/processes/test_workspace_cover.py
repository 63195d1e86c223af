"""No command changes, replaces or creates the settings of mendgraph. Skipped where no sandbox starts."""

import errno
import fcntl
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.execute_tools.commands.protected_names import (
    UNTRUSTED,
    protected_git,
    remove_placeholder,
    rename_guarded,
)
from mendgraph.nodes.execute_tools.commands.workspace_cover import Cover, NameRule, find_cover, never
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.processes.git import enclosing_repository, linked_repository
from mendgraph.nodes.workspace.sandboxes.backends import AUTOMATIC
from mendgraph.nodes.workspace.store.user_files import SETTINGS_FILE, read_settings_file
from tests.doubles.system_calls import before_each
from tests.extent import slow
from tests.row_tables import rows
from tests.workspace.processes.command_place import Place, command_place, opened


def secret(name: str) -> bool:
    return name.endswith((".env", "secrets"))


def cover_of(root: Path, denied: Callable[[str], bool] = secret, seconds: float = 60) -> Cover | ToolError:
    with closing(open_root(str(root))) as handle:
        before = len(os.listdir("/dev/fd"))
        cover = find_cover(handle, denied, time.monotonic() + seconds)
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    return cover


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_denied_names_and_repositories_are_found_at_any_depth(tmp_path: Path) -> None:
    put(tmp_path, ".env", "a/b/c/prod.env", "build/.env", "secrets/.env", "ok.py", "a/.git", ".git/config", "b/.git/x")
    put(tmp_path, ".gitignore")
    (tmp_path / ".gitignore").write_text("build/\n")
    os.mkfifo(tmp_path / "pipe.env")
    assert cover_of(tmp_path) == Cover(
        files=[".env", "a/b/c/prod.env", "build/.env", "pipe.env"],
        folders=["secrets"],
        read_only=[".git", "a/.git", "b/.git"],
        texts=[".git/config", "b/.git/x"],
        pinned=["a", "b"],
    )


def test_hard_links_to_protected_files_are_hidden(tmp_path: Path) -> None:
    put(tmp_path, "server.py", "other.py", "tools/pkg/a.py", "tools/pkg/b/c.py", "tools/pkg/.env")
    os.link(tmp_path / "server.py", tmp_path / "second.py")
    os.link(tmp_path / "tools/pkg/b/c.py", tmp_path / "third.py")

    with closing(open_root(str(tmp_path))) as handle:
        cover = find_cover(handle, secret, time.monotonic() + 60, protected=("server.py", "tools/pkg"))
    assert cover == Cover(
        files=["tools/pkg/.env", "second.py", "third.py"], read_only=["server.py", "tools/pkg"], pinned=["tools"]
    )


def test_links_are_neither_covered_nor_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(outside, "b.env")
    put(root, "real/a.env")
    for name, target in (("x.env", "real/a.env"), ("out", str(outside)), ("up", ".."), (".git", str(outside))):
        (root / name).symlink_to(target)
    assert cover_of(root) == Cover(files=["real/a.env"])


@pytest.mark.parametrize(("number", "folders"), [(errno.EACCES, ["a/closed", "secrets"]), (errno.ENOENT, ["secrets"])])
def test_unreadable_folder_is_covered_unless_it_is_gone(tmp_path: Path, number: int, folders: list[str]) -> None:
    put(tmp_path, "a/closed/.env", "a/ok", "secrets/closed/.env")

    def refuse(name: str, *_: object) -> None:
        if name == "closed":
            raise OSError(number, os.strerror(number))

    with before_each("open", refuse):
        assert cover_of(tmp_path) == Cover(folders=folders)


def refusal_of(root: Path, seconds: float = 60) -> str:
    error = cover_of(root, seconds=seconds)
    assert isinstance(error, ToolError)
    return f"{error.code.value}: {error.message}"


def test_workspace_with_too_much_to_cover_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "files", *(f"{number}.env" for number in range(1_001)))
    put(tmp_path / "repositories", *(f"{number}/.git" for number in range(201)))
    put(tmp_path / "pinned", *(f"{number}/a/b/c/.git" for number in range(60)))
    too_much = (
        "unavailable: The workspace has more than 1000 denied files or folders, or 200 repositories, settings"
        " or folders around them, so no command is run in it: move what is not needed out of it."
    )
    assert {refusal_of(tmp_path / name) for name in ("files", "repositories", "pinned")} == {too_much}

    put(tmp_path / "deep", f"{'a/' * 201}f")
    too_deep = "The workspace has more than 200 folders below each other, so no command is run in it."
    assert refusal_of(tmp_path / "deep") == f"unavailable: {too_deep}"
    too_large = "The workspace is too large to be looked through for denied files in the time of one command."
    assert refusal_of(tmp_path / "files", seconds=-1) == f"timeout: {too_large}"


def create_special_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "pipe")
    handle = os.open(folder, os.O_RDONLY)
    with closing(handle), socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{handle}/socket")  # names of sockets are short


def test_sockets_and_pipes_in_the_workspace_are_hidden(tmp_path: Path) -> None:
    for name in ("a", ".git/deep", "secrets"):
        create_special_files(tmp_path / name)
    put(tmp_path, "a/ok")
    assert cover_of(tmp_path) == Cover(
        [".git/deep/pipe", ".git/deep/socket", "a/pipe", "a/socket"], ["secrets"], [".git"]
    )


# --- What the cover protects


@pytest.fixture(params=AUTOMATIC)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, request.param) as opened_place:
        yield opened_place


@pytest.fixture
def bubblewrap_place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, "bubblewrap") as opened_place:
        yield opened_place


def test_denied_file_cannot_be_read_by_any_name_or_get_a_sibling(place: Place) -> None:
    (place.root / "link").symlink_to("src/keys/one")
    attacks = "; ".join(
        f"cat {name}; cat $PWD/{name}; cp {name} copy; cat copy; ln {name} hard; cat hard; rm -f copy hard"
        for name in ("src/keys/one", "link")
    )
    moved = "mv src moved; cat moved/keys/one link; mv moved src"
    output = place.says(f"ls -A src/keys; {attacks}; {moved}; echo x > src/keys/new || echo refused")
    assert "canary" not in output
    assert output.endswith("refused\n")
    assert os.listdir(place.root / "src/keys") == ["one"]


def test_repository_is_readable_but_cannot_be_changed_moved_or_removed(place: Place) -> None:
    (place.root / "src/sub/.git").mkdir(parents=True)
    output = place.says(
        "cat .git/config; for g in .git src/sub/.git; do echo x > $g/new; mkdir $g/hooks; mv $g away; rm -rf $g;"
        "chmod 777 $g; ln -sfn /tmp $g; done; echo x > .git/config"
    )
    assert output.startswith("canary of .git/config\n")
    assert (os.listdir(place.root / ".git"), os.listdir(place.root / "src/sub/.git")) == (["config"], [])
    assert (place.root / ".git/config").read_text() == "canary of .git/config\n"


def test_hard_links_to_protected_files_give_no_access(place: Place) -> None:
    for name in (".env", "src/keys/one", ".git/config"):
        (place.root / f"other-{Path(name).name}").hardlink_to(place.root / name)
    output = place.says("cat other-*; for o in other-.env other-one other-config; do echo x > $o; cat $o; rm $o; done")
    assert "canary" not in output
    for name in (".env", "src/keys/one", ".git/config"):
        assert (place.root / name).read_text() == f"canary of {name}\n"


@contextmanager
def protected(root: Path) -> Iterator[ToolError | None]:
    with closing(open_root(str(root))) as handle, protected_git(handle, time.monotonic() + 60) as problem:
        yield problem


def test_missing_git_folder_gets_a_temporary_placeholder(tmp_path: Path) -> None:
    with protected(tmp_path) as problem:
        assert problem is None
        assert os.listdir(tmp_path / ".git") == []
    assert not (tmp_path / ".git").exists()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").touch()
    with protected(tmp_path):
        pass
    assert (tmp_path / ".git/config").exists()


def test_git_pointer_to_an_unrelated_folder_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    put(tmp_path / "outside", "worktrees/x/gitdir", "HEAD")
    for pointer in ("", "gitdir: /", "gitdir: ../outside/worktrees/x", "\0"):
        (root / ".git").write_text(pointer)
        assert linked_repository(str(root)) is None


def test_repository_above_the_workspace_is_found_unless_it_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "home/shop/backend/app"
    put(tmp_path, "home/shop/.git/HEAD")
    root.mkdir(parents=True)
    shop = str(tmp_path / "home/shop")
    assert enclosing_repository(str(root)) == shop
    assert enclosing_repository(shop) is None

    (tmp_path / "home/shop").chmod(0o1777)
    assert enclosing_repository(str(root)) is None
    (tmp_path / "home/shop").chmod(0o755)

    for home, expected in (("home", shop), ("home/shop", None), ("home/shop/backend", None), ("home/shop/other", None)):
        monkeypatch.setenv("HOME", str(tmp_path / home))
        assert enclosing_repository(str(root)) == expected, home


def test_repository_cannot_be_made_while_another_run_ends(bubblewrap_place: Place) -> None:
    place = bubblewrap_place
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    script = "echo > up; while [ ! -e go ]; do sleep 0.01; done; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"
    second = threading.Thread(target=place.commands.run, args=(["sh", "-c", script],))
    other = opened(place.root)
    second.start()
    while not (place.root / "up").exists():
        time.sleep(0.01)
    assert isinstance(other.run(["true"]), CommandResult)
    assert (place.root / ".git").exists()
    (place.root / "go").touch()
    second.join()
    assert not (place.root / ".git").exists()


def test_leftover_placeholder_is_removed_unless_needed_or_not_empty(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with protected(tmp_path):
        remove_placeholder(str(tmp_path))
        assert (tmp_path / ".git").exists()
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / ".git/config").touch()
    remove_placeholder(str(tmp_path))
    assert (tmp_path / ".git/config").exists()
    (tmp_path / ".git/config").unlink()
    remove_placeholder(str(tmp_path))
    assert not (tmp_path / ".git").exists()


TEXT = 'mode = "ask"\n'


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith(".mendgraph"))


ATTACKS = (
    f"echo evil > {SETTINGS_FILE}",
    f"rm -f {SETTINGS_FILE}; echo evil > {SETTINGS_FILE}",
    f"mv {SETTINGS_FILE} x; echo evil > {SETTINGS_FILE}",
    f"ln -sf a {SETTINGS_FILE}",
    "echo evil > other-name",
)


def test_settings_file_is_protected_against_every_attack(place: Place) -> None:
    path = place.root / SETTINGS_FILE
    path.write_text(TEXT)
    os.link(path, place.root / "other-name")
    for attack in ATTACKS:
        assert TEXT in place.says(f"cat {SETTINGS_FILE}; {attack}"), attack
        assert (path.read_text(), path.is_symlink(), names(place.root)) == (TEXT, False, [SETTINGS_FILE]), attack


def test_settings_file_made_by_a_command_is_renamed(place: Place) -> None:
    for attack in ("echo evil >", "ln -sf src/a.py"):
        assert place.result("sh", "-c", f"{attack} {SETTINGS_FILE}").exit_code == 0
        assert names(place.root) == [f"{SETTINGS_FILE}{UNTRUSTED}"], attack
        assert read_settings_file(str(place.root)) is None


@rows((0o300, never), (0o100, never), (0, lambda name: name == SETTINGS_FILE))
def test_new_settings_are_renamed_in_an_unlistable_folder(mode: int, guarded: NameRule, tmp_path: Path) -> None:
    put(tmp_path, SETTINGS_FILE)
    with closing(open_root(str(tmp_path))) as handle:
        tmp_path.chmod(mode)
        rename_guarded(handle, guarded, {}, () if mode == 0 else (SETTINGS_FILE,))
        assert tmp_path.stat().st_mode & 0o777 == mode
        tmp_path.chmod(0o700)
    assert names(tmp_path) == [f"{SETTINGS_FILE}{UNTRUSTED}"]


# --- Folders above protected names

FOREIGN = "[core]\n\tfsmonitor = id\n"


EXCHANGE = 'import ctypes; ctypes.CDLL(None).renameat2(-100, b"lib", -100, b"spare", 2)'


def nested_repository(root: Path, name: str) -> Path:
    config = root / name / ".git/config"
    config.parent.mkdir(parents=True)
    config.write_text("own\n")
    return config


def test_config_of_a_nested_repository_survives_changes_of_its_parents(place: Place) -> None:
    """A rename, the rename of an inner folder, an exchange, a removal."""
    config = nested_repository(place.root, "lib/inner")
    for attack in (
        "mv lib .l && cp -r .l lib",
        "mv lib/inner .l && mkdir -p lib/inner/.git",
        f"mkdir spare; python3 -c '{EXCHANGE}'",
        "rm -rf lib; mkdir -p lib/inner/.git",
    ):
        place.says(f"{attack}; printf '{FOREIGN}' > lib/inner/.git/config")
        assert config.read_text() == "own\n", attack


def test_settings_in_a_subfolder_survive_a_rename_of_the_parent(place: Place) -> None:
    settings = place.root / "lib" / SETTINGS_FILE
    settings.parent.mkdir()
    settings.write_text(TEXT)
    result = place.result("sh", "-c", f"mv lib .l; mkdir -p lib; echo evil > lib/{SETTINGS_FILE}")
    errors = result.stderr.head.decode()
    assert f"lib/{SETTINGS_FILE} was not changed" in errors or "Device or resource busy" in errors
    assert settings.read_text() == TEXT


def test_files_beside_a_nested_repository_can_be_changed_and_renamed(place: Place) -> None:
    nested_repository(place.root, "lib/inner")
    (place.root / "lib/a").write_text("a\n")
    assert (
        place.says("echo b >> lib/a; mv lib/a lib/inner/b; mkdir lib/new; mv lib/new lib/newer; cat lib/inner/b")
        == "a\nb\n"
    )


EVIL = "mkdir -p .config/mendgraph; echo evil > .config/mendgraph/config.toml"
USER_SETTINGS = [
    ("", EVIL),
    (".config/mendgraph", EVIL),
    (".config", f"mv .config .c; {EVIL}"),
    (".config/mendgraph", f"mv .config .c; {EVIL}"),
    (".config/mendgraph/config.toml", f"mv .config .c; {EVIL}"),
    (".config/mendgraph/config.toml", f"mv .config/mendgraph .c; {EVIL}"),
    ("", "ln -s src .config; mkdir src/mendgraph; echo evil > src/mendgraph/config.toml"),
    (".config", "rm -rf .config; ln -s src .config; mkdir src/mendgraph; echo evil > src/mendgraph/config.toml"),
]
"""What there is, and what a command does: it makes them, renames a folder above them, or makes a link of one."""


@slow
@pytest.mark.parametrize("sandbox", AUTOMATIC)
def test_user_settings_in_the_workspace_are_not_created_or_replaced(tmp_path: Path, sandbox: str) -> None:
    for number, (existing, attack) in enumerate(USER_SETTINGS):
        with command_place(tmp_path / str(number), sandbox) as place:
            settings = place.root / ".config/mendgraph/config.toml"
            if existing.endswith(".toml"):
                put(place.root, existing)
            else:
                (place.root / existing).mkdir(parents=True, exist_ok=True)
            place.opened(protected=(str(settings),)).run(["sh", "-c", attack])
            text = settings.read_text() if settings.exists() else ""
            assert text == ("x" if existing.endswith(".toml") else ""), (existing, attack)


def test_user_settings_made_at_the_workspace_root_are_renamed(place: Place) -> None:
    commands = place.opened(protected=(str(place.root / "config.toml"),))
    commands.run(["sh", "-c", "echo evil > config.toml"])
    assert not (place.root / "config.toml").exists()
    assert (place.root / f"config.toml{UNTRUSTED}").exists()


@slow
def test_bare_repository_cannot_be_changed_or_replaced(place: Place) -> None:
    config = place.root / "store/data/config"
    subprocess.run(["git", "init", "--quiet", "--bare", str(config.parent)], check=True)
    before = config.read_text()
    attacks = ("true", "mv store .s; cp -r .s store", "mv store/data .s; cp -r .s store/data", "rm -rf store/data/HEAD")
    for attack in attacks:
        place.says(f"{attack}; printf '{FOREIGN}' >> store/data/config; echo id > store/data/hooks/post-update")
    assert config.read_text() == before
    assert not (config.parent / "hooks/post-update").exists()
    assert place.says("git -C store/data rev-parse --is-bare-repository") == "true\n"


# --- A lock held by another process


@slow
def test_foreign_lock_on_a_folder_without_a_repository_is_an_error(bubblewrap_place: Place) -> None:
    place = bubblewrap_place
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    with closing(open_root(str(place.root))) as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        assert place.error("true") == (
            "unavailable: Another program has locked the workspace's folder (flock), so no command is run in it: end"
            " that program, or make the workspace a repository (git init)."
        )
    assert not (place.root / ".git").exists()
    assert place.result("true").exit_code == 0


def test_lock_held_by_a_program_of_another_run_blocks_no_command(bubblewrap_place: Place) -> None:
    place = bubblewrap_place
    (place.root / ".git/config").unlink()
    (place.root / ".git").rmdir()
    script = (
        "import fcntl, os, time; fcntl.flock(os.open('.', 0), fcntl.LOCK_SH); open('up', 'w');"
        "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]"
    )
    second = threading.Thread(target=place.commands.run, args=(["python3", "-c", script],))
    other = opened(place.root)
    second.start()
    while not (place.root / "up").exists():
        time.sleep(0.01)
    assert isinstance(other.run(["true"]), CommandResult)
    (place.root / "go").touch()
    second.join()


def test_new_settings_are_renamed_even_if_the_new_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).touch()
    (tmp_path / f"{SETTINGS_FILE}.untrusted").mkdir()
    with closing(open_root(str(tmp_path))) as handle:
        rename_guarded(handle, lambda _: False, {}, (SETTINGS_FILE,))
    assert SETTINGS_FILE not in os.listdir(tmp_path)
