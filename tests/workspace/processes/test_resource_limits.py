import json
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.workspace.processes import resource_limits
from mendgraph.nodes.workspace.processes.resource_limits import Limit, LimitReached, ResourceLimits, usable_memory
from mendgraph.nodes.workspace.sandboxes.backends import BACKENDS
from mendgraph.nodes.workspace.sandboxes.sandbox import Guarantee
from tests.extent import slow
from tests.sandboxes import open_handles
from tests.workspace.processes.command_place import Place, is_alive, opened, unique_seconds


def test_memory_limit_of_a_container_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("outer", "300000000\n"), ("outer/own", "max\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text(limit)
    monkeypatch.setattr(resource_limits, "_control_groups", lambda: ([f"{tmp_path}/outer/own", f"{tmp_path}/outer"]))
    assert usable_memory() == 300_000_000


MB = 1_000_000
LIMITS = ResourceLimits(
    processes=20, memory_bytes=64 * MB, scratch_bytes=32 * MB, file_bytes=20 * MB, open_files=64, output_bytes=MB
)
ROOM = ResourceLimits(processes=20, memory_bytes=400 * MB)


@contextmanager
def limited(folder: Path, sandbox: str) -> Iterator[Place]:
    """A workspace whose programs have these limits. Afterwards no handle may be open."""
    root = folder.resolve() / "root"
    root.mkdir()
    commands = opened(root, limits=LIMITS, sandbox=sandbox)
    handles = open_handles()
    yield Place(root, commands)
    assert open_handles() <= handles, "a handle was left open"


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with limited(tmp_path, request.param) as opened_place:
        yield opened_place


@pytest.fixture
def bubblewrap(tmp_path: Path) -> Iterator[Place]:
    with limited(tmp_path, "bubblewrap") as opened_place:
        yield opened_place


def python(place: Place, program: str, *words: str) -> CommandResult:
    return place.result("python3", "-c", f"import ctypes, mmap, os, threading, time\n{program}", *words)


FORKS = "for each in range(100):\n    if not os.fork():\n        {}\n"
KEEP = "kept = bytearray(b'x') * 90_000_000; time.sleep(60)"
DEAD = "memory of a thread whose process looks dead"
TOO_MUCH = {
    "processes": (f"{FORKS.format('time.sleep(60)')}time.sleep(60)", Limit.PROCESSES),
    "zombies": (f"{FORKS.format('os._exit(0)')}time.sleep(60)", Limit.PROCESSES),
    "memory": (KEEP, Limit.MEMORY),
    "memory of many": (f"{FORKS.replace('100', '9').format(KEEP.replace('90', '9'))}time.sleep(60)", Limit.MEMORY),
    DEAD: (
        f"def keep():\n    {KEEP}\nthreading.Thread(target=keep).start(); ctypes.CDLL(None).pthread_exit(None)",
        Limit.MEMORY,
    ),
    "empty files in memory": ("for each in range(60_000): os.mknod(f'/tmp/{each}')\ntime.sleep(60)", Limit.MEMORY),
    "a large file": ("open('a', 'wb').write(bytes(30_000_000))", Limit.FILE_SIZE),
    "one endless line": ("while True: os.write(1, bytes(65_536))", Limit.OUTPUT),
}


ROWS = [
    *(("bubblewrap", name) for name in TOO_MUCH),
    *(("landlock", name) for name in ("processes", "memory of many", "a large file", DEAD)),
    ("container", "processes"),
]
"""The others share what watches a program and what sets its limits."""


@slow
@pytest.mark.parametrize(("sandbox", "name"), ROWS)
def test_program_over_a_limit_is_ended_and_the_limit_is_named(tmp_path: Path, sandbox: str, name: str) -> None:
    program, limit = TOO_MUCH[name]
    mark = unique_seconds()
    with limited(tmp_path, sandbox) as place:
        result = python(place, program, mark)
    assert result.limit is not None, result
    assert (result.limit.limit, result.timed_out, result.exit_code != 0) == (limit, False, True)
    assert not is_alive(mark)


def test_program_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    commands = opened(tmp_path.resolve(), limits=ResourceLimits(20, 400 * MB, disk_bytes=20 * MB))
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, check=True).stdout == b"tmpfs\n":
        pytest.skip("the temporary folder is no disk")
    program = "for each in range(5): open(f'f{each}', 'wb').write(bytes(9_000_000))\nos.sync(); time.sleep(60)"
    result = commands.run(["python3", "-c", f"import os, time\n{program}"])
    assert isinstance(result, CommandResult)
    assert result.limit is not None
    assert (result.limit.limit, result.limit.reached > result.limit.allowed) == (Limit.DISK, True)


