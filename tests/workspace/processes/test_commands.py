"""Real programs in the real sandbox; skipped, with the reason, where it cannot start."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing as closing_socket
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.command_rules import (
    CommandRules,
    command_environment,
    find_program,
    own_installation,
    readable_folders,
)
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, open_commands
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from mendgraph.nodes.workspace.sandboxes.backends import BACKENDS
from tests.architecture.product import ROOT
from tests.extent import slow
from tests.row_tables import rows
from tests.workspace.processes.command_place import Place, command_place, is_alive, opened, unique_seconds


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, request.param) as opened_place:
        yield opened_place


def test_program_gets_its_arguments_verbatim_and_its_output_is_returned(place: Place) -> None:
    words = ["a b", "$HOME", ";true", "*", "é\n", "--", ""]
    program = "import json,sys; print(json.dumps(sys.argv[1:])); sys.stderr.write('err'); sys.exit(3)"
    result = place.result("python3", "-c", program, *words, timeout_s=1_000.0)
    assert (result.exit_code, result.signal, result.timed_out) == (3, 0, False)
    assert (json.loads(result.stdout.head), result.stderr) == (words, CapturedOutput(b"err", b"", 3))
    assert 0 < result.seconds < result.limit_s == 30.0  # more time than the rules allow cannot be asked for


def test_program_in_the_workspace_does_not_shadow_a_system_program(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "git").write_text("#!/bin/sh\necho false\n")
    (place.root / "git").chmod(0o700)
    monkeypatch.setenv("PATH", f"{place.root}:.::{os.environ['PATH']}")
    result = place.opened().run(["git", "--version"])
    assert isinstance(result, CommandResult)
    assert result.stdout.head.startswith(b"git version")


def test_program_in_the_folder_of_a_project_is_that_of_its_environment(place: Place) -> None:
    for name in ("api", "jobs"):
        environment = place.root / name / ".venv/bin"
        environment.mkdir(parents=True)
        (environment / "pytest").write_text(f"#!/bin/sh\necho {name}\n")
        (environment / "python").symlink_to(os.path.realpath("/usr/bin/python3"))
        (environment / "pytest").chmod(0o755)

    (place.root / "jobs/tests").mkdir()
    pythons = tuple(str(place.root / name / ".venv/bin/python") for name in ("api", "jobs"))
    commands = place.opened(commands=("pytest",), pythons=pythons)
    for folder, name in ((".", "api"), ("api", "api"), ("jobs", "jobs"), ("jobs/tests", "jobs")):
        result = commands.run(["pytest"], folder)
        assert isinstance(result, CommandResult)
        assert result.stdout.head.decode().strip() == name, folder

    lines = ("cd jobs && pytest | cat", "cd jobs; pytest", "cd 'jobs' && pytest | cat")
    for line, name in (("pytest | cat", "api"), *((line, "jobs") for line in lines)):
        assert f"{place.root}/{name}/.venv/bin/pytest" in commands.started_argv("bash", ["bash", "-c", line], ".")[2]


def test_programs_that_run_code_of_the_project_are_those_of_its_environment(place: Place) -> None:
    """Every other program is the system's, also if the environment has one of this name."""
    environment = place.root / ".venv/bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(os.path.realpath("/usr/bin/python3"))
    for name, line in (("pytest", "case $PATH in */.venv/bin:*) echo tested;; esac"), ("git", "echo planted")):
        (environment / name).write_text(f"#!/bin/sh\n{line}\n")
        (environment / name).chmod(0o755)
    (place.root / ".env").chmod(0o755)
    pythons = tuple(str(place.root / name) for name in ("none/bin/python", ".env", ".venv/bin/python"))
    commands = place.opened(programs=("git",), commands=("pytest", "python -m unittest"), pythons=pythons)
    for argv, expected in ((["pytest"], b"tested"), (["git", "--version"], b"git version")):
        result = commands.run(argv)
        assert isinstance(result, CommandResult)
        assert result.stdout.head.startswith(expected)
    assert commands.resolve(["python", "-m", "unittest"]) == str(environment / "python")


