"""`WorkspaceBackend` in a deep agent, compared with backends of deepagents, which follow links out of their folder."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from mendgraph import FileGuardrailRule, WorkspaceBackend
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.extent import slow
from tests.langchain.coders import deep_coder, reply_with_calls, run_turn
from tests.sandboxes import needs_sandbox, set_sandbox_problem

sync_and_async = pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a secret file, and links to a folder and a file outside."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/plan.txt").write_text("outside\n", encoding="utf-8")
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/app.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    (root / ".env").write_text("KEY=1\n", encoding="utf-8")
    (root / "logo.png").write_bytes(b"\0\1")
    (root / "link").symlink_to(tmp_path / "out")
    (root / "plan.txt").symlink_to(tmp_path / "out/plan.txt")
    return root


def results(backend: Any, *calls: tuple[str, dict[str, Any]], loop: bool = False) -> list[str]:
    """The results of a deep agent's tools on this backend."""
    with ScriptedServer([reply_with_calls(call) for call in calls] + [Say("Done.")]) as server:
        state = run_turn(deep_coder(server, backend), "Do it.", loop)
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


READ = ("read_file", {"file_path": "/plan.txt"})


@needs_sandbox
@sync_and_async
def test_no_link_leads_out_of_the_workspace(root: Path, loop: bool) -> None:
    cat = ("execute", {"command": "cat plan.txt link/plan.txt"})
    write = ("write_file", {"file_path": "/link/new.txt", "content": "x"})
    read, wrote, executed = results(WorkspaceBackend(str(root)), READ, write, cat, loop=loop)
    assert "is outside the workspace" in read
    assert "is outside the workspace" in wrote
    assert (executed.count("No such file or directory"), "outside\n" in executed) == (2, False)
    assert [path.name for path in (root.parent / "out").iterdir()] == ["plan.txt"]


def test_link_created_during_a_call_does_not_lead_out_of_the_workspace(root: Path) -> None:
    (root / "src/plan.txt").write_text("inside\n", encoding="utf-8")

    def swap() -> bool:
        if not (root / "src").is_symlink():
            (root / "src").rename(root / "old")
            (root / "src").symlink_to(root.parent / "out")
        return False

    read = ("read_file", {"file_path": "/src/plan.txt"})
    rule = FileGuardrailRule("swap", "Nothing", lambda path: path.name == "plan.txt" and swap())
    [text] = results(WorkspaceBackend(str(root), rules=(rule,)), read)
    assert ((root / "src").is_symlink(), "outside\n" in text, text.startswith("Error: ")) == (True, False, True)


@slow
@needs_sandbox
def test_deep_agent_works_with_files_and_commands(root: Path) -> None:
    calls = [
        ("ls", {"path": "/"}),
        ("read_file", {"file_path": "/src/app.py"}),
        ("edit_file", {"file_path": "/src/app.py", "old_string": "x = 1", "new_string": "x = 3"}),
        ("write_file", {"file_path": "/docs/a.md", "content": "# A\n"}),
        ("glob", {"pattern": "**/*.py"}),
        ("grep", {"pattern": "= ", "output_mode": "content"}),
        ("execute", {"command": "cat src/app.py; cat .env; echo bad >&2; exit 3"}),
    ]
    listed, read, _, _, matches, lines, executed = results(WorkspaceBackend(str(root)), *calls)
    assert ("/src/" in listed, "x = 1" in read, matches) == (True, True, "['/src/app.py']")
    assert ("/src/app.py" in lines, "y = 2" in lines, "KEY" in lines) == (True, True, False)
    assert [part in executed for part in ("x = 3", "KEY=1", "bad", "exit code 3")] == [True, False, True, True]
    assert (root / "src/app.py").read_bytes() == b"x = 3\r\ny = 2\r\n"
    assert (root / "docs/a.md").read_text(encoding="utf-8") == "# A\n"


def test_paths_start_at_the_workspace_and_rules_apply_to_every_operation(root: Path) -> None:
    mine = FileGuardrailRule("mine", "My files", lambda path: path.name == "app.py")
    backend, plain = WorkspaceBackend(str(root), rules=(mine,)), WorkspaceBackend(str(root))
    assert plain.read(f"{root}/src/app.py").error == "Files are named from the workspace: it is '/src/app.py'."
    asked_for = (backend.read("/src/app.py"), backend.write("/src/app.py", ""), backend.edit("/src/app.py", "x", "z"))
    assert all("Blocked by rule 'mine'" in str(result.error) for result in (*asked_for, backend.delete("/src/app.py")))
    assert (backend.grep("y").matches, backend.glob("*.py").matches) == ([], [])
    assert (
        plain.write("/.env", "").error
        == "Blocked by rule 'env_file': Environment variable files (.env). Go on without this file."
    )
    assert [result.error for result in plain.upload_files([("/a.bin", b"\0"), ("/.env", b"")])] == [
        None,
        "permission_denied",
    ]
    downloads = plain.download_files(["/a.bin", "/.env", "/none"])
    assert [(result.content, result.error) for result in downloads] == [
        (b"\0", None),
        (None, "permission_denied"),
        (None, "file_not_found"),
    ]


