"""The filter's answers to system calls, interpreted as by the kernel, and real calls in the sandbox."""

import errno
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.nodes.workspace.sandboxes.backends import BACKENDS
from mendgraph.nodes.workspace.sandboxes.seccomp import (
    ARCHITECTURES,
    PROGRAM_FAMILIES,
    SIGNALS,
    Architecture,
    seccomp_filter,
)
from tests.extent import slow
from tests.workspace.processes.command_place import Place, command_place

ALLOWED, KILLED = "allowed", "killed"
THREAD = 0x0001_0F00
NEW_NAMESPACES = (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000)
"""Of mounts, cgroup, UTS, IPC, users, PIDs and the network."""

OTHER_ARCHITECTURE = 0x4000_0003


def answer(
    machine: str,
    number: int,
    *arguments: int,
    audit_number: int | None = None,
    network: bool = True,
    unreachable: tuple[int, ...] = (),
) -> str:
    """What the kernel does with a call: "allowed", "killed" or the name of the error."""
    code = seccomp_filter(PROGRAM_FAMILIES if network else (), machine, unreachable)
    assert code is not None
    audit = ARCHITECTURES[machine].audit_number if audit_number is None else audit_number
    words = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, audit, 0, *words)

    program = list(struct.iter_unpack("=HBBI", code))
    place = loaded = 0
    while True:
        operation, if_true, if_false, operand = program[place]
        place += 1
        match operation:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                place += if_true if loaded == operand else if_false
            case 0x35:
                place += if_true if loaded >= operand else if_false
            case 0x45:
                place += if_true if loaded & operand else if_false
            case 0x06:
                break
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")

    if operand == 0x7FFF_0000:
        return ALLOWED
    return KILLED if operand == 0x8000_0000 else errno.errorcode[operand & 0xFFFF]


def numbers_of(machine: str) -> Architecture:
    return ARCHITECTURES[machine]


IN_BOTH = {425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 467}
"""`io_uring_setup` to `io_uring_register`, `open_tree` to `fspick`, `mount_setattr` and `open_tree_attr`."""

REFUSED_NUMBERS = {
    "x86_64": IN_BOTH | {155, 161, 165, 166, 248, 249, 250, 272, 298, 304, 308, 321, 323},
    "aarch64": IN_BOTH | {39, 40, 41, 51, 97, 217, 218, 219, 241, 265, 268, 280, 282},
}
"""From the kernel's headers: asm/unistd_64.h and asm-generic/unistd.h."""


def test_namespace_escaping_calls_are_refused_and_ordinary_ones_allowed() -> None:
    for machine, refused in REFUSED_NUMBERS.items():
        special = set(numbers_of(machine).numbers.values())
        answers = {number: answer(machine, number) for number in range(600)}
        assert {number for number, decision in answers.items() if decision == "EPERM"} == refused
        assert {answers[number] for number in range(470) if number not in special} == {ALLOWED}
        assert answer(machine, numbers_of(machine).numbers["keyctl"], audit_number=OTHER_ARCHITECTURE) == KILLED
        assert answer(machine, 0x4000_0000 | 250) == "ENOSYS"


def test_all_architectures_define_the_same_names() -> None:
    names = numbers_of("x86_64").numbers.keys()
    for machine in ARCHITECTURES:
        assert numbers_of(machine).numbers.keys() == names
        assert len(set(numbers_of(machine).numbers.values())) == len(names)


SOCKETS: list[tuple[int, int, str]] = [
    (socket.AF_UNIX, 0, ALLOWED),
    (socket.AF_INET, 0, ALLOWED),
    (socket.AF_INET6, 17, ALLOWED),
    (socket.AF_NETLINK, 0, ALLOWED),
    (socket.AF_NETLINK, 9, "EAFNOSUPPORT"),
    (socket.AF_PACKET, 0, "EAFNOSUPPORT"),
    (socket.AF_VSOCK, 0, "EAFNOSUPPORT"),
    (socket.AF_ALG, 0, "EAFNOSUPPORT"),
    (44, 0, "EAFNOSUPPORT"),
]


def test_only_listed_socket_families_are_allowed() -> None:
    for machine in ARCHITECTURES:
        numbers = numbers_of(machine).numbers
        for family, protocol, expected in SOCKETS:
            decision = answer(machine, numbers["socket"], family, socket.SOCK_STREAM, protocol)
            assert decision == expected, (machine, family, protocol)
            assert answer(machine, numbers["socket"], family, network=False) == "EAFNOSUPPORT"
        assert answer(machine, numbers["socketpair"], socket.AF_UNIX, network=False) == ALLOWED
        assert answer(machine, numbers["socketpair"], 30, network=False) == "EAFNOSUPPORT"