def test_program_of_an_environment_is_that_of_the_first_one_that_has_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one it is the system's, also if the current folder has a program of this name."""
    first, second = (place.root / name / "bin" for name in (".venv", ".tox/py312"))
    for program in (first / "python", second / "python", second / "pytest", place.root / "python"):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    monkeypatch.chdir(place.root)
    commands = place.opened(programs=("python", "pytest"))
    system = commands.resolve(["python", "-m", "unittest"])
    assert isinstance(system, str)
    assert os.path.isabs(system)

    commands = place.opened(programs=("python", "pytest"), pythons=(f"{first}/python", f"{second}/python"))
    for line, folder in (("python -m unittest", first), ("python -m pytest", second), ("pytest", second)):
        name = line.partition(" ")[0]
        assert commands.resolve(line.split()) == f"{folder}/{name}"
        assert commands.env_of([f"{folder}/{name}"], ".")["PATH"].startswith(f"{folder}:")


def test_command_line_finds_the_programs_of_the_environment_but_no_other_listed_program_there(place: Place) -> None:
    if place.sandbox != "bubblewrap":
        pytest.skip("the name of the workspace, which is on PATH, is another one in the sandbox")

    environment = place.root / ".venv/bin"
    environment.mkdir(parents=True)
    for name in ("python", "pytest", "git"):
        (environment / name).write_text(f"#!/bin/sh\necho {name} of the environment\n")
        (environment / name).chmod(0o755)

    settings: dict[str, object] = {"commands": ("pytest", "git status"), "pythons": (f"{environment}/python",)}
    written = "git status > a; git status"
    for line, programs, expected in (
        ("pytest 2>&1 | tail -1", (), "pytest of the environment\n"),
        ("git status || pytest | cat", (), "pytest of the environment\nfatal: not a git repository"),
        (written, ("bash",), "git of the environment\n"),
    ):
        result = place.opened(programs=programs, **settings).run(["bash", "-c", line])
        assert isinstance(result, CommandResult)
        assert (result.stdout.head + result.stderr.head).decode().startswith(expected)

    refused = place.opened(**settings).run(["bash", "-c", written])
    assert isinstance(refused, ToolError)
    assert refused.code == "permission_denied"


FORBIDDEN_FOLDERS = {
    "..": "permission_denied: '..' is outside the workspace. Use a relative path under '.'.",
    "out": "permission_denied: 'out' is outside the workspace. Use a relative path under '.'.",
    ".git": "permission_denied: No command may run in '.git'.",
    "to-keys": "permission_denied: No command may run in 'src/keys'.",
    "src/a.py": "invalid_argument: 'src/a.py' is a file: a command runs in a directory.",
    "sr": "not_found: No such directory: 'sr'. Did you mean 'src'?",
}


def test_forbidden_working_folder_is_an_error(place: Place) -> None:
    (place.root / "out").symlink_to("/etc")
    (place.root / "to-keys").symlink_to("src/keys")
    assert {cwd: place.error("true", cwd=cwd) for cwd in FORBIDDEN_FOLDERS} == FORBIDDEN_FOLDERS


@slow
def test_slow_program_is_terminated_and_then_killed(place: Place) -> None:
    mark = unique_seconds()
    result = opened(place.root, grace_s=60.0, sandbox=place.sandbox).run(["sleep", mark], timeout_s=1.0)
    assert isinstance(result, CommandResult)
    assert not is_alive(mark)
    assert (result.timed_out, result.exit_code, result.signal, result.limit_s) == (True, 143, 15, 1.0)

    result = place.result("sh", "-c", f"trap '' TERM; sleep {mark}", timeout_s=1.0)
    assert not is_alive(mark)
    assert (result.timed_out, result.exit_code, result.signal) == (True, 137, 9)


ORPHANS = (
    "(setsid sh -c 'sleep {mark} & exit 0' &)",
    "setsid sh -c 'trap \"\" TERM HUP INT; sleep {mark}' > /dev/null 2>&1 < /dev/null &",
)
"""A double fork, and a process in its own group that ignores signals."""


def test_background_processes_of_a_program_are_killed_with_it(place: Place) -> None:
    marks = [unique_seconds() for _ in ORPHANS]
    started = "\n".join(script.format(mark=mark) for script, mark in zip(ORPHANS, marks, strict=True))
    place.says(f"{started}\nsleep 0.1; ps -eo args > seen || cat /proc/[0-9]*/cmdline > seen; true")
    seen = (place.root / "seen").read_text()
    assert [(mark in seen, is_alive(mark)) for mark in marks] == [(True, False)] * 2


