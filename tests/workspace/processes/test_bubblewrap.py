import json
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing as closing_socket
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.sandboxes import bubblewrap
from mendgraph.nodes.workspace.sandboxes.bubblewrap import Bubblewrap, bubblewrap_problem
from mendgraph.nodes.workspace.sandboxes.sandbox import View
from tests.workspace.processes.command_place import Place, command_place, is_alive, opened, unique_seconds

REMEDY = "allow it user namespaces, and use 0.8 or newer with the security updates of your system"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists for Linux only")

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Let this script be bubblewrap from now on, and there be none if it is empty."""

    def install(script: str) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        if script:
            (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "bwrap").chmod(0o700)
        monkeypatch.setattr(bubblewrap, "PROGRAM_FOLDERS", (str(folder),))
        monkeypatch.setattr(bubblewrap, "_PROBE_S", 0.2 if "sleep" in script else 10)

    return install


def refusal(folder: Path, *command: str) -> str:
    """The reason why a sandbox refuses to start this program."""
    with (
        closing(open_root(str(folder))) as root,
        Bubblewrap().started(View(str(folder), root, str(folder)), command, ENVIRONMENT) as run,
    ):
        assert isinstance(run, ToolError), run
        return run.message


def test_unstartable_bubblewrap_is_reported_with_a_remedy(install: Install) -> None:
    for script, reason in (
        ("echo 'bwrap: no permission' >&2; echo more >&2; exit 1", "bwrap: no permission"),
        ("exit 7", "exit code 7"),
        ("exec /bin/sleep 60", "bwrap was stopped after 0.2 s."),
    ):
        install(script)
        assert bubblewrap_problem() == f"bubblewrap is installed but cannot start here ({reason}): {REMEDY}"


def test_sandbox_that_reports_no_process_is_ended(tmp_path: Path, install: Install) -> None:
    mark = f"7{os.getpid()}.25"
    install(f"exec /bin/sleep {mark}")
    reason = "no process of the sandbox was reported within 0.2 s"
    message = f"A program was not started, because its limits could not be set ({reason})."
    assert refusal(tmp_path, "true") == message
    assert not is_alive(mark)


def test_program_does_not_start_without_its_limits(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(resource, "prlimit", refuse)
    message = "A program was not started, because its limits could not be set ([Errno 1] no)."
    assert refusal(tmp_path, "touch", str(tmp_path / "made")) == message
    assert not (tmp_path / "made").exists()
    assert place.error("sh", "-c", "echo x > made").endswith(message)


def test_no_program_runs_without_bubblewrap(place: Place, install: Install) -> None:
    install("")
    assert place.error("sh", "-c", "echo x > made") == f"unavailable: {bubblewrap.NOT_INSTALLED}."
    assert not (place.root / "made").exists()


def test_killed_bubblewrap_is_reported_as_a_signal(place: Place, install: Install) -> None:
    install("kill -KILL $$")
    result = place.result("true")
    assert (result.exit_code, result.signal, result.timed_out) == (137, 9, False)


# --- What a program can reach


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, "bubblewrap") as opened_place:
        yield opened_place


def test_only_the_workspace_is_writable(place: Place, tmp_path: Path) -> None:
    outside, scratch = tmp_path / "outside", unique_seconds()
    outside.mkdir()
    (outside / "a").write_text("whole")
    (place.root / "out").symlink_to(outside)
    output = place.says(
        f"echo new > src/new.py; echo x > {outside}/a; echo x > out/b; echo x > ../up; echo x > /x; echo x > /usr/x;"
        "echo x > /etc/passwd; echo x > /etc/x; echo x > /run/x; echo x > /dev/x; mkdir /var;"
        "echo 1 > /proc/sys/kernel/sysrq;"
        f"echo x > /proc/sys/kernel/core_pattern; echo fine > /tmp/{scratch} && cat /tmp/{scratch};"
        "echo home > ~/x && cat ~/x"
    )
    assert (place.root / "src/new.py").read_text() == "new\n"
    assert (sorted(os.listdir(tmp_path)), os.listdir(outside)) == (["outside", "root"], ["a"])
    assert (outside / "a").read_text() == "whole"
    assert output.count("annot create") == 11
    assert output.endswith("fine\nhome\n")
    assert not os.path.exists(f"/tmp/{scratch}")


def test_home_and_other_folders_are_not_visible(place: Place, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/key").write_text("canary")
    (tmp_path / "neighbour").write_text("canary")
    output = place.says(
        f"cat {home}/.ssh/key {tmp_path}/neighbour; ls -a ~; ls /home /var /opt /root/.ssh /etc/shadow /sys /mnt;"
        "cat /etc/passwd; echo $HOME"
    )
    assert "canary" not in output
    assert output.count("No such file or directory") == 9
    assert f"agent:x:{os.getuid()}:{os.getgid()}:agent:/run/home:/bin/sh\n/run/home\n" in output


def test_program_has_no_network(place: Place) -> None:
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


def test_environment_of_a_program_is_minimal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_program_has_no_privileges_and_no_handles_of_the_agent(place: Place) -> None:
    output = place.says(
        "grep -E '^(Cap...|NoNewPrivs):' /proc/self/status; ls /proc/self/fd /proc/1/fd; unshare -U true"
    )
    assert output.count("0000000000000000") == 5
    assert "NoNewPrivs:\t1" in output
    self_handles, first = (output.split(f"/proc/{process}/fd:\n")[1].split() for process in ("self", "1"))
    assert self_handles[:4] == ["0", "1", "2", "3"]  # 3 is that of the listing
    assert first[:5] == ["0", "1", "2", "4", "/proc/self/fd:"]  # 4 is bubblewrap's own eventfd
    assert "unshare failed" in output


def test_program_shares_no_namespace_with_the_agent(place: Place) -> None:
    names = sorted({"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} & set(os.listdir("/proc/self/ns")))
    inside = place.says(f"uname -n; cd /proc/self/ns && readlink {' '.join(names)}").split()
    outside = [os.readlink(f"/proc/self/ns/{name}") for name in names]

    assert inside.pop(0) == "sandbox"
    assert [name for name, one, other in zip(names, inside, outside, strict=True) if one == other] == []


def test_program_has_its_own_session(place: Place) -> None:
    """A program in the session of the terminal could type into it (TIOCSTI)."""
    result = place.result("python3", "-c", "import os; print(os.getsid(0))")
    assert int(result.stdout.head) > 0  # 0 stands for a session outside of the process namespace


def test_readable_folder_is_read_only_and_its_sockets_are_unreachable(tmp_path: Path) -> None:
    root, readable = tmp_path.resolve() / "root", tmp_path.resolve() / "shown"
    for folder in (root, readable):
        folder.mkdir()
    (readable / "file").write_text("whole\n")
    script = f"import socket; socket.socket(1).connect('{readable}/service')"

    with closing_socket(socket.socket(socket.AF_UNIX)) as service:
        service.bind(f"{readable}/service")
        service.listen()
        commands = opened(root, readable=(str(readable),), sandbox="bubblewrap")
        changes = f"cat {readable}/file; echo x > {readable}/new; echo x > {readable}/file; rm {readable}/file"
        result = commands.run(["sh", "-c", f'{changes}; python3 -c "{script}"'])

    assert isinstance(result, CommandResult)
    assert result.stdout.head == b"whole\n"
    assert b"ConnectionRefusedError" in result.stderr.head
    assert sorted(os.listdir(readable)) == ["file", "service"]
    assert (readable / "file").read_text() == "whole\n"