def test_clone_is_allowed_only_without_namespaces() -> None:
    for machine in ARCHITECTURES:
        numbers = numbers_of(machine).numbers
        assert answer(machine, numbers["clone"], THREAD) == ALLOWED
        for flag in NEW_NAMESPACES:
            assert answer(machine, numbers["clone"], flag | signal.SIGCHLD) == "EPERM", hex(flag)
        assert answer(machine, numbers["clone3"]) == "ENOSYS"


def test_unreachable_process_gets_no_signal() -> None:
    for machine in ARCHITECTURES:
        numbers = numbers_of(machine).numbers
        for name in SIGNALS:
            for process, expected in ((41, "EPERM"), (-41, "EPERM"), (-1, "EPERM"), (42, ALLOWED)):
                words = (numbers[name], process & 0xFFFF_FFFF, 9)
                assert answer(machine, *words, unreachable=(40, 41)) == expected, (machine, name, process)
                assert answer(machine, *words) == ALLOWED
        assert answer(machine, numbers["pidfd_send_signal"], 3, 9, unreachable=(41,)) == "ENOSYS"
        assert answer(machine, numbers["pidfd_send_signal"], 3, 9) == ALLOWED


def test_unknown_architecture_has_no_filter() -> None:
    assert seccomp_filter(machine="riscv64") is None


# --- In the sandbox


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with command_place(tmp_path, request.param) as opened_place:
        yield opened_place


CALLS = """
import ctypes, json, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(sys.argv[1])
errors = {}
for name in ("keyctl", "add_key", "request_key", "io_uring_setup", "bpf", "userfaultfd", "perf_event_open", "unshare",
             "setns", "mount", "fsopen", "open_by_handle_at", "clone3"):
    ctypes.set_errno(0)
    result = libc.syscall(numbers[name], 0, 0, 0, 0, 0)
    errors[name] = ctypes.get_errno() if result == -1 else "succeeded"
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET if family == socket.AF_ALG else socket.SOCK_STREAM).close()
        errors[family.name] = "succeeded"
    except OSError as error:
        errors[family.name] = error.errno
print(json.dumps(errors))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox exists for Linux only")
def test_program_in_the_sandbox_is_refused_these_calls(place: Place) -> None:
    numbers = json.dumps(dict(ARCHITECTURES[os.uname().machine].numbers))
    result = place.result("python3", "-c", CALLS, numbers)
    errors = json.loads(result.stdout.head)

    calls = {name: error for name, error in errors.items() if not name.startswith("AF_")}
    assert calls.pop("clone3") == errno.ENOSYS
    assert set(calls.values()) == {errno.EPERM}

    families = {name: error for name, error in errors.items() if name.startswith("AF_")}
    expected = errno.EAFNOSUPPORT if place.sandbox == "landlock" else "succeeded"
    assert families == {
        "AF_UNIX": expected,
        "AF_INET": expected,
        "AF_INET6": expected,
        "AF_VSOCK": errno.EAFNOSUPPORT,
        "AF_ALG": errno.EAFNOSUPPORT,
        "AF_PACKET": errno.EAFNOSUPPORT,
    }


WORK = """
import asyncio, multiprocessing, os, socket, subprocess, sys, threading
async def serve():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    await asyncio.open_connection(*server.sockets[0].getsockname())
    return "served"
if __name__ == "__main__":
    thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
    subprocess.run(["echo", "child"], check=True)
    one, other = socket.socketpair()
    if not os.fork():
        one.send(b"pair"); os._exit(0)
    print(other.recv(4).decode())
    if sys.argv[1] != "landlock":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
        print(asyncio.run(serve()))
"""


@slow
def test_threads_children_pools_and_loopback_work_under_the_filter(place: Place) -> None:
    """Below Landlock there are no semaphores and no network, not even loopback."""
    (place.root / "work.py").write_text(WORK)
    result = place.result("python3", "-u", "work.py", place.sandbox)

    more = [] if place.sandbox == "landlock" else ["[1, 2]", "served"]
    assert result.stdout.head.decode().split("\n") == ["thread", "child", "pair", *more, ""], result.stderr.head
