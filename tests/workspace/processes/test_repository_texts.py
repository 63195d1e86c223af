"""No command sees logins in the settings of a repository. Skipped where no sandbox starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands
from mendgraph.nodes.execute_tools.commands.repository_texts import without_logins
from tests.workspace.processes.command_place import opened
from tests.workspace.processes.git_places import git, repository, write

REMOTE = "https://ann:canary@host.example/x.git"
HARMLESS = """[core]
\tbare = false
[user]
\tname = Ann
\temail = ann@host.example
[remote "origin"]
\turl = git@host.example:a/b.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""


def says(commands: Commands, script: str) -> str:
    result = commands.run(["sh", "-c", f"exec 2>&1\n{script}"])
    assert isinstance(result, CommandResult), result
    return (result.stdout.head + result.stdout.tail).decode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = repository(tmp_path / "root")
    git(root, "remote", "add", "origin", REMOTE)
    return root


@pytest.fixture(params=[False, True], ids=["command", "evidence"])
def commands(request: pytest.FixtureRequest, root: Path) -> Iterator[Commands]:
    opened_commands = opened(root)
    yield opened_commands.read_only({}, {}) if request.param else opened_commands
    assert "canary" in (root / ".git/config").read_text()


def test_password_of_a_remote_is_hidden_and_git_works(commands: Commands) -> None:
    output = says(commands, "git config remote.origin.url; cat .git/config; git status --short; git log --oneline")
    assert "canary" not in output
    assert output.startswith("https://host.example/x.git\n")
    assert output.endswith(" more\n")


OTHER_FILES = {
    ".git/config.worktree": f"[remote]\n\tpushurl = {REMOTE}\n",
    ".git/modules/lib/config": f'[remote "origin"]\n\turl = {REMOTE}\n',
    ".git/included": f"[remote]\n\turl = {REMOTE}\n",
    ".git/credentials": "https://ann:canary@host\n",
    ".git/.env": "PASS=canary\n",
    "vendor/lib/.git/config": "[http]\n\textraHeader = AUTHORIZATION: basic canary\n",
    "store/config": f"[remote]\n\turl = {REMOTE}\n",
}


def test_login_in_another_file_of_a_repository_is_hidden(commands: Commands) -> None:
    root = Path(commands.root)
    git(root, "init", "--quiet", "--bare", "store")
    write(root, OTHER_FILES)
    output = says(commands, "; ".join(f"cat {name}; mv {name} x; cp {name} y; cat {name} x y" for name in OTHER_FILES))
    assert "canary" not in output
    assert {name: (root / name).read_text() for name in OTHER_FILES} == OTHER_FILES


def test_login_in_the_repository_of_a_worktree_is_hidden(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(root, "worktree", "add", "--quiet", "--detach", str(tree))
    commands = opened(tree)
    output = says(commands, f"git config remote.origin.url; cat {root}/.git/config; git log --oneline")
    assert "canary" not in output
    if commands.sandbox.name == "landlock":  # it can hide a file beside the workspace, but not replace it
        assert "Permission denied" in output
    else:
        assert output.startswith("https://host.example/x.git\n")
        assert output.endswith(" more\n")


def test_login_in_a_repository_in_a_readable_folder_is_hidden(root: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"a.py": "a = 1\n"})
    commands = opened(other, readable=(str(root),))
    output = says(commands, f"cat {root}/.git/config")
    assert "canary" not in output
    assert ("Permission denied" if commands.sandbox.name == "landlock" else "host.example") in output


def test_login_added_between_two_commands_is_hidden(root: Path) -> None:
    commands = opened(root)
    git(root, "config", "remote.origin.url", "https://host.example/")
    assert "host.example" in says(commands, "cat .git/config")
    git(root, "config", "remote.origin.url", REMOTE)
    assert "canary" not in says(commands, "cat .git/config")


def test_too_large_repository_settings_are_hidden(root: Path) -> None:
    with (root / ".git/config").open("a") as file:
        file.write("# a comment\n" * 90_000)
    assert says(opened(root), "cat .git/config") == ""


LOGINS = {
    HARMLESS: HARMLESS,
    "url = https://token@host/x": "url = https://host/x",
    'url = "https://ann:pa@ss@host/x"': 'url = "https://host/x"',
    "url = https://ann:\\\npass@host/x": "url = https://host/x",
    "url = ssh://git:pass@host/x": "url = ssh://git@host/x",
    "url = ssh://git@host/x": "url = ssh://git@host/x",
    '[url "https://a:b@host/"]\n\tinsteadOf = gh:': '[url "https://host/"]\n\tinsteadOf = gh:',
    "[http] extraHeader = PRIVATE-TOKEN: x": "[http] extraHeader =",
    "\tsmtpPass = x": "\tsmtpPass =",
    '\thelper = "!f() { echo password=x; }; f"': "\thelper =",
    "\tcookieFile = x\n\tauthor = x": "\tcookieFile =\n\tauthor = x",
}


def test_only_logins_are_removed_from_settings() -> None:
    assert {settings: without_logins(settings) for settings in LOGINS} == LOGINS
