"""Real programs in the real sandbox; skipped, with the reason, where it cannot start."""

import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, RanTests, open_checks
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.processes.resource_limits import Limit, ResourceLimits
from mendgraph.nodes.workspace.sandboxes import bubblewrap, discarded_copy, workspace_copy
from tests.doubles.system_calls import before_each
from tests.extent import slow
from tests.row_tables import rows
from tests.sandboxes import open_handles
from tests.workspace.processes.command_place import is_denied

APP = "def add(a, b):\n    return a - b\n"


def opened(root: Path, **rules: Any) -> Checks:
    checks = open_checks(str(root), CheckRules(**rules), is_denied)
    if isinstance(checks, ToolError):
        assert checks.code is ToolErrorCode.UNAVAILABLE
        pytest.skip(checks.message)
    return checks


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """Afterwards the folder is unchanged, and no handle is open."""

    def now() -> dict[str, bytes]:
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}

    before, handles = now(), open_handles()
    yield
    assert now() == before
    assert open_handles() <= handles


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path.resolve() / "root"
    root.mkdir()
    (root / "app.py").write_text(APP)
    (root / ".env").write_text("KEY=1\n")
    with unchanged(root):
        yield root


def module(path: str, text: str | None, source: str, want: str) -> JsonMap:
    example: JsonMap = {
        "source": source,
        "want": want,
        "kind": "value",
        "raises": None,
        "origin": "task",
        "options": [],
    }
    return {"path": path, "text": text, "groups": [[example]]}


def entry(status: str, text: str = "") -> JsonMap:
    return {"loaded": True, "own": True, "error": "", "results": [[status, text]], "lines": []}


def test_examples_run_on_the_file_or_on_a_text_in_its_place(root: Path) -> None:
    modules = [
        module("app.py", APP.replace("-", "+"), "add(2, 3)", "5"),
        module("app.py", None, "add(2, 3)", "5"),
        module("new/b.py", "from app import add\n", "add(2, 3)", "-1"),
    ]
    assert opened(root).run_examples(modules) == [entry("passed"), entry("different", "-1"), entry("passed")]


def test_example_that_writes_or_reads_a_denied_file_is_unknown(root: Path) -> None:
    text = (
        "from pathlib import Path\ndef write(): Path('made').write_text('x')\ndef read(): return open('.env').read()\n"
    )
    modules = [module("app.py", text, "write()", "1"), module("app.py", text, "len(read())", "6")]
    runs = opened(root).run_examples(modules)
    assert isinstance(runs, list)
    assert [entry["results"][0][0] for entry in runs] == ["unknown", "unknown"]


@slow
def test_endless_example_is_stopped(root: Path) -> None:
    text = "def f():\n    while True: print('x')\n"
    checks = opened(root, examples_timeout_s=0.5)
    assert checks.run_examples([module("app.py", text, "f()", "1")]) == [entry("endless")]


def test_missing_python_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.nodes.execute_tools.evidence.checks._PYTHON", "exec no-such-python")
    message = "There is no Python that commands can see."
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    assert opened(root).run_examples([module("app.py", None, "add(1, 1)", "0")]) == error


def put_python(root: Path, program: str) -> None:
    """A Python of the workspace's own."""
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").write_text(program)
    (root / ".venv/bin/python").chmod(0o755)


@rows(
    ('#!/bin/sh\n[ -z "$3" ] && exit 0\necho \'[{"own": 1}]\'\n', [{"own": 1}]),
    ("#!/no/such/thing\n", [entry("passed")]),
)
def test_python_of_the_workspace_is_used_if_it_starts(program: str, expected: list[JsonMap], tmp_path: Path) -> None:
    put_python(tmp_path, program)
    assert opened(tmp_path.resolve()).run_examples([module("a.py", "", "1", "1")]) == expected


RIGHT = APP.replace("-", "+")
TESTS = "from app import add\ndef test_add():\n    assert add(2, 3) == 5\ndef test_none():\n    assert add(0, 0) == 0\n"