@slow
def test_cancelled_call_starts_nothing_and_its_program_is_killed(place: Place) -> None:
    scope, mark = CancellationScope(), unique_seconds()
    in_scope = place.commands.in_scope(scope)

    def give_up() -> None:
        while not is_alive(f"\nsleep {mark}\n"):
            time.sleep(0.01)
        scope.revoke()

    threading.Thread(target=give_up).start()
    with pytest.raises(ScopeOverError):
        in_scope.run(["sh", "-c", f"setsid sleep {mark}"])
    assert not is_alive(mark)
    with pytest.raises(ScopeOverError):
        in_scope.run(["sh", "-c", "echo > again"])
    assert not (place.root / "again").exists()
    assert place.result("true").exit_code == 0  # another call may


def test_program_that_cannot_start_is_a_typed_error(place: Place) -> None:
    message = "unavailable: '/no/such/program' could not be started in the sandbox (execvp /no/such/program: "
    assert place.error("/no/such/program").startswith(message)
    for argument in ("a\0b", "\ud800"):
        assert place.error("sh", argument).startswith("invalid_argument: ")


def test_workspace_where_no_command_can_run_is_an_error(place: Place) -> None:
    for root, readable, code in (
        ("/etc", (), ToolErrorCode.PERMISSION_DENIED),
        (str(place.root), ("relative",), ToolErrorCode.INVALID_ARGUMENT),
    ):
        rules = CommandRules(("true",), sandbox=place.sandbox, readable=readable)
        refused = open_commands(root, rules, lambda _: False)
        assert isinstance(refused, ToolError)
        assert refused.code is code
    late = place.commands.run(["true"], timeout_s=0)
    assert late == ToolError(code=ToolErrorCode.TIMEOUT, message="There is no time left for a command.")
    place.root.rename(place.root.with_name("away"))
    assert place.error("true").startswith("not_found: ")


def test_program_is_killed_with_its_agent(place: Place) -> None:
    mark = unique_seconds()
    program = (
        "from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules\n"
        "from mendgraph.nodes.execute_tools.commands.commands import open_commands\n"
        f"rules = CommandRules(('sh',), sandbox={place.sandbox!r})\n"
        f"made = open_commands({str(place.root)!r}, rules, lambda name: False)\n"
        f"made.run(['sh', '-c', 'setsid sleep {mark}'])"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment) as agent:
        while not is_alive(f"sleep {mark}"):
            assert agent.poll() is None
            time.sleep(0.01)
        agent.kill()
    deadline = time.monotonic() + 10
    while is_alive(f"\nsleep {mark}\n") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(f"\nsleep {mark}\n")


def test_read_only_program_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / ".env").write_text("KEY=1\n")
    looking = opened(root).read_only({"/run/given/a.txt": b"given\n"}, {"MODE": "check"})
    script = """exec 2>&1
    cat /run/given/a.txt .env; echo $MODE
    echo x > new; echo x > src/new; mkdir .git; rm -r src; echo x > /run/given/a.txt; ls -A"""
    result = looking.run(["sh", "-c", script])
    assert isinstance(result, CommandResult)
    lines = result.stdout.head.decode().splitlines()
    assert lines[0] == "given"
    assert "KEY=1" not in lines
    assert lines[-1] == "src"
    assert "check" in lines
    assert sorted(path.name for path in root.rglob("*")) == [".env", "src"]


def test_replacement_text_of_a_file_reveals_no_denied_file(tmp_path: Path) -> None:
    root, readable, beside = (tmp_path.resolve() / name for name in ("root", "tools/shown", "tools/beside"))
    for folder in (root / "src", readable, beside):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("now\n")
    (root / ".env").write_text("KEY=1\n")
    replacements = {f"{root}/src/a.txt": b"then\n"}
    looking = opened(root).read_only(replacements, {}, readable=[str(readable)])
    script = (
        f"exec 2>&1; cat src/a.txt {readable}/a.txt {beside}/a.txt .env; echo x > src/a.txt; echo x > {readable}/a.txt"
    )
    result = looking.run(["sh", "-c", script])
    assert isinstance(result, CommandResult)
    lines = result.stdout.head.decode().splitlines()
    assert lines[:2] == ["then", "now"]
    assert not {"KEY=1", "now"} & {*lines[2:]}
    assert ((root / "src/a.txt").read_text(), (readable / "a.txt").read_text()) == ("now\n", "now\n")
    again = opened(root).read_only({}, {}).run(["sh", "-c", f"cat src/a.txt {readable}/a.txt"])
    assert isinstance(again, CommandResult)
    assert again.stdout.head.decode() == "now\n"


RULES = CommandRules(("sh", "tools/own", "/opt/x", "no-such-program"))


