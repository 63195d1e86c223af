"""Real programs in the real sandbox; skipped, with the reason, where it cannot start."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, open_checks
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.execute_tools.processes import bubblewrap
from mendgraph.nodes.execute_tools.processes.commands import CommandResult
from mendgraph.nodes.execute_tools.processes.processes import Limit, ResourceLimits
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode
from tests.nodes.execute_tools.processes.command_place import secret

APP = "def add(a, b):\n    return a - b\n"


def opened(root: Path, **rules: Any) -> Checks:
    found = open_checks(str(root), CheckRules(**rules), secret)
    if isinstance(found, ToolError):
        assert found.code is ToolErrorCode.UNAVAILABLE
        pytest.skip(found.message)
    return found


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """Nothing in the folder is another one afterwards, and no handle is open."""

    def now() -> dict[str, bytes]:
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}

    before, handles = now(), len(os.listdir("/dev/fd"))
    yield
    assert now() == before
    assert len(os.listdir("/dev/fd")) == handles


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path.resolve() / "root"
    root.mkdir()
    (root / "app.py").write_text(APP)
    (root / ".env").write_text("KEY=1\n")
    with unchanged(root):
        yield root


def module(path: str, text: str | None, source: str, want: str) -> JsonMap:
    example: JsonMap = {"source": source, "want": want, "kind": "value", "raises": None, "options": []}
    return {"path": path, "text": text, "groups": [[example]]}


def entry(status: str, text: str = "") -> JsonMap:
    return {"loaded": True, "own": True, "error": "", "results": [[status, text]]}


def test_examples_of_the_file_and_of_a_text_in_its_place(root: Path) -> None:
    modules = [
        module("app.py", APP.replace("-", "+"), "add(2, 3)", "5"),
        module("app.py", None, "add(2, 3)", "5"),
        module("new/b.py", "from app import add\n", "add(2, 3)", "-1"),
    ]
    assert opened(root).run_examples(modules) == [entry("passed"), entry("different", "-1"), entry("passed")]


def test_an_example_that_writes_or_looks_at_what_is_denied_is_unknown(root: Path) -> None:
    text = (
        "from pathlib import Path\ndef write(): Path('made').write_text('x')\ndef read(): return open('.env').read()\n"
    )
    modules = [module("app.py", text, "write()", "1"), module("app.py", text, "len(read())", "6")]
    found = opened(root).run_examples(modules)
    assert isinstance(found, list)
    assert [each["results"][0][0] for each in found] == ["unknown", "unknown"]


def test_an_example_that_does_not_end(root: Path) -> None:
    text = "def f():\n    while True: print('x')\n"
    checks = opened(root, examples_timeout_s=0.5)
    assert checks.run_examples([module("app.py", text, "f()", "1")]) == [entry("endless")]


def test_without_a_python_nothing_can_be_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.nodes.execute_tools.evidence.checks._PYTHON", "exec no-such-python")
    message = "There is no Python that commands can see."
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    assert opened(root).run_examples([module("app.py", None, "add(1, 1)", "0")]) == error


@pytest.mark.parametrize(
    ("program", "told"),
    [('#!/bin/sh\n[ -z "$3" ] && exit 0\necho \'[{"own": 1}]\'\n', [{"own": 1}]), ("#!/no/such/thing\n", None)],
)
def test_the_python_of_the_workspace_where_it_starts(tmp_path: Path, program: str, told: list[JsonMap] | None) -> None:
    folder = tmp_path.resolve() / "ws/.venv/bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(program)
    (folder / "python").chmod(0o755)
    found = opened(folder.parent.parent).run_examples([module("a.py", "", "1", "1")])
    assert found == (told or [entry("passed")])


@pytest.mark.parametrize(
    ("app", "said", "code"), [("def add(a, b):\n    return a + b\n", "", 0), (APP, "assert add(2, 3) == 5", 1)]
)
def test_a_test_file_passes_or_fails(tmp_path: Path, app: str, said: str, code: int) -> None:
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "test_app.py").write_text("from app import add\ndef test_add():\n    assert add(2, 3) == 5\n")
    with unchanged(tmp_path):
        result = opened(tmp_path.resolve()).run_tests("test_app.py")
    assert isinstance(result, CommandResult)
    assert (result.exit_code, said in result.stdout.head.decode()) == (code, True)


def test_configured_commands(root: Path) -> None:
    commands = ("sh -c 'echo \"a b\"; exit 3'", "python3 -B -c 'import app'", "no-such-program -q", "touch made")
    checks = opened(root, commands=commands)
    results = [checks.run_command(each) for each in commands]
    assert [each.exit_code if isinstance(each, CommandResult) else each.code for each in results] == [
        3,
        0,
        ToolErrorCode.NOT_FOUND,
        1,
    ]
    assert isinstance(results[0], CommandResult)
    assert results[0].stdout.head == b"a b\n"


def test_a_command_that_takes_too_long(root: Path) -> None:
    result = opened(root, commands=("sleep 100",), timeout_s=0.3).run_command("sleep 100")
    assert isinstance(result, CommandResult)
    assert result.timed_out


@pytest.mark.parametrize(("command", "reason"), [("pytest 'a", "No closing quotation"), ("", "it is empty")])
def test_what_is_no_command_line(root: Path, command: str, reason: str) -> None:
    found = open_checks(str(root), CheckRules((command,)), secret)
    message = f"The check {command!r} is not a command line ({reason}): write it as in a terminal, without pipes."
    assert found == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_a_scope_that_is_over(root: Path) -> None:
    checks, scope = opened(root, commands=("true",)), CancellationScope()
    assert checks.in_scope(None) is checks
    in_scope = checks.in_scope(scope)
    scope.revoke()
    with pytest.raises(ScopeOverError):
        in_scope.run_command("true")
    assert isinstance(checks.run_command("true"), CommandResult)


# --- Code of the workspace that takes more than it may

SMALL = ResourceLimits(processes=20, memory_bytes=120_000_000, scratch_bytes=8_000_000, open_files=64)
BOMBS = {
    "processes": (
        "import os, time\nfor each in range(100): os.fork() or time.sleep(60)\ntime.sleep(60)\n",
        Limit.PROCESSES,
    ),
    "memory": ("import time\nkept = bytearray(b'x') * 200_000_000\ntime.sleep(60)\n", Limit.MEMORY),
}


@pytest.mark.parametrize(("code", "limit"), BOMBS.values(), ids=BOMBS)
def test_an_example_that_takes_too_much(root: Path, code: str, limit: Limit) -> None:
    text = f"def f():\n    {code.replace(chr(10), chr(10) + '    ')}\n"
    asked = module("app.py", text, "f()", "1")
    found = opened(root, limits=SMALL, examples_timeout_s=20.0).run_examples([asked])
    if os.getuid() and limit is Limit.PROCESSES:  # the kernel refuses a further one, so that the code fails by itself
        assert found == [entry("unknown", "BlockingIOError: [Errno 11] Resource temporarily unavailable")]
    else:
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.RESOURCE_LIMIT
        assert found.message.startswith("The run of the examples ")


@pytest.mark.parametrize(("code", "limit"), BOMBS.values(), ids=BOMBS)
def test_tests_of_the_project_that_take_too_much(tmp_path: Path, code: str, limit: Limit) -> None:
    (tmp_path / "test_app.py").write_text(code + "def test_app():\n    pass\n")
    found = opened(tmp_path.resolve(), limits=SMALL, timeout_s=20.0).run_tests("test_app.py")
    assert isinstance(found, CommandResult)
    assert found.limit is not None
    assert found.limit.limit is limit


def test_more_modules_than_are_run_at_once(root: Path) -> None:
    asked = [module("app.py", None, "add(3, 1)", "2") for _ in range(20)]
    assert opened(root, limits=SMALL, examples_timeout_s=20.0).run_examples(asked) == [entry("passed")] * 20


def test_without_a_sandbox_no_code_of_the_workspace_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when the run began, and is lost on the way."""
    made = root.parent / "made"
    code = f"open({str(made)!r}, 'w').close()\n"
    checks = opened(root, commands=(f"touch {made}",))
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: None)
    found = (
        checks.run_examples([module("app.py", code, "1", "1")]),
        checks.run_tests("app.py"),
        checks.run_command(f"touch {made}"),
    )
    assert [isinstance(each, ToolError) and each.code for each in found] == [ToolErrorCode.UNAVAILABLE] * 3
    assert not made.exists()
