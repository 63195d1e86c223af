"""The supervisor of a program that has no process namespace of its own.

It is started as `python -I -S launcher.py CONTROL STATUS -- PROGRAM ARGUMENT...` with two handles, and uses only the
standard library. From CONTROL it reads a line with the length of the configuration, then the configuration in the
format of `marshal`: `cwd`, the seccomp `filter`, and `landlock`, which is None or has `fs`, `net`, `scoped`, the `size`
in bytes of the kernel's structure of these three, and `rules`, pairs of a path and the rights below it. It reports
`{"child-pid": N}` on STATUS and waits; the next byte on CONTROL starts the program. After its end all its descendants
are killed and `{"exit-code": N}` is reported; when CONTROL is closed, all are killed at once. It imports little, as
each module costs some milliseconds.

Orphaned descendants of the program become children of this process, which the program cannot signal. Source: prctl(2),
landlock(7), seccomp(2), capabilities(7); the numbers are the same for x86-64 and aarch64.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES = 64
_CAPABILITY_VERSION = 0x2008_0522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_GET_VERSION = 1
_NOT_EXECUTED = 127
_SIGKILL, _SIGPIPE, _SIGXFSZ = 9, 13, 25
_REAP_MS = 100
"""Milliseconds between two rounds in which orphaned descendants that have ended are reaped."""
_BETWEEN_KILLS_MS = 1


def landlock_version() -> int:
    """Return the version of Landlock of the kernel, 0 without it."""
    return max(0, _call(_libc().syscall, _CREATE_RULESET, None, 0, _GET_VERSION))


def descendants(ancestor: int) -> list[int]:
    """Return the descendants of a process, in no order."""
    children: dict[int, list[int]] = {}

    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as stream:
                    parent = int(stream.read(1_024).rpartition(b")")[2].split()[1])
            except OSError:  # it has ended
                continue

            children.setdefault(parent, []).append(int(name))

    result: list[int] = []
    waiting = [ancestor]

    while waiting:
        below = children.pop(waiting.pop(), [])
        result += below
        waiting += below

    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: Any, *arguments: int | bytes | None) -> int:
    """Call a C function with variable arguments, which reads all bits of a `long` for each number."""
    result: int = function(*map(_as_word, arguments))
    return result


def _as_word(argument: int | bytes | None) -> Any:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _require(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

    return result


def _drop_privileges(libc: ctypes.CDLL) -> None:
    for capability in range(_CAPABILITIES):
        _call(libc.prctl, _PR_CAPBSET_DROP, capability, 0, 0, 0)  # without privileges there is nothing to drop

    _call(libc.prctl, _PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)

    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _require(libc.capset(header, bytes(24)))
    _require(_call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _restrict_files(libc: ctypes.CDLL, rules: dict[str, Any]) -> None:
    attributes = struct.pack("QQQ", rules["fs"], rules["net"], rules["scoped"])
    ruleset = _require(_call(libc.syscall, _CREATE_RULESET, attributes, rules["size"], 0))

    for path, rights in rules["rules"]:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, handle)
        _require(_call(libc.syscall, _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
        os.close(handle)

    _require(_call(libc.syscall, _RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _restrict_calls(libc: ctypes.CDLL, code: bytes) -> None:
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
    _require(_call(libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


def _become_program(config: dict[str, Any], argv: list[str], supervisor: int) -> None:
    libc = _libc()
    os.setsid()
    _require(_call(libc.prctl, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))

    if os.getppid() != supervisor:
        return

    try:  # if memory runs out, the kernel kills this process first
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as stream:
            stream.write(b"1000")
    except OSError:
        pass

    os.chdir(config["cwd"])
    for number in (_SIGPIPE, _SIGXFSZ):  # Python ignores these signals
        libc.signal(number, None)

    _drop_privileges(libc)
    if config["landlock"] is not None:
        _restrict_files(libc, config["landlock"])

    _restrict_calls(libc, config["filter"])
    os.execvp(argv[0], argv)  # noqa: S606 - the program is allowed, and restricted by now


def _start_child(config: dict[str, Any], argv: list[str]) -> tuple[int, int, int]:
    """Fork the waiting child; returns it, the handle that starts it, and the one that reports a failed start."""
    waits, go = os.pipe()
    failed, report = os.pipe()
    supervisor = os.getpid()
    child = os.fork()

    if child:
        os.close(waits)
        os.close(report)
        return child, go, failed

    try:
        os.close(go)
        if os.read(waits, 1):
            _become_program(config, argv, supervisor)
    except OSError as error:
        sys.stderr.write(f"execvp {argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os.write(report, b"1")
    finally:
        os._exit(_NOT_EXECUTED)


def _reap(child: int) -> tuple[int | None, bool]:
    """Reap all processes that have ended; the exit code of the child if it has, and whether any process is left."""
    code = None

    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False

        if number == 0:
            return code, True

        if number == child:
            code = os.waitstatus_to_exitcode(status)


def _wait_for(child: int, control: int) -> int | None:
    """Return the exit code of the child; None if CONTROL was closed before it has ended."""
    waiting = select.poll()
    waiting.register(os.pidfd_open(child), select.POLLIN)
    waiting.register(control, select.POLLIN)

    while True:
        ready = [handle for handle, _ in waiting.poll(_REAP_MS)]
        code, _ = _reap(child)
        if code is not None:
            return code
        if control in ready:
            return None


def _kill_descendants() -> None:
    while True:
        for number in descendants(os.getpid()):
            try:
                os.kill(number, _SIGKILL)
            except ProcessLookupError:
                continue

        _, any_left = _reap(0)
        if not any_left:  # orphaned processes have become our children
            return

        select.poll().poll(_BETWEEN_KILLS_MS)


def _read_configuration(control: int) -> dict[str, Any] | None:
    """None if CONTROL was closed."""
    with open(control, "rb", buffering=0, closefd=False) as stream:
        size = int(stream.readline() or b"0")
        data = b""

        while len(data) < size:
            chunk = stream.read(size - len(data))
            if not chunk:
                return None

            data += chunk

    config: dict[str, Any] | None = marshal.loads(data) if data else None  # noqa: S302 - the agent has written it
    return config


def main(control: int, status: int, argv: list[str]) -> int:
    """Start the program, wait for its end, kill its descendants, and return its exit code."""
    for handle in (control, status):
        os.set_inheritable(handle, False)

    _require(_call(_libc().prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))

    config = _read_configuration(control)
    if config is None:
        return _NOT_EXECUTED

    child, go, failed = _start_child(config, argv)
    _require(_call(_libc().prctl, _PR_SET_DUMPABLE, 0, 0, 0, 0))  # the program cannot look into this process
    os.write(status, b'{"child-pid": %d}\n' % child)
    code = None
    has_begun = bool(os.read(control, 1))

    if has_begun:
        os.write(go, b"1")
        code = _wait_for(child, control)

    _kill_descendants()

    executed = has_begun and not os.read(failed, 1)
    code = -_SIGKILL if code is None else code
    code = code if code >= 0 else 128 - code

    if executed:
        os.write(status, b'{"exit-code": %d}\n' % code)

    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]))