def test_program_that_is_not_allowed_is_refused() -> None:
    for name in ("make", "/usr/bin/sh", "../sh", "SH", "tools/../tools/own", "own", ""):
        message = f"{name!r} may not be run: allowed are sh, tools/own, /opt/x, no-such-program."
        refused = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=RULES.programs)
        assert find_program(name, RULES, "/w", "/usr/bin:/bin") == refused


def test_allowed_programs_are_found() -> None:
    assert find_program("tools/own", RULES, "/w", "") == "/w/tools/own"
    assert find_program("/opt/x", RULES, "/w", "") == "/opt/x"
    assert find_program("x", RULES, "/w", "/usr/bin") == "/opt/x"
    assert find_program("sh", RULES, "/w", "/no/such/folder:/bin:/usr/bin") == "/bin/sh"


TESTING = CommandRules(commands=("pytest", "python -m unittest"))


def test_listed_command_is_allowed_in_its_other_forms_and_with_no_other_arguments(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("")
    python.chmod(0o755)
    for line in ("python -m pytest -q", "python3 -m pytest -q", "python -m unittest a", "python3 -m unittest"):
        name, *arguments = line.split()
        assert find_program(name, TESTING, "/w", str(tmp_path), arguments) == str(python)
    for line in ("python a.py", "python -c pytest", "python -m pytest -p a", "python", "python -m pip"):
        name, *arguments = line.split()
        refused = find_program(name, TESTING, "/w", str(tmp_path), arguments)
        assert isinstance(refused, ToolError)
        assert refused.message == (
            "'python' may not be run with these arguments: allowed are pytest, python -m unittest."
        )


@rows("uv", "poetry", "tox")
def test_refusal_of_a_launcher_says_that_commands_do_without_it(name: str) -> None:
    remedy = f" Commands use the project's environment without {name}: start its programs directly, such as 'pytest'."
    for rules in (TESTING, CommandRules((name,))):
        refused = find_program(name, rules, "/w", "/no/such/folder", ["run", "pytest"])
        assert isinstance(refused, ToolError)
        assert refused.message.endswith(remedy)


def test_program_that_is_not_installed_is_an_error() -> None:
    message = (
        "The program 'no-such-program' is not installed where commands can see it. Whoever starts the run can allow it"
        " by its absolute path in `allowed_programs` (`--allow-program`), or show its folder in `readable_folders`."
    )
    outcome = find_program("no-such-program", RULES, "/w", "/usr/bin:/bin")
    assert outcome == ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def test_folder_that_cannot_be_made_readable_is_refused(tmp_path: Path) -> None:
    service = str(tmp_path / "service")
    with closing_socket(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(service)
        for name in ("/", "relative", "/no/such/folder", "/proc/self", "/dev", "/run", "/sys/kernel", service):
            message = (
                f"{name!r} cannot be shown to commands: name an existing folder by its absolute path, and none of"
                " / /dev /proc /run /sys."
            )
            refused = ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
            assert readable_folders(CommandRules(readable=("/usr", name))) == refused


def test_own_python_is_readable_unless_it_is_the_systems_or_contains_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    (root / "python").mkdir()
    (root / "link").symlink_to("python")
    monkeypatch.setenv("HOME", str(root / "home"))
    for prefix, expected in ((root / "link", (str(root / "python"),)), (root, ()), (root / "home", ()), ("/usr", ())):
        monkeypatch.setattr(sys, "base_prefix", str(prefix))
        assert own_installation() == readable_folders(CommandRules()) == expected
    assert readable_folders(CommandRules(readable=("~/../link", str(root / "python")))) == (str(root / "python"),)


def test_path_contains_only_readable_folders_outside_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    for name in ("work/bin", "shown/tools", "shown/bin", "hidden/bin"):
        (root / name).mkdir(parents=True)
    names = ["work/bin", "hidden/bin", "shown/tools", "shownalso"]
    own_bin = os.path.join(sys.prefix, "bin")
    monkeypatch.setenv("PATH", ":".join((*(f"{root}/{name}" for name in names), own_bin, ".", "", "bin", "/usr/sbin")))
    path = command_environment(f"{root}/work", (f"{root}/shown", sys.prefix, f"{root}/work"))["PATH"].split(":")
    assert path[:3] == [f"{root}/shown/tools", "/usr/sbin", f"{root}/shown/bin"]
    system = {os.path.realpath(f"{place}/{kind}") for place in ("/usr/local", "/usr", "") for kind in ("bin", "sbin")}
    assert sorted(path[1:2] + path[3:]) == sorted(system)
