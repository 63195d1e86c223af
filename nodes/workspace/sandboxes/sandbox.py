"""The `Sandbox` protocol, which each backend implements, and what the backends share.

To add a backend, write one file beside this one, with a class that implements `Sandbox`, and add it to
`backends.BACKENDS`.
"""

import json
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from subprocess import Popen
from typing import Final, Protocol

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing
from mendgraph.nodes.workspace.processes import processes
from mendgraph.nodes.workspace.processes.processes import OutputHandler
from mendgraph.nodes.workspace.processes.resource_limits import ResourceLimits, Watch, command_limits

PROGRAM_FOLDERS: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where the system keeps programs."""

SYSTEM_FOLDERS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of the system beside `/usr`; on many systems they are links into it."""

SYSTEM_FILES: Final = (
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/mime.types", "/etc/os-release", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs"),
)
"""The files of `/etc` that programs may read: no accounts, no keys, no settings of the machine."""

HOME: Final = "/run/home"
"""The home of a program: empty at its start, removed at its end. No workspace can lie there."""

SCRATCH: Final = "/tmp"  # noqa: S108 - each sandbox has one of its own

DEEPEST: Final = 200
"""Levels of folders in a workspace in which programs run; a search opens a handle for each."""


class Guarantee(StrEnum):
    """What a sandbox can guarantee; `docs/security.md` has these sentences, too."""

    SYSTEM_CALLS = "kernel keys, `io_uring`, virtual sockets, mounts and namespaces are refused"
    PRIVILEGES = "no capabilities, and none can be gained"
    OUTSIDE_FILES = (
        "no file outside the workspace, its git repository, the system, "
        "`readable_folders` and the tests' tools can be opened"
    )
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
    """The files that a program sees beside those of the system. All names are absolute.

    `root` is the workspace, whose open handle is `root_fd`; with `root_read_only` the program cannot change it. With
    `root_copied`, a sandbox that copies the workspace lets it change the copy, and discards the changes. `readable`
    folders of the machine are shown read-only. Files and folders in `read_only` cannot be changed, folders in `pinned`
    (outermost first) cannot be moved or removed, but what they hold can be changed. `hidden_files` cannot be opened and
    `hidden_folders` look empty; neither can be changed, moved or removed. `added_files` appear outside of the
    workspace, and `replaced_files` hide files of the workspace or of a readable folder. The program inherits the
    handles in `inherited`.

    Pairs are an open handle and a name: of the file or folder itself in `pinned` and `read_only`, of the new content in
    `added_files` and `replaced_files`.
    """

    root: str
    root_fd: int
    cwd: str
    readable: tuple[str, ...] = ()
    pinned: tuple[tuple[int, str], ...] = ()
    read_only: tuple[tuple[int, str], ...] = ()
    hidden_files: tuple[str, ...] = ()
    hidden_folders: tuple[str, ...] = ()
    added_files: tuple[tuple[int, str], ...] = ()
    replaced_files: tuple[tuple[int, str], ...] = ()
    root_read_only: bool = False
    root_copied: bool = False
    limits: ResourceLimits = field(default_factory=command_limits)
    inherited: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[object, ...]:
        """Everything but handles and `cwd`: two views with equal names show the same."""
        pairs = (self.pinned, self.read_only, self.added_files, self.replaced_files)
        named = tuple(tuple(name for _, name in entries) for entries in pairs)
        modes = (self.root_read_only, self.root_copied)
        return (self.root, self.readable, *named, self.hidden_files, self.hidden_folders, *modes)

    @property
    def handles(self) -> tuple[int, ...]:
        """All handles of this view."""
        pairs = (*self.pinned, *self.read_only, *self.added_files, *self.replaced_files)
        return (self.root_fd, *(handle for handle, _ in pairs), *self.inherited)


class SandboxedProcess(ABC):
    """A program and all its descendants in a sandbox.

    `process` starts the program from outside of the sandbox; its exit code is the program's, or 128 and the signal. It
    reports on `status_fd`, in lines of JSON: `{"child-pid": N}` names the first process of the sandbox, which waits;
    `{"exit-code": N}` follows only if the program was executed. `watch` reports an exceeded limit. `error_lines` are
    added to the error output at the end.
    """

    def __init__(self, process: Popen[bytes], status_fd: int) -> None:
        self.process = process
        self.watch: Watch | None = None
        self.error_lines: list[str] = []
        self.status_fd = status_fd
        self.first: int | None = None
        self._reports = bytearray()

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes in the sandbox, and wait for their end."""

    def public_output(self, data: bytes) -> bytes:
        """Return the output with the names that the user knows."""
        return data

    def output_handlers(self, stdout: OutputHandler, stderr: OutputHandler) -> dict[int, OutputHandler]:
        """Return the handles to read while the program runs, for `processes.read_until`."""
        out, err = processes.outputs(self.process)
        return {out: stdout, err: stderr, self.status_fd: self.add_report}

    def add_report(self, chunk: bytes) -> bool:
        """Add the next chunk that was read from `status_fd`; an `OutputHandler`."""
        self._reports += chunk
        if self.first is None and self.process.poll() is None:
            self.first = self._reported_number("child-pid")

        return True

    def wait_for_first(self, timeout_s: float) -> ToolError | None:
        """Wait for the number of the first process; UNAVAILABLE after `timeout_s` seconds.

        `first` is still None if the process has ended; its error output says why.
        """
        deadline = time.monotonic() + timeout_s
        reports = select.poll()
        reports.register(self.status_fd, select.POLLIN)

        while self.first is None:
            if not reports.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                return not_limited(f"no process of the sandbox was reported within {timeout_s:g} s")

            chunk = os.read(self.status_fd, 4_096)
            if not chunk:
                return None

            self.add_report(chunk)

        return None

    def has_run(self) -> bool:
        """Return whether the program itself was started, so that the exit code is its own."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.status_fd, 4_096):
                self.add_report(chunk)

        return self._reported_number("exit-code") is not None

    def terminate(self) -> None:
        """Send SIGTERM to the program and its process group."""
        if self.first is not None and self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):  # its group exists once it is started
                os.killpg(self.first, signal.SIGTERM)

    def close(self) -> None:
        """Close the pipes and the handles of the watcher."""
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

        if self.watch is not None:
            self.watch.close()

    def _reported_number(self, name: str) -> int | None:
        for line in bytes(self._reports).splitlines():
            with suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict) and isinstance(report.get(name), int):
                    return int(report[name])

        return None


class Sandbox(Protocol):
    """Starts programs that can reach what their `View` shows and nothing else. An object lives as long as its run."""

    @property
    def name(self) -> str:
        """The value of the setting `sandbox` that selects it."""
        ...

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What it guarantees on this machine."""
        ...

    @property
    def mounts_root(self) -> bool:
        """Whether a program sees the folder `root_fd` of a view under the name `root`, wherever it is."""
        ...

    def problem(self) -> str | None:
        """Return why it cannot start on this machine, with the remedy; None if it can."""
        ...

    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> AbstractContextManager[SandboxedProcess | ToolError]:
        """Start `command` with this view; at the end of the block all its processes are dead."""
        ...


def not_limited(reason: str) -> ToolError:
    """UNAVAILABLE: a program must not run, as its limits could not be set."""
    message = f"A program was not started, because its limits could not be set ({reason})."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


@contextmanager
def text_handle(content: bytes) -> Iterator[int]:
    """A file in memory with this content, open for reading."""
    with closing(os.memfd_create("sandbox")) as handle:
        with open(handle, "wb", closefd=False) as stream:
            stream.write(content)

        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