def test_read_ls_glob_and_grep_return_content_and_errors(root: Path) -> None:
    backend = WorkspaceBackend(str(root))
    page = backend.read("/src/app.py", offset=1, limit=1)
    assert page.file_data is not None
    assert (page.file_data["content"], page.total_lines, page.start_line) == ("y = 2\n", 2, 2)
    image = backend.read("/logo.png").file_data
    assert image is not None
    assert (image["content"], image["encoding"]) == ("AAE=", "base64")
    (root / "key.md").write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nend\n", encoding="utf-8"
    )
    key = backend.read("/key.md").file_data
    assert key is None or "MIIE" not in key["content"]
    assert [entry["path"] for entry in backend.ls("/src").entries or []] == ["/src/app.py"]
    assert [match["path"] for match in backend.glob("/*.png").matches or []] == ["/logo.png"]
    assert [match["path"] for match in backend.glob("*.py", "/src").matches or []] == ["/src/app.py"]
    one = backend.grep("= ", max_count=1)
    assert (one.matches, one.truncated) == ([{"path": "/src/app.py", "line": 1, "text": "x = 1"}], True)
    errors = (
        backend.ls("/none").error,
        backend.edit("/src/app.py", "z", "a").error,
        backend.glob("../*").error,
        backend.grep("a\nb").error,
    )
    assert all(errors)
    assert (backend.delete("/src/app.py").path, (root / "src/app.py").exists()) == ("/src/app.py", False)
    assert backend.id != WorkspaceBackend(str(root)).id


def test_glob_finds_files_in_dot_folders_and_in_folders_of_routes(tmp_path: Path) -> None:
    """Source: deepagents#3761, where `ls` shows a dot folder and `**/report.md` finds nothing in it."""
    for name in (".github/workflows/ci.yml", "app/[slug]/page.tsx", "app/(shop)/cart.ts", ".git/hooks/ci.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    backend = WorkspaceBackend(str(tmp_path))
    for pattern, names in {
        "**/ci.yml": ["/.github/workflows/ci.yml"],
        "*.yml": ["/.github/workflows/ci.yml"],
        "app/[slug]/page.tsx": ["/app/[slug]/page.tsx"],
        "app/**/*.{ts,tsx}": ["/app/(shop)/cart.ts", "/app/[slug]/page.tsx"],
        "/*.tsx": [],
    }.items():
        assert [match["path"] for match in backend.glob(pattern).matches or []] == names
    assert backend.glob("x" * 600).matches is None


@needs_sandbox
def test_commands_have_limits_and_no_network(root: Path) -> None:
    backend = WorkspaceBackend(str(root), timeout_s=20, max_output_bytes=1_000)
    slow = backend.execute("echo begun; sleep 60", timeout=1)
    assert (slow.exit_code, slow.output) == (124, "begun\n\nThe command was stopped after 1 s.")
    loud = backend.execute("seq 100000")
    assert (loud.exit_code, loud.truncated, len(loud.output) < 1_200) == (0, True, True)
    online = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "Network is unreachable" in backend.execute(f'python3 -c "{online}"').output


def test_invalid_workspace_folder_is_refused() -> None:
    for root, why in (("gone", "does not exist"), ("/etc", "is a system directory")):
        with pytest.raises(ValueError, match=why):
            WorkspaceBackend(root)


def test_without_a_sandbox_files_work_and_a_command_says_why_it_did_not_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sandbox_problem(monkeypatch, "no bubblewrap")
    backend = WorkspaceBackend(str(root))
    response = backend.execute("ls")
    assert (response.exit_code, "no bubblewrap" in response.output) == (126, True)
    assert backend.read("/src/app.py").error is None


def test_without_deepagents_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepagents.backends", None)
    monkeypatch.delitem(sys.modules, "mendgraph.graph.langchain.workspace_backend", raising=False)
    with pytest.raises(ImportError, match="pip install deepagents"):
        import_module("mendgraph.graph.langchain.workspace_backend")


@pytest.mark.parametrize("name", ["/.mendgraph.toml", "/src/.MENDGRAPH.toml"])
def test_settings_files_of_the_agent_can_be_read_and_not_changed(root: Path, name: str) -> None:
    path = root / name.strip("/")
    path.write_text('mode = "ask"\n', encoding="utf-8")
    backend = WorkspaceBackend(str(root))
    read = backend.read(name)
    refused = (backend.write(name, "x"), backend.edit(name, "ask", "auto"), backend.delete(name))
    [uploaded] = backend.upload_files([(name, b"x")])
    assert read.error is None
    assert read.file_data is not None
    assert 'mode = "ask"' in str(read.file_data["content"])
    assert ["own_settings" in (result.error or "") for result in refused] == [True] * 3
    assert uploaded.error == "permission_denied"
    assert path.read_text(encoding="utf-8") == 'mode = "ask"\n'
