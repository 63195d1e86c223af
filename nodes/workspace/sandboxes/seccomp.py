"""The seccomp filter of all programs, as a program of classic BPF: the system calls that the kernel refuses.

Namespaces do not separate all resources: session keys, `io_uring`, virtual sockets and file handles belong to the whole
machine. A filter is valid for a program and all its descendants.

Source: seccomp(2), bpf(4); system call numbers of arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux 6.18.
"""

import errno
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_KILL: Final = 0x8000_0000
_REFUSE: Final = 0x0005_0000
"""The low 16 bits of this answer are the error number that the program sees."""
_ALLOW: Final = 0x7FFF_0000

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06

_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS: Final = 16
"""Where `struct seccomp_data` holds the number, the architecture and the first of six arguments of eight bytes."""

_NETLINK_ROUTE: Final = 0
_X32_BIT: Final = 0x4000_0000
"""From this number on, system calls are those of the x32 interface of x86-64, which has another table."""

_NEW_NAMESPACES: Final = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
"""The flags of clone(2) for a mount, cgroup, UTS, IPC, user, PID and network namespace."""

PROGRAM_FAMILIES: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""The families of sockets of a program that has a network namespace of its own."""

_CALLS: Final = """
socket               41  198
socketpair           53  199
clone                56  220
kill                 62  129
rt_sigqueueinfo     129  138
pivot_root          155   41
chroot              161   51
mount               165   40
umount2             166   39
tkill               200  130
tgkill              234  131
add_key             248  217
request_key         249  218
keyctl              250  219
unshare             272   97
rt_tgsigqueueinfo   297  240
perf_event_open     298  241
open_by_handle_at   304  265
setns               308  268
bpf                 321  280
userfaultfd         323  282
pidfd_send_signal   424  424
io_uring_setup      425  425
io_uring_enter      426  426
io_uring_register   427  427
open_tree           428  428
move_mount          429  429
fsopen              430  430
fsconfig            431  431
fsmount             432  432
fspick              433  433
clone3              435  435
mount_setattr       442  442
open_tree_attr      467  467
"""
"""The numbers of system calls on x86-64 and on aarch64."""


@dataclass(frozen=True)
class Architecture:
    """The kernel's number of an architecture, and its table of system calls."""

    audit_number: int
    numbers: Mapping[str, int]


def _numbers(column: int) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for row in _CALLS.strip().splitlines():
        name, *columns = row.split()
        numbers[name] = int(columns[column])

    return numbers


ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000_003E, _numbers(0)),
    "aarch64": Architecture(0xC000_00B7, _numbers(1)),
}
"""The architectures with a filter. On others no program starts."""

_REFUSED_NAMES: Final = """
    add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register userfaultfd bpf perf_event_open
    open_by_handle_at mount umount2 pivot_root chroot unshare setns open_tree open_tree_attr move_mount fsopen fsconfig
    fsmount fspick mount_setattr
"""
REFUSED: Final = tuple(_REFUSED_NAMES.split())
"""System calls that fail with EPERM for all arguments."""

SIGNALS: Final = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
"""System calls that send a signal to the process that their first argument names."""

_EVERY_PROCESS: Final = -1
"""The argument of kill(2) for all processes that may be signalled."""

_Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if the condition is true, those to skip if it is false, and operand."""


def seccomp_filter(
    families: Sequence[int] = PROGRAM_FAMILIES, machine: str = "", unreachable: Sequence[int] = ()
) -> bytes | None:
    """Return the filter as an array of `struct sock_filter`, None for an architecture without one.

    Sockets may be of these `families`; with any of them NETLINK_ROUTE is allowed as well, by which programs list
    network interfaces. Pairs of UNIX sockets are always allowed. With `unreachable` processes, no signals can be sent
    to them, to the process groups that they lead, to all processes at once, or by a handle.
    """
    architecture = ARCHITECTURES.get(machine or os.uname().machine)
    if architecture is None:
        return None

    numbers = architecture.numbers
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture.audit_number),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _X32_BIT),
        _refuse(errno.ENOSYS),
    ]

    for name in REFUSED:
        program += _for_call(numbers[name], [_refuse(errno.EPERM)])

    # Its flags lie in memory, which filters cannot read; after ENOSYS the C libraries use clone.
    program += _for_call(numbers["clone3"], [_refuse(errno.ENOSYS)])
    program += _for_call(numbers["clone"], _without_flags(_NEW_NAMESPACES))
    program += _for_call(numbers["socket"], _of_families(families))
    program += _for_call(numbers["socketpair"], _of_families((socket.AF_UNIX,), route=False))

    if unreachable:
        program += _for_call(numbers["pidfd_send_signal"], [_refuse(errno.ENOSYS)])
        for name in SIGNALS:
            program += _for_call(numbers[name], _not_to(unreachable))

    program.append((_RETURN, 0, 0, _ALLOW))

    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _refuse(error: int) -> _Instruction:
    return (_RETURN, 0, 0, _REFUSE | error)


def _argument(place: int) -> _Instruction:
    """Load the low half of an argument: flags, families and protocols have 32 bits."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * place)


def _for_call(number: int, answer: Sequence[_Instruction]) -> list[_Instruction]:
    """Return the instructions `answer`, which end with a return, for this system call. Its number stays loaded."""
    return [(_IF_EQUAL, 0, len(answer), number), *answer]


def _without_flags(flags: int) -> list[_Instruction]:
    return [
        _argument(0),
        (_IF_ANY_BIT, 0, 1, flags),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _not_to(processes: Sequence[int]) -> list[_Instruction]:
    program = [_argument(0)]
    for number in (_EVERY_PROCESS, *processes, *(-process for process in processes)):
        program += [(_IF_EQUAL, 0, 1, number & 0xFFFF_FFFF), _refuse(errno.EPERM)]

    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _of_families(families: Sequence[int], *, route: bool = True) -> list[_Instruction]:
    program = [_argument(0)]
    for family in families:
        program += [(_IF_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]

    if families and route:
        program += [
            (_IF_EQUAL, 0, 3, socket.AF_NETLINK),
            _argument(2),
            (_IF_EQUAL, 0, 1, _NETLINK_ROUTE),
            (_RETURN, 0, 0, _ALLOW),
        ]

    return [*program, _refuse(errno.EAFNOSUPPORT)]
