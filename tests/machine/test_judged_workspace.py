"""Files that are denied for their content: to every tool, under every name, and to programs in the sandbox."""

import os
from functools import partial
from pathlib import Path

import pytest

from mendgraph.graph.configuration.loading import user_places
from mendgraph.graph.machine.workspace import judged_workspace, own_rules
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import Commands, open_commands
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.guard.policy import judge_content, judge_path
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.workspace import DeleteFile, FileContent, MoveFile, Workspace
from mendgraph.nodes.workspace.store.run_folder import records_folders

LITERAL = "hunter" + "22x"
ACCOUNT = '{"type": "service_account", "private_key": "-----BEGIN ' + f'PRIVATE KEY-----{LITERAL}"}}\n'
FILES = {
    "sa.json": ACCOUNT,
    "deploy/kubeconfig": f"kind: Config\nusers:\n- user:\n    token: {LITERAL}\n",
    ".npmrc": f"//registry.npmjs.org/:_authToken={LITERAL}\n",
    "gradle.properties": f"mavenPassword={LITERAL}\n",
}
OPEN = {"app/.npmrc": "save-exact=true\n", "app/gradle.properties": "org.gradle.daemon=true\n", "a.json": "{}\n"}


def is_denied(result: object) -> bool:
    return isinstance(result, ToolError) and result.code is ToolErrorCode.PERMISSION_DENIED


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {**FILES, **OPEN}.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return judged_workspace(str(root))


def sha(text: str) -> str:
    return FileContent.of("", text.encode()).sha256


@pytest.mark.parametrize("name", FILES)
def test_file_with_a_secret_is_denied_to_every_tool_under_every_name(
    root: Path, workspace: Workspace, name: str
) -> None:
    digest = sha(FILES[name])
    assert is_denied(workspace.write_file(name, b"x", expected_sha256=digest))
    assert is_denied(workspace.change_files([DeleteFile(name, digest)]))
    assert is_denied(workspace.change_files([MoveFile(name, "src/a.py", digest)]))
    assert (root / name).read_text() == FILES[name]
    os.link(root / name, root / "notes.py")
    (root / "link.py").symlink_to(name)
    for path in (name, "notes.py", "link.py"):
        assert is_denied(workspace.read_file(path))
        assert is_denied(workspace.denied(path))


def test_link_named_like_a_settings_file_is_judged_as_one(root: Path, workspace: Workspace) -> None:
    (root / "notes.md").write_text(FILES["gradle.properties"])
    (root / "app" / "local").mkdir()
    (root / "app" / "local" / "gradle.properties").symlink_to("../../notes.md")
    assert isinstance(workspace.read_file("notes.md"), FileContent)
    assert is_denied(workspace.read_file("app/local/gradle.properties"))


@pytest.mark.parametrize("name", ["new.json", "app/gradle.properties"])
def test_secret_cannot_be_written_to_a_file_that_would_then_be_denied(
    root: Path, workspace: Workspace, name: str
) -> None:
    text = FILES["gradle.properties"] if name.endswith("properties") else ACCOUNT
    before = sha(OPEN[name]) if name in OPEN else ""
    assert is_denied(workspace.write_file(name, text.encode(), expected_sha256=before))
    (root / "notes.md").write_text(text)
    target = f"moved/{name}"
    assert is_denied(workspace.change_files([MoveFile("notes.md", target, sha(text))]))
    assert is_denied(workspace.change_files([MoveFile("a.json", target, sha("{}\n"), text.encode())]))
    assert not (root / target).exists()


@pytest.fixture
def commands(root: Path) -> Commands:
    contents = partial(judge_content, rules=DEFAULT_GUARDRAIL_RULES)
    opened = open_commands(str(root), CommandRules(("sh", "cat")), lambda _: False, contents)
    if isinstance(opened, ToolError):
        assert opened.code is ToolErrorCode.UNAVAILABLE
        pytest.skip(opened.message)
    return opened


def output_of(commands: Commands, script: str) -> str:
    result = commands.run(["sh", "-c", script])
    assert not isinstance(result, ToolError), result
    return result.stdout.head.decode()


def test_programs_cannot_see_a_file_with_a_secret_under_any_name(root: Path, commands: Commands) -> None:
    os.link(root / "sa.json", root / "notes.py")
    script = "cat sa.json notes.py deploy/kubeconfig .npmrc gradle.properties app/.npmrc 2>&1"
    for _ in range(2):  # the second time it is remembered
        output = output_of(commands, script)
        assert LITERAL not in output
        assert "save-exact=true" in output


def data_folder(path: Path, monkeypatch: pytest.MonkeyPatch, *, exists: bool = True) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(path))
    for name in ("runs", "workspaces", "spending") if exists else ():
        (path / name).mkdir(parents=True)


def denied_names(workspace: Path, *names: str) -> list[bool]:
    rules = own_rules(str(workspace), records_folders(), user_places())
    return [judge_path(name, for_write=False, rules=rules) is not None for name in names]


def test_run_records_and_only_they_are_denied_under_their_real_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("var/runs", "var/runs/t-1/audit.jsonl", "VAR/Workspaces/x", "var/other", "runs", "a.py")
    for exists in (False, True):
        data_folder(tmp_path / "var", monkeypatch, exists=exists)
        assert denied_names(tmp_path, *names) == [True, True, True, False, False, False]
    workspace = tmp_path / "project"
    (workspace / "kept").mkdir(parents=True)
    (tmp_path / "data").symlink_to(workspace / "kept")
    data_folder(tmp_path / "data", monkeypatch)
    assert denied_names(workspace, "kept/runs/t-1") == [True]


def test_user_settings_and_prices_are_denied_even_if_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    names = (".config/mendgraph/config.toml", ".Config/mendgraph/PRICES.toml", ".config/mendgraph/x", "config.toml")
    assert denied_names(home, *names) == [True, True, False, False]
    assert denied_names(home / ".config" / "mendgraph", "config.toml") == [True]
    assert own_rules(str(home / "project"), records_folders(), user_places()) == ()
