import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing as closing_socket
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.processes import bubblewrap
from mendgraph.nodes.execute_tools.processes.bubblewrap import bubblewrap_problem, started
from mendgraph.nodes.execute_tools.processes.commands import CommandResult
from mendgraph.nodes.execute_tools.processes.sandbox import View
from mendgraph.nodes.records import ToolError
from tests.nodes.execute_tools.processes.command_place import Place, alive, command_place, opened, unique

REMEDY = "allow it user namespaces, and use 0.8 or newer with the security updates of your system"


def fake(folder: Path, script: str) -> str:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return str(program)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: no permission' >&2; echo more >&2; exit 1", "bwrap: no permission"),
        ("exit 7", "exit code 7"),
        ("exec /bin/sleep 60", "bwrap was stopped after 0.2 s."),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists for Linux only")
def test_bubblewrap_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    fake(tmp_path, script)
    monkeypatch.setattr(bubblewrap, "PROGRAM_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(bubblewrap, "_PROBE_S", 0.2 if "sleep" in script else 10)
    assert bubblewrap_problem() == f"bubblewrap is installed but cannot start here ({reason}): {REMEDY}"


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists for Linux only")
def test_what_cannot_be_executed_at_all_is_an_error_and_leaves_no_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir("/dev/fd")
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: str(tmp_path / "gone"))
    with (
        closing(open_root(str(tmp_path))) as root,
        started(View(str(tmp_path), root, str(tmp_path)), ["true"], {}) as run,
    ):
        assert isinstance(run, ToolError)
    assert len(os.listdir("/dev/fd")) == len(before)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    problem = bubblewrap_problem()
    if problem is not None:
        pytest.skip(problem)
    with closing(open_root(str(tmp_path))) as root:
        yield View(str(tmp_path), root, str(tmp_path))


ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def test_sandbox_that_does_not_report_is_not_waited_for_and_ended(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"7{os.getpid()}.25"
    monkeypatch.setattr(bubblewrap, "bubblewrap_path", lambda: fake(tmp_path, f"exec sleep {mark}"))
    monkeypatch.setattr(bubblewrap, "_PROBE_S", 0.1)
    with started(view, ["true"], ENVIRONMENT) as run:
        assert isinstance(run, ToolError)
        assert run.message == (
            "A program was not started, as its limits could not be set (bubblewrap reported no sandbox within 0.1 s)."
        )
    assert not alive(mark)


def test_program_does_not_start_without_its_limits(view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(resource, "prlimit", refuse)
    with started(view, ["touch", str(tmp_path / "made")], ENVIRONMENT) as run:
        assert isinstance(run, ToolError)
        assert run.message == "A program was not started, as its limits could not be set ([Errno 1] no)."
    assert not (tmp_path / "made").exists()


# --- What a program can reach


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, "bubblewrap") as made:
        yield made


def test_workspace_is_writable_and_nothing_else_is(place: Place, tmp_path: Path) -> None:
    outside, scratch = tmp_path / "outside", unique()
    outside.mkdir()
    (outside / "a").write_text("whole")
    (place.root / "out").symlink_to(outside)
    said = place.says(
        f"echo new > src/new.py; echo x > {outside}/a; echo x > out/b; echo x > ../up; echo x > /x; echo x > /usr/x;"
        "echo x > /etc/passwd; echo x > /etc/x; echo x > /run/x; echo x > /dev/x; mkdir /var;"
        "echo 1 > /proc/sys/kernel/sysrq;"
        f"echo x > /proc/sys/kernel/core_pattern; echo fine > /tmp/{scratch} && cat /tmp/{scratch};"
        "echo home > ~/x && cat ~/x"
    )
    assert (place.root / "src/new.py").read_text() == "new\n"
    assert (sorted(os.listdir(tmp_path)), os.listdir(outside)) == (["outside", "root"], ["a"])
    assert (outside / "a").read_text() == "whole"
    assert said.count("annot create") == 11
    assert said.endswith("fine\nhome\n")
    assert not os.path.exists(f"/tmp/{scratch}")


def test_home_and_other_folders_are_not_there(place: Place, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/key").write_text("canary")
    (tmp_path / "neighbour").write_text("canary")
    said = place.says(
        f"cat {home}/.ssh/key {tmp_path}/neighbour; ls -a ~; ls /home /var /opt /root/.ssh /etc/shadow /sys /mnt;"
        "cat /etc/passwd; echo $HOME"
    )
    assert "canary" not in said
    assert said.count("No such file or directory") == 9
    assert f"agent:x:{os.getuid()}:{os.getgid()}:agent:/run/home:/bin/sh\n/run/home\n" in said


def test_there_is_no_network(place: Place) -> None:
    with closing_socket(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        result = place.result("python3", "-c", program)
        assert b"ConnectionRefusedError" in result.stderr.head
        with pytest.raises(TimeoutError):
            server.accept()
        with closing_socket(
            socket.create_connection(("127.0.0.1", port), 2)
        ):  # the control: from here it can be reached
            server.accept()[0].close()
    assert place.says("ls /sys/class/net; cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '").endswith("\nlo\n")


def test_other_processes_cannot_be_seen(place: Place) -> None:
    mark = unique()
    with subprocess.Popen(["sleep", mark]) as host:
        said = place.says(
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l; kill -0 $PPID && echo $PPID"
        )
        host.kill()
    assert mark not in said.replace(f"'{mark}'", "")
    assert int(said.split()[-2]) < 10
    assert said.split()[-1] == "1"


def test_its_environment_has_only_what_it_needs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "MY_SECRET", "PYTHONPATH", "VIRTUAL_ENV", "LD_PRELOAD_CANARY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("LANG", "C.UTF-8")
    result = opened(place.root).run(["python3", "-c", "import json,os; print(json.dumps(dict(os.environ)))"])
    assert isinstance(result, CommandResult)
    seen = json.loads(result.stdout.head)
    seen.pop("LC_CTYPE", None)  # Python's own
    seen.pop("PATH")
    assert seen == {"HOME": "/run/home", "LANG": "C.UTF-8", "PWD": str(place.root), "TMPDIR": "/tmp"}
    assert "canary" not in place.says("cat /proc/[0-9]*/environ /proc/1/cmdline")


def test_it_has_no_privileges_and_no_handles_of_ours(place: Place) -> None:
    said = place.says("grep -E '^(Cap...|NoNewPrivs):' /proc/self/status; ls /proc/self/fd /proc/1/fd; unshare -U true")
    assert said.count("0000000000000000") == 5
    assert "NoNewPrivs:\t1" in said
    own, first = (said.split(f"/proc/{each}/fd:\n")[1].split() for each in ("self", "1"))
    assert own[:4] == ["0", "1", "2", "3"]  # 3 is that of the listing
    assert first[:5] == ["0", "1", "2", "4", "/proc/self/fd:"]  # 4 is bubblewrap's own eventfd
    assert "unshare failed" in said


def test_program_shares_no_namespace_with_the_agent(place: Place) -> None:
    names = sorted({"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} & set(os.listdir("/proc/self/ns")))
    inside = place.says(f"cd /proc/self/ns && readlink {' '.join(names)}").split()
    outside = [os.readlink(f"/proc/self/ns/{name}") for name in names]

    assert len(inside) == len(names)
    assert [name for name, one, other in zip(names, inside, outside, strict=True) if one == other] == []


def test_program_does_not_learn_the_name_of_the_machine(place: Place) -> None:
    assert place.says("uname -n") == "sandbox\n"


def test_program_runs_in_a_session_of_its_sandbox(place: Place) -> None:
    """A program in the session of the terminal could type into it (TIOCSTI)."""
    result = place.result("python3", "-c", "import os; print(os.getsid(0))")
    assert int(result.stdout.head) > 0  # 0 stands for a session outside of the process namespace


def test_socket_in_a_readable_folder_is_no_way_out(tmp_path: Path) -> None:
    root, shown = tmp_path.resolve() / "root", tmp_path.resolve() / "shown"
    for folder in (root, shown):
        folder.mkdir()
    (shown / "file").write_text("shown\n")
    program = f"print(open('{shown}/file').read()); import socket; socket.socket(1).connect('{shown}/service')"

    with closing_socket(socket.socket(socket.AF_UNIX)) as service:
        service.bind(f"{shown}/service")
        service.listen()
        result = opened(root, readable=(str(shown),), sandbox="bubblewrap").run(["python3", "-c", program])

    assert isinstance(result, CommandResult)
    assert result.stdout.head == b"shown\n\n"
    assert b"ConnectionRefusedError" in result.stderr.head


def test_readable_folder_cannot_be_changed(tmp_path: Path) -> None:
    root, shown = tmp_path.resolve() / "root", tmp_path.resolve() / "shown"
    for folder in (root, shown):
        folder.mkdir()
    (shown / "file").write_text("whole")

    result = opened(root, readable=(str(shown),), sandbox="bubblewrap").run(
        ["sh", "-c", f"cd {shown}; echo x > new; echo x > file; rm file"]
    )

    assert isinstance(result, CommandResult)
    assert [(path.name, path.read_text()) for path in shown.iterdir()] == [("file", "whole")]