@slow
def test_test_file_runs_on_the_current_and_the_previous_files(tmp_path: Path) -> None:
    put_python(tmp_path, '#!/bin/sh\nexec python3 -S "$@"\n')  # which sees no pytest
    (tmp_path / "app.py").write_text(RIGHT)
    (tmp_path / "new.py").write_text("x = 1\n")
    (tmp_path / "test_app.py").write_text(TESTS)
    (tmp_path / "test_new.py").write_text("from new import x\n")
    checks = opened(tmp_path.resolve())
    with unchanged(tmp_path):
        now = checks.run_tests("test_app.py", lines={"app.py": [2]})
        then = checks.run_tests("test_app.py", before={"app.py": APP.encode(), "new.py": b""})
        empty = checks.run_tests("test_new.py")
        gone = checks.run_tests("test_new.py", before={"new.py": b""})
    names = ("test_add", "test_none")
    assert now == RanTests("unittest test_app.py", passed=2, near=[], lines={"app.py": [2]}, passing=names)
    assert isinstance(then, RanTests)
    assert (then.passed, list(then.failed), "add(2, 3) == 5" in then.failed["test_add"]) == (1, ["test_add"], True)
    message = "test_new.py was not run: it has no tests that unittest can run, and pytest is not installed."
    assert empty == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    assert isinstance(gone, RanTests)
    assert list(gone.failed) == ["test_new.py"]


WRITING_TEST = """def test_a():
    with open("out.txt", "x") as file:
        file.write("a")
    with open("app.py") as file:
        assert file.read().startswith("def add")
"""
WRITING_SCRIPT = "set -e; test ! -e out; test ! -s .env; test -d .git; echo 1 > out; echo 1 > app.py; echo 1 > lib/b.py"


@slow
@rows("bubblewrap", "landlock")
def test_checks_that_write_into_the_workspace_run_on_a_copy_that_is_discarded(sandbox: str, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    files = {"app.py": APP, ".env": "KEY=1\n", "test_app.py": WRITING_TEST, "build.sh": WRITING_SCRIPT}
    for name, text in {**files, "lib/b.py": "", ".git/config": ""}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)

    checks = opened(root, commands=("sh build.sh",), sandbox=sandbox)
    with unchanged(root):
        for _ in range(2):
            assert checks.run_command("sh build.sh") == RanTests("sh build.sh")
            now = checks.run_tests("test_app.py")
            then = checks.run_tests("test_app.py", before={"app.py": b"x = 1"})
            assert isinstance(now, RanTests)
            assert isinstance(then, RanTests)
            assert (now.passed, now.failed) == (1, {})
            assert len(then.failed) == 1


LEAVING_SCRIPT = """touch out || exit 1
test ! -e deep && test ! -e sub2 || exit 2
mv sub sub2; mkdir sub; echo x > sub/.git; mkdir deep
python3 -c "import os
for _ in range(1_200): os.mkdir('deep/d'); os.chdir('deep'); os.rename('d', 'deep')"
"""


@slow
@rows("bubblewrap", "landlock")
def test_nothing_of_a_check_that_writes_reaches_the_next(sandbox: str, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "sub/.git").mkdir(parents=True)
    (root / "leave.sh").write_text(LEAVING_SCRIPT)
    checks = opened(root, commands=("sh leave.sh",), sandbox=sandbox)

    results = [checks.run_command("sh leave.sh", before=old) for old in (None, {"leave.sh": b"touch out; ls"}, None)]

    assert results == [RanTests("sh leave.sh")] * 3


def writing_checks(root: Path, script: str = "touch out", **rules: Any) -> Checks:
    """Checks whose only command is a script that writes into the workspace, in the sandbox bubblewrap."""
    (root / "write.sh").write_text(f"{script} || {{ echo 'not ok 1 - writes'; exit 1; }}\n")
    return opened(root.resolve(), commands=("sh write.sh",), sandbox="bubblewrap", **rules)


def test_first_results_of_a_check_count_if_the_workspace_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = writing_checks(tmp_path)

    for module, name in ((workspace_copy, "MOST_ENTRIES"), (discarded_copy, "MOST_BYTES")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 0)
            for _ in range(2):
                result = checks.run_command("sh write.sh")
                assert isinstance(result, RanTests)
                assert list(result.failed) == ["writes"]

        assert checks.run_command("sh write.sh") == RanTests("sh write.sh")


