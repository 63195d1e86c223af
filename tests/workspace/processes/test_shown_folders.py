"""No command sees logins or keys in readable folders outside the workspace. Skipped where no sandbox starts."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, open_commands
from mendgraph.nodes.execute_tools.commands.shown_folders import MOST_HIDDEN, Hidden, ShownFolders
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import is_hidden, judge_content
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.workspace.processes.git_places import write
from tests.workspace.processes.test_workspace_cover import create_special_files

LOGIN = "[global]\nindex-url = https://ann:canary@pypi.corp.example/simple\n"
ACCOUNT = '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----canary"}'
PACKAGES = "lib/python3.11/site-packages"
SECRETS = {
    "pip.conf": LOGIN,
    ".env": "PASSWORD=canary\n",
    ".netrc": "machine host login ann password canary\n",
    ".pypirc": "[pypi]\npassword = canary\n",
    "etc/deploy.key": "canary\n",
    "etc/account.json": ACCOUNT,
    ".aws/credentials": "canary\n",
    f"{PACKAGES}/.env": "PASSWORD=canary\n",
    f"{PACKAGES}/package/.netrc": "canary\n",
    f"{PACKAGES}/package/pip.conf": LOGIN,
    f"{PACKAGES}/.ssh/other": "canary\n",
    "lib/python3.11/prod.env": "PASSWORD=canary\n",
}
PUBLIC = {
    "pip.ini": "[global]\ntimeout = 60\n",
    "etc/settings.json": "{}\n",
    f"{PACKAGES}/package/tests/test.pem": "public\n",
    f"{PACKAGES}/package/secret.py": "public\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "root", {"a.py": "a = 1\n"})


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return write(tmp_path / "work", {"pyvenv.cfg": "home = /usr/bin\n", **SECRETS, **PUBLIC})


def reader(root: Path, *readable: Path) -> Callable[..., list[str]]:
    """A function that reads files in the sandbox and returns their texts, "" for an unreadable one."""
    opened = open_commands(
        str(root),
        CommandRules(("sh",), readable=tuple(map(str, readable))),
        partial(is_hidden, rules=DEFAULT_GUARDRAIL_RULES),
        partial(judge_content, rules=DEFAULT_GUARDRAIL_RULES),
    )
    if isinstance(opened, ToolError):
        assert opened.code is ToolErrorCode.UNAVAILABLE
        pytest.skip(opened.message)

    def read(*paths: Path) -> list[str]:
        script = 'for name in "$@"; do cat "$name" 2>/dev/null; printf "\\001"; done'
        result = opened.run(["sh", "-c", script, "sh", *map(str, paths)])
        assert isinstance(result, CommandResult), result
        return result.stdout.head.decode().split("\1")[:-1]

    return read


def test_secrets_in_an_environment_are_hidden(root: Path, environment: Path) -> None:
    read = reader(root, environment)
    for _ in range(2):  # the second time they are remembered
        assert read(*(environment / name for name in SECRETS)) == [""] * len(SECRETS)


def test_files_without_secrets_in_an_environment_are_readable(root: Path, environment: Path) -> None:
    assert reader(root, environment)(*(environment / name for name in PUBLIC)) == [*PUBLIC.values()]


def test_secrets_beside_the_packages_of_the_own_installation_are_hidden(
    root: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(environment))
    read = reader(root)
    names = [name for name in SECRETS if not name.startswith("lib/python3.11/")]
    assert read(*(environment / name for name in names)) == [""] * len(names)
    assert read(environment / "pip.ini") == [PUBLIC["pip.ini"]]


def test_repository_that_holds_the_workspace_is_readable_without_its_secrets(tmp_path: Path) -> None:
    shown = {".git/HEAD": "ref: x\n", "VERSION": "1\n", "web/a.js": "a\n", "backend/a.py": "a = 1\n"}
    secrets = dict.fromkeys(("web/.env", "src/server.key", "pkg/id_rsa"), "canary\n")
    repository = write(tmp_path / "shop", {**shown, **secrets})
    secrets["web/link"] = "canary\n"
    (repository / "web/link").hardlink_to(write(repository / "backend", {".env": "canary\n"}) / ".env")
    names = [repository / name for name in (*shown, *secrets)]
    assert reader(repository / "backend")(*names) == [*shown.values(), *([""] * len(secrets))]


def test_pointer_of_a_linked_worktree_that_holds_the_workspace_is_readable(tmp_path: Path) -> None:
    worktree = write(tmp_path / "shop", {".git": "gitdir: /x\n", ".env": "canary\n", "backend/a.py": "a = 1\n"})
    assert reader(worktree / "backend")(worktree / ".git", worktree / ".env") == ["gitdir: /x\n", ""]


def test_repository_with_too_much_to_hide_is_not_shown(tmp_path: Path) -> None:
    secrets = {f"web/{number}.env": "canary\n" for number in range(MOST_HIDDEN + 1)}
    repository = write(tmp_path / "shop", {".git/HEAD": "ref: x\n", **secrets})
    root = write(repository / "backend", {"a.py": "a = 1\n"})
    read = reader(root)
    for _ in range(2):
        assert read(repository / ".git/HEAD", root / "a.py") == ["", "a = 1\n"]


def test_secret_added_between_two_commands_is_hidden(root: Path, environment: Path) -> None:
    read = reader(root, environment)
    read(environment)
    names = [environment / folder / "local.env" for folder in ("", "etc", PACKAGES, "new")]
    for name in names:
        write(name.parent, {name.name: "canary"})
    assert read(*names) == [""] * len(names)


def test_file_that_gets_a_secret_between_two_commands_is_hidden(root: Path, environment: Path) -> None:
    read = reader(root, environment)
    assert read(environment / "etc/settings.json") == ["{}\n"]
    (environment / "etc/settings.json").write_text(ACCOUNT)
    assert read(environment / "etc/settings.json") == [""]


def test_hard_link_to_a_secret_is_hidden(root: Path, environment: Path) -> None:
    os.link(environment / ".env", environment / "etc/notes.py")
    (environment / "link").symlink_to("pip.conf")
    assert reader(root, environment)(environment / "etc/notes.py", environment / "link") == ["", ""]


def test_workspace_inside_a_readable_folder_follows_workspace_rules(tmp_path: Path, root: Path) -> None:
    write(root, {"keys/a.py": "a\n", ".env": "canary"})
    assert reader(root, tmp_path)(root / "keys/a.py", root / ".env") == ["a\n", ""]


# --- What is looked at


def hidden_in(shown_folders: ShownFolders, *folders: Path, root: str = "/w", seconds: float = 60) -> Hidden | ToolError:
    return shown_folders.find(map(str, folders), root, time.monotonic() + seconds)


def test_exception_in_a_rule_hides_the_file(environment: Path) -> None:
    def breaks(_: str) -> Any:
        raise ValueError

    for shown_folders in (ShownFolders(breaks, lambda _: None), ShownFolders(lambda _: False, lambda _: None, breaks)):
        hidden = hidden_in(shown_folders, environment)
        assert isinstance(hidden, Hidden)
        assert str(environment / "pyvenv.cfg") in hidden.files
        assert str(environment / "etc") in hidden.folders
    by_content = hidden_in(ShownFolders(lambda _: False, breaks), environment)
    assert isinstance(by_content, Hidden)
    assert str(environment / "pyvenv.cfg") in by_content.files


def test_sockets_and_pipes_are_found_outside_the_workspace_only(tmp_path: Path) -> None:
    for name in ("a", "a/.git", "root", "lib/python3.11/x"):
        create_special_files(tmp_path / name)
    write(tmp_path, {"a/.git/refs/x.env": "", "file": ""})
    shown_folders = ShownFolders(lambda name: name.endswith("env"), lambda _: None)
    places = ("a/.git", "a", "lib/python3.11/x")
    names = [str(tmp_path / place / name) for place in places for name in ("pipe", "socket")]
    hidden = hidden_in(shown_folders, tmp_path, tmp_path / "file", tmp_path / "no", root=str(tmp_path / "root"))
    assert hidden == Hidden(tuple(names))


def test_too_many_files_to_hide_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "lib", {f"{number}.env": "" for number in range(301)})
    shown_folders = ShownFolders(lambda name: name.endswith("env"), lambda _: None)
    refusal = hidden_in(shown_folders, tmp_path)
    assert isinstance(refusal, ToolError)
    assert refusal.message == (
        "The folders that commands are shown have more than 300 secrets, sockets, pipes or devices, so no command is"
        " run: name smaller folders in `readable_folders`."
    )
    late = hidden_in(shown_folders, tmp_path, seconds=-1)
    assert isinstance(late, ToolError)
    assert late.message.startswith("One of the folders shown to commands is too large to be looked through")
