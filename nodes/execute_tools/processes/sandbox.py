"""What every sandbox for programs has in common: what a program sees, how it is started, and what is guaranteed.

A backend is one file beside this one and one row of the table in `backends`.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from subprocess import Popen
from typing import Final, Protocol

from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.processes import processes
from mendgraph.nodes.records import ToolError, ToolErrorCode

PROGRAM_FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where the system keeps programs."""

SYSTEM_FOLDERS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside `/usr`; on many systems they are links into it."""

SYSTEM_FILES: Final = (
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/mime.types", "/etc/os-release", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs"),
)
"""Of `/etc`; neither accounts, nor keys, nor the machine's own settings."""

HOME: Final = "/run/home"
"""The home of a program: empty at the start, gone at the end, and in no place where a workspace can be."""

SCRATCH: Final = "/tmp"  # noqa: S108 - its own, seen by nobody else


class Guarantee(StrEnum):
    """What a sandbox can guarantee, in the words of `docs/security.md`."""

    SYSTEM_CALLS = "kernel keys, `io_uring`, virtual sockets, mounts and namespaces are refused"
    PRIVILEGES = "no capabilities, and none can be gained"
    OUTSIDE_FILES = "no file outside the workspace, the system and `readable_folders` can be opened"
    OUTSIDE_NAMES = "names and metadata of such files cannot be seen or changed"
    DENIED_FILES = "denied files of the workspace cannot be opened"
    PROTECTED_FILES = "`.git` and the settings of mendgraph cannot be changed"
    READ_ONLY_CHECKS = "checks cannot change the workspace"
    NO_NETWORK = "no network"
    OTHER_PROCESSES = "other processes cannot be seen"
    SIGNALS = "other processes cannot be signalled or traced"
    PROCESS_LIMITS = "limits for each process"
    TOTAL_LIMITS = "limits for all processes of a command together"
    SCRATCH_LIMITS = "limits for temporary files in memory"
    END = "all processes end with the command, and with the agent"


@dataclass(frozen=True)
class View:
    """What a program sees beside the system; names are absolute.

    `root` is the workspace, open as `root_fd`. `readable` folders of the machine are shown read-only. `read_only` pairs
    the handle of what lies in the workspace with its name. So does `pinned` for folders that cannot be moved or
    removed, outermost first; what is in them can be changed. `hidden_files` cannot be opened, and `hidden_folders` look
    empty; neither can be changed, moved or removed. `given` pairs the handle of a text with the name of the file that
    it becomes, and those of `replaced` files of the workspace. With `root_read_only` the workspace cannot be changed.
    """

    root: str
    root_fd: int
    cwd: str
    readable: tuple[str, ...] = ()
    pinned: tuple[tuple[int, str], ...] = ()
    read_only: tuple[tuple[int, str], ...] = ()
    hidden_files: tuple[str, ...] = ()
    hidden_folders: tuple[str, ...] = ()
    given: tuple[tuple[int, str], ...] = ()
    replaced: tuple[tuple[int, str], ...] = ()
    root_read_only: bool = False
    limits: processes.ResourceLimits = field(default_factory=processes.command_limits)

    @property
    def handles(self) -> tuple[int, ...]:
        """All handles that this view names."""
        return (self.root_fd, *(handle for handle, _ in (*self.pinned, *self.read_only, *self.given, *self.replaced)))


class SandboxedProcess(Protocol):
    """A program and all that it starts, inside a sandbox.

    The exit code of `process`, which runs outside of the sandbox, is the program's, or 128 and the signal. `watch`
    tells which limit is reached.
    """

    process: Popen[bytes]
    watch: processes.Watch | None

    def takers(self, stdout: processes.Taker, stderr: processes.Taker) -> Mapping[int, processes.Taker]:
        """The handles to read while the program runs, for `processes.read_until`."""
        ...

    def has_run(self) -> bool:
        """Whether the program itself was started, so that the exit code is its own."""
        ...

    def terminate(self) -> None:
        """Ask the program and its process group to end."""
        ...

    def kill(self) -> None:
        """Kill all that is in the sandbox, and wait until it is gone."""
        ...


class Sandbox(Protocol):
    """A way to start programs so that they reach a `View` and nothing else; it lives as long as the run."""

    @property
    def name(self) -> str:
        """The value of the setting `sandbox` that chooses it."""
        ...

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What it guarantees; the others are not held."""
        ...

    def problem(self) -> str | None:
        """Why it cannot start on this machine, with the remedy; None where it starts."""
        ...

    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> AbstractContextManager[SandboxedProcess | ToolError]:
        """Start `command` with this view; when the block ends, nothing of it is alive."""
        ...


class StatusReports:
    """What a sandbox reports on a handle, in lines of JSON: the first process, and the program's exit code."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._received = bytearray()

    def take(self, chunk: bytes) -> bool:
        """The next piece; for `processes.read_until`."""
        self._received += chunk
        return True

    def read_rest(self) -> None:
        """Take what has come. The handle does not block."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.handle, 4_096):
                self.take(chunk)

    def number(self, name: str) -> int | None:
        """The number that was reported under this name, if any was."""
        for line in bytes(self._received).splitlines():
            with suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict) and isinstance(report.get(name), int):
                    return int(report[name])

        return None


def not_limited(reason: str) -> ToolError:
    """UNAVAILABLE: a program must not run, as its limits could not be set."""
    message = f"A program was not started, as its limits could not be set ({reason})."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


@contextmanager
def text_handle(content: bytes) -> Iterator[int]:
    """A file in memory with this content, open for reading."""
    with closing(os.memfd_create("sandbox")) as handle:
        with open(handle, "wb", closefd=False) as stream:
            stream.write(content)

        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