@slow
def test_copying_takes_no_time_of_a_check(tmp_path: Path) -> None:
    checks = writing_checks(tmp_path, timeout_s=1.5)
    for number in range(5):
        (tmp_path / str(number)).touch()

    with before_each("utime", lambda *_: time.sleep(0.3)):
        assert checks.run_command("sh write.sh") == RanTests("sh write.sh")


def test_copying_ends_with_the_scope_of_a_check(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()

    scope, copied = CancellationScope(), list[str]()
    checks = writing_checks(tmp_path).in_scope(scope)

    def revoke(*arguments: object) -> None:
        copied.append(str(arguments[0]))
        scope.revoke()

    with before_each("utime", revoke), pytest.raises(ScopeOverError):
        checks.run_command("sh write.sh")

    assert 1 <= len(copied) <= 2  # the files of one folder


def test_copy_of_a_killed_agent_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "mendgraph-sandbox-killed/work").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    root = tmp_path / "root"
    root.mkdir()

    writing_checks(root)

    assert os.listdir(temporary) == []


def test_holes_of_files_are_not_copied(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as file:
        file.truncate(600_000_000)
        file.seek(300_000_000)
        file.write(b"middle")

    script = "touch out && test $(du -sm data | cut -f 1) -lt 2 && test $(tail -c +300000001 data | head -c 6) = middle"
    checks = writing_checks(tmp_path, f"{script} && test $(stat -c %s data) = 600000000")
    assert checks.run_command("sh write.sh") == RanTests("sh write.sh")


def test_folder_is_no_python_environment_because_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/pyvenv.cfg").touch()
    put_python(tmp_path, "#!/bin/sh\n")
    (tmp_path / ".venv/pyvenv.cfg").touch()

    checks = writing_checks(tmp_path, "touch folder/new && ! touch .venv/new")
    assert checks.run_command("sh write.sh") == RanTests("sh write.sh")


def test_replaced_file_stays_executable(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "run.sh").chmod(0o755)
    checks = opened(tmp_path.resolve(), commands=("./run.sh",))

    now, then = (checks.run_command("./run.sh", before=old) for old in (None, {"run.sh": b"#!/bin/sh\nexit 0\n"}))

    assert (now, then) == (RanTests("./run.sh", failed={"./run.sh": ""}), RanTests("./run.sh"))


def test_django_runs_its_tests_with_the_python_of_the_project(tmp_path: Path) -> None:
    put_python(tmp_path, '#!/bin/sh\nexec python3 -S "$@"\n')
    program = "import sys  # django\nprint(sys.argv)\nassert not __debug__ or open('app.py').read() == 'x = 1'\n"
    for name, text in {"manage.py": program, "app.py": "x = 1"}.items():
        (tmp_path / name).write_text(text)

    checks = opened(tmp_path.resolve())
    (command,) = checks.runners().commands
    now, then = (checks.run_command(command, before=old) for old in (None, {"app.py": b"x = 2"}))

    assert now == RanTests("python manage.py test")
    assert isinstance(then, RanTests)
    assert "AssertionError" in then.failed["python manage.py test"]


@rows(
    ("40 passed, 41 skipped in 0.03s", 41),
    ("OK (skipped=3)", 3),
    ("test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured", 2),
    ("# skipped 1", 1),
    ("40 passed in 0.03s", 0),
)
def test_skipped_tests_of_a_command_are_counted(line: str, skipped: int, tmp_path: Path) -> None:
    (tmp_path / "told").write_text(f"{line}\n")
    result = opened(tmp_path.resolve(), commands=("cat told",)).run_command("cat told")
    assert result == RanTests("cat told", skipped=skipped)


def test_tests_that_end_the_process_fail(root: Path) -> None:
    result = opened(root).run_tests("app.py", before={"app.py": b"import os\nos._exit(0)\n"})
    assert result == RanTests("app.py", failed={"app.py": ""})


@pytest.mark.parametrize("output", ["{}", "7", '{"name": "x", "passed": "many"}'])
def test_tests_that_forge_the_result_fail(root: Path, output: str) -> None:
    code = f"import os\nfor each in range(3, 20):\n  try: os.write(each, {output.encode()!r})\n  except OSError: pass\n"
    result = opened(root).run_tests("app.py", before={"app.py": f"{code}os._exit(0)\n".encode()})
    assert isinstance(result, RanTests)
    assert result == RanTests("app.py", failed={"app.py": result.failed["app.py"]})


def test_configured_checks_are_run(root: Path) -> None:
    commands = ("sh -c 'echo \"a b\"; exit 3'", "python3 -B -c 'import app'", "no-such-program -q", "touch made")
    checks = opened(root, commands=commands)
    results = [checks.run_command(command) for command in commands]
    assert results[:2] == [RanTests(commands[0], failed={commands[0]: "a b"}), RanTests(commands[1])]
    assert isinstance(results[2], ToolError)
    assert results[2].code is ToolErrorCode.NOT_FOUND
    assert results[3] == RanTests("touch made")


OUTPUTS = [
    ("FAILED tests/a.py::test_b[x y] - assert 1 == 2\nERROR tests/c.py\n", ["tests/a.py::test_b[x y]", "tests/c.py"]),
    ("FAIL: test_b (tests.test_a.Case.test_b)\n", ["test_b (tests.test_a.Case.test_b)"]),
    ("test tests::it_works ... FAILED\n", ["tests::it_works"]),
    ("    --- FAIL: TestB/x (0.00s)\n", ["TestB/x"]),
    ("  cart\n    \u2714 adds\n    1) takes off\n1) other\n  1) cart\n", ["takes off", "cart"]),
    (
        "PASS src/a.test.js\nFAIL src/b.test.js (5.2 s)\n  \u25cf cart \u203a adds\n",
        ["src/b.test.js", "cart \u203a adds"],
    ),
    ("not ok 1 - adds two # time=1ms\n", ["adds two"]),
    ("  \u2716 adds two (1.25ms)\n  \u2715 adds three (3 ms)\n", ["adds two", "adds three"]),
    (
        "not ok 1 - waits 5 s\nnot ok 2 - waits 10 s\n\u2716 waits 3 ms (2ms)\n\u00d7 waits 4 s 9ms\n",
        ["waits 5 s", "waits 10 s", "waits 3 ms", "waits 4 s"],
    ),
    (
        "\x1b[31m   \x1b[31m\u00d7\x1b[31m cart\x1b[2m > \x1b[22madds\x1b[90m 9\x1b[2mms\x1b[22m\x1b[31m\x1b[39m\n",
        ["cart > adds"],
    ),
]


@slow
@rows(*OUTPUTS)
def test_failed_tests_are_read_from_the_command_output(output: str, names: list[str], tmp_path: Path) -> None:
    command = shlex.join(["sh", "-c", f"printf %s {shlex.quote(output)}; exit 1"])
    result = opened(tmp_path.resolve(), commands=(command,)).run_command(command)
    assert isinstance(result, RanTests)
    assert list(result.failed) == names


def test_slow_command_fails(root: Path) -> None:
    result = opened(root, commands=("sleep 100",), timeout_s=0.3).run_command("sleep 100")
    assert result == RanTests("sleep 100", failed={"sleep 100": "sleep 100 does not end within 0.3 s."}, timed_out=True)


@slow
@rows(
    ("true", RanTests("make test")),
    ("echo 'not ok 2 - b' && false", ["b"]),
    ("touch made", RanTests("make test")),
    ("sleep 100", "make test took longer than 0.5 s."),
    ("echo 'Ran 0 tests in 0.000s'", "make test ran no test."),
    ("echo 'Ran 0 tests in 0.000s'; echo 'Ran 1 test in 0.000s'", RanTests("make test")),
    ("echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured'", "make test ran no test."),
    (
        "printf '?   \\ta.com/b\\t[no test files]\\nok  \\ta.com/c\\t0.1s [no tests to run]\\n'",
        "make test ran no test.",
    ),
    ("printf '?   \\ta.com/b\\t[no test files]\\nok  \\ta.com/c\\t0.1s\\n'", RanTests("make test")),
    ("printf '# tests 0\\n# pass 0\\n'", "make test ran no test."),
)
def test_command_that_runs_all_tests_of_a_project_is_run(recipe: str, expected: Any, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(f"test:\n\t@{recipe}\n")
    checks = opened(tmp_path.resolve(), timeout_s=0.5 if "sleep" in recipe else 20.0)
    (command,) = checks.runners().commands
    if command.lacks:
        pytest.skip("there is no make")
    with unchanged(tmp_path):
        result = checks.run_command(command)
    if isinstance(result, ToolError):
        assert (result.code, result.message.startswith(expected)) == (ToolErrorCode.UNAVAILABLE, True)
    else:
        assert (list(result.failed) if isinstance(expected, list) else result) == expected


@rows(("pytest 'a", "No closing quotation"), ("", "it is empty"))
def test_invalid_check_command_is_refused(command: str, reason: str, root: Path) -> None:
    checks = open_checks(str(root), CheckRules((command,)), is_denied)
    message = f"The check {command!r} is not a command line ({reason}): write it as in a terminal, without pipes."
    assert checks == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_check_in_a_closed_scope_does_not_run(root: Path) -> None:
    checks, scope = opened(root, commands=("true",)), CancellationScope()
    assert checks.in_scope(None) is checks
    in_scope = checks.in_scope(scope)
    scope.revoke()
    with pytest.raises(ScopeOverError):
        in_scope.run_command("true")
    assert checks.run_command("true") == RanTests("true")


# --- Code of the workspace that exceeds its limits

SMALL = ResourceLimits(processes=20, memory_bytes=120_000_000, scratch_bytes=8_000_000, open_files=64)
FORKS = "import os, time\nfor each in range(100): os.fork() or time.sleep(60)\ntime.sleep(60)\n"
HOARDS = "import time\nkept = bytearray(b'x') * 200_000_000\ntime.sleep(60)\n"


@slow
@pytest.mark.parametrize(("code", "limit"), [(FORKS, Limit.PROCESSES), (HOARDS, Limit.MEMORY)])
def test_example_over_a_resource_limit_is_stopped(root: Path, code: str, limit: Limit) -> None:
    text = "def f():\n" + indent(code, "    ")
    result = opened(root, limits=SMALL, examples_timeout_s=20.0).run_examples([module("app.py", text, "f()", "1")])
    if os.getuid() and limit is Limit.PROCESSES:  # the kernel refuses a further one, so that the code fails by itself
        assert result == [entry("unknown", "BlockingIOError: [Errno 11] Resource temporarily unavailable")]
    else:
        assert isinstance(result, ToolError)
        assert result.code is ToolErrorCode.RESOURCE_LIMIT
        assert result.message.startswith("The run of the examples ")


@slow
def test_project_tests_over_a_resource_limit_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(f"{HOARDS}def test_app():\n    pass\n")
    result = opened(tmp_path.resolve(), limits=SMALL, timeout_s=20.0).run_tests("test_app.py")
    assert isinstance(result, ToolError)
    assert (result.code, result.message.startswith("test_app.py ")) == (ToolErrorCode.RESOURCE_LIMIT, True)


def test_more_modules_than_run_in_parallel_all_run(root: Path) -> None:
    modules = [module("app.py", None, "add(3, 1)", "2") for _ in range(20)]
    assert opened(root, limits=SMALL, examples_timeout_s=20.0).run_examples(modules) == [entry("passed")] * 20


def test_no_code_of_the_workspace_runs_without_a_sandbox(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox was available when the run started and is lost during it."""
    marker = root.parent / "made"
    code = f"open({str(marker)!r}, 'w').close()\n"
    checks = opened(root, commands=(f"touch {marker}",), sandbox="bubblewrap")
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: None)
    results = (
        checks.run_examples([module("app.py", code, "1", "1")]),
        checks.run_tests("app.py"),
        checks.run_command(f"touch {marker}"),
    )
    assert [isinstance(result, ToolError) and result.code for result in results] == [ToolErrorCode.UNAVAILABLE] * 3
    assert not marker.exists()