def test_shared_memory_is_counted_once(tmp_path: Path) -> None:
    commands = opened(tmp_path.resolve(), limits=ROOM)
    program = (
        "import os, time\nkept = bytearray(b'x') * 90_000_000\n"
        "children = [os.fork() or (time.sleep(0.5), os._exit(0)) for each in range(8)]\n"
        "for each in children: os.waitpid(each, 0)\n"
    )
    result = commands.run(["python3", "-c", program])
    assert isinstance(result, CommandResult)
    assert (result.exit_code, result.limit) == (0, None), result


def test_program_is_ended_if_the_machine_runs_out_of_memory(bubblewrap: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([[32_000 * MB, 3_000 * MB]])
    monkeypatch.setattr(resource_limits, "_machine_memory", lambda: next(samples, [32_000 * MB, 900 * MB]))
    result = bubblewrap.result("sleep", "60")
    assert str(result.limit) == "was stopped: the machine had 900 MB of memory left, and 1,000 MB must stay free."


def test_refused_fork_is_recognized_by_its_message(bubblewrap: Place) -> None:
    result = bubblewrap.result("sh", "-c", "echo 'sh: Cannot fork' >&2; exit 2")
    assert result.limit == LimitReached(Limit.PROCESSES, 20, 20)


REPORT = """
import json, resource as r
def hard(limit):
    try: r.setrlimit(limit, (r.RLIM_INFINITY, r.RLIM_INFINITY)); return "raised"
    except (ValueError, OSError): return r.getrlimit(limit)[1]
sizes = []
for folder in ["/tmp", os.path.expanduser("~"), *sys.argv[1:]]:
    open(f"{folder}/file", "w").write("x")
    sizes.append(os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize)
print(json.dumps({
    "processes": r.getrlimit(r.RLIMIT_NPROC),
    "hard": [hard(r.RLIMIT_FSIZE), hard(r.RLIMIT_NOFILE), hard(r.RLIMIT_CORE)],
    "sizes": sizes,
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "oom": int(open("/proc/self/oom_score_adj").read()),
}))
"""
COUNTS_PROCESSES_OF_A_SANDBOX = [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]] >= [5, 14]
"""Older kernels count all processes of a user."""


def test_program_inherits_its_limits_and_has_lower_priority_than_the_agent(place: Place) -> None:
    """It cannot raise them; the kernel ends it first, and file systems in memory are bounded."""
    result = python(place, f"import sys\n{REPORT}", *["/dev/shm"] * (place.sandbox != "landlock"))
    values = json.loads(result.stdout.head)

    assert values["hard"] == [20 * MB, 64, 0]
    assert (values["nice"], values["oom"]) == (min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5), 1000)
    bounded = all(32 * MB <= size < 33 * MB for size in values["sizes"])
    assert bounded is (Guarantee.SCRATCH_LIMITS in place.commands.sandbox.guarantees)
    if COUNTS_PROCESSES_OF_A_SANDBOX:
        soft, hard = values["processes"]
        assert soft == hard
        # One more for bubblewrap; elsewhere the kernel counts all processes of the user, who has others.
        assert soft == 21 if place.sandbox == "bubblewrap" else soft >= 20


def test_limit_of_the_agent_itself_is_not_raised(bubblewrap: Place) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * MB, limits[1]))
    try:
        result = python(bubblewrap, "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE))")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.stdout.head.decode() == f"({10 * MB}, {20 * MB})\n"
