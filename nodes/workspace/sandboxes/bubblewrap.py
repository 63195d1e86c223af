"""The backend that runs programs inside bubblewrap.

A program gets namespaces of its own, no capability and no new privileges. It sees a small, read-only part of the
system: no home, no `/run`, no `/var`, and of `/etc` only what programs need to start. Protected parts of the workspace
are mounted over. Mounts are described by handles, so that no name is looked up twice. A seccomp filter refuses what
namespaces do not separate. Source: bwrap(1); measured with 0.8.0.
"""

import functools
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from subprocess import Popen
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.processes import processes
from mendgraph.nodes.workspace.processes.resource_limits import Watch
from mendgraph.nodes.workspace.sandboxes.sandbox import (
    HOME,
    PROGRAM_FOLDERS,
    SCRATCH,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    Guarantee,
    SandboxedProcess,
    View,
    not_limited,
    text_handle,
)
from mendgraph.nodes.workspace.sandboxes.seccomp import seccomp_filter

_IN_MEMORY: Final = (SCRATCH, HOME, "/dev/shm")  # noqa: S108 - each sandbox has one of its own

NOT_INSTALLED: Final = (
    "bubblewrap is not installed: install your system's package of that name (on Debian and Ubuntu: apt install"
    " bubblewrap)"
)
_NAMESPACES: Final = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "sandbox"),
)
_PROBE_S = 10.0
_MOUNTING_S = 0.001
_KILL_WAIT_MS = 2_000
"""How long `kill` waits for killed programs."""


def sandbox_options(view: View, status_fd: int, block_fd: int, filter_fd: int) -> list[str]:
    """Return the options of bubblewrap for this view. Later mounts cover earlier ones.

    Bubblewrap reports its progress as JSON on `status_fd`. It starts the program when it can read from `block_fd`, with
    the seccomp filter of the file `filter_fd`.
    """
    options = [*_NAMESPACES, "--seccomp", str(filter_fd), *_system_options()]
    for handle, name in view.added_files:
        options += ("--perms", "0444", "--ro-bind-data", str(handle), name)

    options += ("--proc", "/proc", "--dev", "/dev")
    for name in _IN_MEMORY:
        options += ("--size", str(view.limits.scratch_bytes), "--tmpfs", name)

    for name in view.readable:
        options += ("--ro-bind", name, name)

    bind_root = "--ro-bind-fd" if view.root_read_only else "--bind-fd"
    options += (bind_root, str(view.root_fd), view.root)
    for handle, name in view.pinned:
        options += ("--bind-fd", str(handle), name)

    for handle, name in view.read_only:
        options += ("--ro-bind-fd", str(handle), name)

    for handle, name in view.replaced_files:
        options += ("--perms", "0755", "--ro-bind-data", str(handle), name)  # the replaced file may be a program

    for name in view.hidden_files:
        options += ("--ro-bind", "/dev/null", name)

    for name in view.hidden_folders:
        options += ("--tmpfs", name, "--remount-ro", name)

    options += ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
    return [*options, "--chdir", view.cwd, "--json-status-fd", str(status_fd), "--block-fd", str(block_fd)]


def _system_options() -> list[str]:
    options = ["--ro-bind", "/usr", "/usr"]
    for name in (*SYSTEM_FOLDERS, *SYSTEM_FILES):
        if name in SYSTEM_FOLDERS and os.path.islink(name):
            options += ("--symlink", os.readlink(name), name)
        else:
            options += ("--ro-bind-try", name, name)

    return options


def bubblewrap_problem() -> str | None:
    """Return why bubblewrap cannot start on this machine, with the remedy; None if it can.

    It starts one to find out, once in each process of the agent.
    """
    if sys.platform != "linux":
        return "programs are started inside bubblewrap, which exists for Linux only"
    if seccomp_filter() is None:
        return f"there is no seccomp filter for this machine's architecture, {os.uname().machine}"

    program = bubblewrap_path()
    if program is None:
        return NOT_INSTALLED

    return _start_problem(program)


def bubblewrap_path() -> str | None:
    """Return the `bwrap` program of the system, or None."""
    return shutil.which("bwrap", path=":".join(PROGRAM_FOLDERS))


@functools.cache
def _start_problem(program: str) -> str | None:
    with ExitStack() as stack:
        root = stack.enter_context(closing(open_root("/usr")))
        folder = stack.enter_context(closing(open_root("/usr/bin")))
        texts = stack.enter_context(_etc_files())
        view = View("/run/probe", root, "/", added_files=texts, read_only=((folder, "/run/probe/bin"),))
        filter_fd = stack.enter_context(text_handle(seccomp_filter() or b""))
        options = sandbox_options(view, status_fd=1, block_fd=0, filter_fd=filter_fd)
        file = stack.enter_context(_options_file(options))
        result = processes.run_process(
            [program, "--args", str(file), "--", "true"],
            cwd="/",
            timeout_s=_PROBE_S,
            max_output_bytes=10_000,
            env={"PATH": ":".join(PROGRAM_FOLDERS)},
            pass_fds=(file, filter_fd, *view.handles),
        )

    if isinstance(result, processes.ProcessResult):
        if result.exit_code == 0:
            return None

        lines = result.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {result.exit_code}"]
    else:
        lines = [result.message]

    remedy = "allow it user namespaces, and use 0.8 or newer with the security updates of your system"
    return f"bubblewrap is installed but cannot start here ({lines[0]}): {remedy}"


