import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.processes import processes
from mendgraph.nodes.execute_tools.processes.backends import BACKENDS
from mendgraph.nodes.execute_tools.processes.commands import CommandResult
from mendgraph.nodes.execute_tools.processes.processes import (
    Limit,
    LimitReached,
    ResourceLimits,
    command_limits,
    evidence_limits,
    usable_memory,
)
from mendgraph.nodes.execute_tools.processes.sandbox import Guarantee
from tests.nodes.execute_tools.processes.command_place import Place, alive, opened, unique
from tests.sandboxes import open_handles

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "command", "evidence"),
    [(2, 1 * GIB, (640, GIB // 2), (96, GIB // 2)), (64, 512 * GIB, (4_608, 256 * GIB), (1_088, 4 * GIB))],
)
def test_limits_follow_the_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, memory: int, command: tuple[int, int], evidence: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(processes, "usable_memory", lambda: memory)

    assert command_limits.__wrapped__() == ResourceLimits(
        *command,
        scratch_bytes=GIB,
        file_bytes=4 * GIB,
        open_files=8_192,
        disk_bytes=8 * GIB,
        output_bytes=GIB,
    )
    assert evidence_limits.__wrapped__() == ResourceLimits(
        *evidence,
        scratch_bytes=GIB // 4,
        file_bytes=GIB // 4,
        open_files=1_024,
        disk_bytes=8 * GIB,
        output_bytes=GIB,
    )


def test_container_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("outer", "300000000\n"), ("outer/own", "max\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text(limit)
    monkeypatch.setattr(processes, "_own_groups", lambda: iter([f"{tmp_path}/outer/own", f"{tmp_path}/outer"]))
    assert usable_memory() == 300_000_000


MB = 1_000_000
LIMITS = ResourceLimits(
    processes=20, memory_bytes=64 * MB, scratch_bytes=32 * MB, file_bytes=20 * MB, open_files=64, output_bytes=MB
)
ROOM = ResourceLimits(processes=20, memory_bytes=400 * MB)


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    root = tmp_path.resolve() / "root"
    root.mkdir()
    commands = opened(root, limits=LIMITS, sandbox=request.param)
    handles = open_handles()
    yield Place(root, commands)
    assert open_handles() == handles, "a handle was left open"


def python(place: Place, program: str, *words: str) -> CommandResult:
    return place.result("python3", "-c", f"import ctypes, mmap, os, threading, time\n{program}", *words)


FORKS = "for each in range(100):\n    if not os.fork():\n        {}\n"
KEEP = "kept = bytearray(b'x') * 90_000_000; time.sleep(60)"
TOO_MUCH = {
    "processes": (f"{FORKS.format('time.sleep(60)')}time.sleep(60)", Limit.PROCESSES),
    "zombies": (f"{FORKS.format('os._exit(0)')}time.sleep(60)", Limit.PROCESSES),
    "memory": (KEEP, Limit.MEMORY),
    "memory of many": (f"{FORKS.replace('100', '9').format(KEEP.replace('90', '9'))}time.sleep(60)", Limit.MEMORY),
    "memory of a thread whose process looks dead": (
        f"def keep():\n    {KEEP}\nthreading.Thread(target=keep).start(); ctypes.CDLL(None).pthread_exit(None)",
        Limit.MEMORY,
    ),
    "empty files in memory": ("for each in range(60_000): os.mknod(f'/tmp/{each}')\ntime.sleep(60)", Limit.MEMORY),
    "a large file": ("open('a', 'wb').write(bytes(30_000_000))", Limit.FILE_SIZE),
    "one endless line": ("while True: os.write(1, bytes(65_536))", Limit.OUTPUT),
}


def program_name(program: str) -> str:
    return next(name for name, (each, _) in TOO_MUCH.items() if each == program)


@pytest.mark.parametrize(("program", "limit"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_program_that_takes_too_much_is_ended_and_the_limit_is_told(place: Place, program: str, limit: Limit) -> None:
    mark = unique()
    held = place.commands.sandbox.guarantees
    if limit is Limit.MEMORY and "in memory" in program_name(program) and Guarantee.SCRATCH_LIMITS not in held:
        assert python(place, program.replace("time.sleep(60)", "")).limit is None  # not held: they lie on the disk
        return

    result = python(place, program, mark)
    assert result.limit is not None, result
    assert (result.limit.limit, result.timed_out, result.exit_code != 0) == (limit, False, True)
    assert not alive(mark)


def test_what_a_program_puts_on_the_disk(tmp_path: Path) -> None:
    made = opened(tmp_path.resolve(), limits=ResourceLimits(20, 400 * MB, disk_bytes=20 * MB))
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, check=True).stdout == b"tmpfs\n":
        pytest.skip("the temporary folder is no disk")
    program = "for each in range(5): open(f'f{each}', 'wb').write(bytes(9_000_000))\nos.sync(); time.sleep(60)"
    result = made.run(["python3", "-c", f"import os, time\n{program}"])
    assert isinstance(result, CommandResult)
    assert result.limit is not None
    assert (result.limit.limit, result.limit.reached > result.limit.allowed) == (Limit.DISK, True)


def test_what_processes_share_is_counted_once(tmp_path: Path) -> None:
    made = opened(tmp_path.resolve(), limits=ROOM)
    program = (
        "import os, time\nkept = bytearray(b'x') * 90_000_000\n"
        "children = [os.fork() or (time.sleep(0.5), os._exit(0)) for each in range(8)]\n"
        "for each in children: os.waitpid(each, 0)\n"
    )
    result = made.run(["python3", "-c", program])
    assert isinstance(result, CommandResult)
    assert (result.exit_code, result.limit) == (0, None), result


def test_memory_that_no_process_shows_is_ended_where_the_machine_has_none_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([[32_000 * MB, 3_000 * MB]])
    monkeypatch.setattr(processes, "_machine_memory", lambda: next(told, [32_000 * MB, 900 * MB]))
    result = place.result("sleep", "60")
    assert str(result.limit) == "was stopped: the machine had 900 MB of memory left, and 1,000 MB have to stay free."


def test_program_inherits_its_limits_and_cannot_raise_them(place: Place) -> None:
    said = python(
        place,
        "import resource as r\nfor each in (r.RLIMIT_FSIZE, r.RLIMIT_NOFILE, r.RLIMIT_CORE):\n"
        "    try: r.setrlimit(each, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('raised')\n"
        "    except (ValueError, OSError): print(r.getrlimit(each)[1])",
    )
    assert said.stdout.head.decode().split() == [str(20 * MB), "64", "0"]


def test_refused_fork_is_known_by_its_words(place: Place) -> None:
    result = place.result("sh", "-c", "echo 'sh: Cannot fork' >&2; exit 2")
    assert result.limit == LimitReached(Limit.PROCESSES, 20, 20)


COUNTS_PROCESSES_OF_A_SANDBOX = [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]] >= [5, 14]


@pytest.mark.skipif(not COUNTS_PROCESSES_OF_A_SANDBOX, reason="this kernel counts all processes of a user")
def test_program_inherits_its_limit_of_processes(place: Place) -> None:
    result = python(place, "import resource; print(*resource.getrlimit(resource.RLIMIT_NPROC))")
    soft, hard = map(int, result.stdout.head.split())
    assert soft == hard
    if place.sandbox == "bubblewrap":
        assert soft == 21  # one more for bubblewrap
    else:
        assert soft >= 20  # the kernel counts all processes of the user, who has others


def test_limit_that_the_agent_has_itself_is_not_raised(place: Place) -> None:
    own = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * MB, own[1]))
    try:
        result = python(place, "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE))")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, own)
    assert result.stdout.head.decode() == f"({10 * MB}, {20 * MB})\n"


def test_file_systems_in_memory_are_writable_and_bounded(place: Place) -> None:
    folders = ["/tmp", "~"] + ["/dev/shm"] * (place.sandbox != "landlock")
    program = (
        f"for each in map(os.path.expanduser, {folders}):\n"
        "    open(f'{each}/file', 'w').write('x')\n"
        "    status = os.statvfs(each)\n"
        "    print(status.f_blocks * status.f_frsize)"
    )
    sizes = [int(size) for size in python(place, program).stdout.head.split()]
    assert len(sizes) == len(folders)
    bounded = all(32 * MB <= size < 33 * MB for size in sizes)
    assert bounded is (Guarantee.SCRATCH_LIMITS in place.commands.sandbox.guarantees)


def test_program_yields_to_the_agent_and_is_the_first_that_the_kernel_ends(place: Place) -> None:
    program = "print(os.getpriority(os.PRIO_PROCESS, 0)); print(open('/proc/self/oom_score_adj').read())"
    result = python(place, program)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert result.stdout.head.split() == [str(min(19, own + 5)).encode(), b"1000"]