class BubblewrapProcess(SandboxedProcess):
    """A program inside bubblewrap; `process` is bubblewrap itself, outside of the sandbox."""

    def __init__(self, process: Popen[bytes], status_fd: int) -> None:
        super().__init__(process, status_fd)
        self._first_fd: int | None = None

    def limit(self, view: View) -> ToolError | None:
        """Set the limits of the program, which waits; UNAVAILABLE if that fails, and the program must not run."""
        deadline = time.monotonic() + _PROBE_S
        problem = self.wait_for_first(_PROBE_S)
        if problem is not None or self.first is None:
            return problem

        with suppress(OSError):  # an old kernel; bubblewrap's --die-with-parent does the same, a little later
            self._first_fd = os.pidfd_open(self.first)

        disk_fd = None if view.root_read_only else view.root_fd
        try:
            self.watch = Watch(self.first, view.limits, _IN_MEMORY, disk_fd)
            while not self.watch.try_open() and self.process.poll() is None:
                if time.monotonic() > deadline:
                    return not_limited(f"bubblewrap mounted nothing within {_PROBE_S:g} s")

                time.sleep(_MOUNTING_S)
        except ProcessLookupError:  # it has ended; its error output says why
            return None
        except OSError as error:
            return not_limited(str(error))

        return None

    def kill(self) -> None:
        """Kill all processes in the sandbox, also those that left its process group, and wait for their end."""
        if self._first_fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)

        processes.kill_group(self.process)
        self.process.wait()

        if self._first_fd is not None:  # the kernel ends the first process of a namespace after all the others
            end = select.poll()
            end.register(self._first_fd, select.POLLIN)
            end.poll(_KILL_WAIT_MS)

    def close(self) -> None:
        """Close all handles."""
        super().close()
        if self._first_fd is not None:
            os.close(self._first_fd)


def _options_file(options: Sequence[str]) -> AbstractContextManager[int]:
    """Return a file with the options, which are too long for a command line."""
    return text_handle(b"".join(os.fsencode(option) + b"\0" for option in options))


@contextmanager
def _etc_files() -> Iterator[tuple[tuple[int, str], ...]]:
    """Files that replace those of the machine in `/etc`: one account, one host."""
    user = os.getuid()
    group = os.getgid()
    texts = {
        "/etc/passwd": f"agent:x:{user}:{group}:agent:{HOME}:/bin/sh\n",
        "/etc/group": f"agent:x:{group}:\n",
        "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }

    with ExitStack() as stack:
        yield tuple((stack.enter_context(text_handle(text.encode())), name) for name, text in texts.items())


class Bubblewrap:
    """The backend with all guarantees; it needs user namespaces."""

    name: Final = "bubblewrap"
    mounts_root: Final = True
    guarantees: Final = frozenset(Guarantee)

    def problem(self) -> str | None:
        """Return why it cannot start on this machine, with the remedy; None if it can."""
        return bubblewrap_problem()

    @contextmanager
    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[BubblewrapProcess | ToolError]:
        """Start `command` with this view; at the end of the block all its processes are dead."""
        program = bubblewrap_path()
        system_calls = seccomp_filter()
        if program is None or system_calls is None:
            yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"{bubblewrap_problem() or NOT_INSTALLED}.")
            return

        with self._started(program, system_calls, view, command, env) as running:
            yield running

    @contextmanager
    def _started(
        self, program: str, system_calls: bytes, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[BubblewrapProcess | ToolError]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        # bubblewrap starts the program as soon as this handle is readable, also at end of file. A pipe would reach that
        # when the agent is killed; a datagram socket never does.
        go, blocked = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

        with closing(reader), go:
            with _etc_files() as texts, text_handle(system_calls) as filter_fd, closing(writer), blocked:
                view = replace(view, added_files=(*texts, *view.added_files))
                with _options_file(sandbox_options(view, writer, blocked.fileno(), filter_fd)) as file:
                    process = processes.start_process(
                        [program, "--args", str(file), "--", *command],
                        cwd="/",
                        env=env,
                        pass_fds=(file, writer, blocked.fileno(), filter_fd, *view.handles),
                    )

            if isinstance(process, ToolError):
                yield process
                return

            running = BubblewrapProcess(process, reader)
            try:
                problem = running.limit(view)
                if problem is None:
                    with suppress(ConnectionRefusedError):  # it has ended; its error output says why
                        go.send(b"1")

                yield problem or running
            finally:
                running.kill()
                running.close()
