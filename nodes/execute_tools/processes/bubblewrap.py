"""Programs inside bubblewrap: what they see, what they may change, and how all of them end.

A program gets namespaces of its own, no capability and no new privileges. The system is read-only and small: no home,
no `/run`, no `/var`, of `/etc` only what programs need to start. What it must not touch in the workspace is mounted
over. Handles say what is mounted, so that no name is looked up twice. A seccomp filter refuses what namespaces do not
separate. Source: bwrap(1); measured with 0.8.0.
"""

import functools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Final

from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.processes import processes
from mendgraph.nodes.execute_tools.processes.sandbox import (
    HOME,
    PROGRAM_FOLDERS,
    SCRATCH,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    Guarantee,
    StatusReports,
    View,
    not_limited,
    text_handle,
)
from mendgraph.nodes.execute_tools.processes.seccomp import seccomp_filter
from mendgraph.nodes.records import ToolError, ToolErrorCode

_IN_MEMORY: Final = (SCRATCH, HOME, "/dev/shm")  # noqa: S108 - its own

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
_PATIENCE_MS = 2_000
"""How long killed programs are waited for."""


def sandbox_options(view: View, status_fd: int, block_fd: int, filter_fd: int) -> list[str]:
    """The options of bubblewrap for this view. Later mounts cover earlier ones.

    What bubblewrap did is reported as JSON on `status_fd`. The program starts when something comes from `block_fd`,
    with the seccomp filter that `filter_fd` holds.
    """
    options = [*_NAMESPACES, "--seccomp", str(filter_fd), *_system_options()]
    for handle, name in view.given:
        options += ("--perms", "0444", "--ro-bind-data", str(handle), name)

    options += ("--proc", "/proc", "--dev", "/dev")
    for name in _IN_MEMORY:
        options += ("--size", str(view.limits.scratch_bytes), "--tmpfs", name)

    for name in view.readable:
        options += ("--ro-bind", name, name)

    options += ("--ro-bind-fd" if view.root_read_only else "--bind-fd", str(view.root_fd), view.root)
    for handle, name in view.pinned:
        options += ("--bind-fd", str(handle), name)

    for handle, name in view.read_only:
        options += ("--ro-bind-fd", str(handle), name)

    for handle, name in view.replaced:
        options += ("--perms", "0755", "--ro-bind-data", str(handle), name)  # what it replaces may be a program

    for name in view.hidden_files:
        options += ("--ro-bind", "/dev/null", name)

    for name in view.hidden_folders:
        options += ("--tmpfs", name, "--remount-ro", name)

    options += ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")
    return [*options, "--chdir", view.cwd, "--json-status-fd", str(status_fd), "--block-fd", str(block_fd)]


def _system_options() -> list[str]:
    options = ["--ro-bind", "/usr", "/usr"]
    for name in (*SYSTEM_FOLDERS, *SYSTEM_FILES):
        linked = name in SYSTEM_FOLDERS and os.path.islink(name)
        options += ("--symlink", os.readlink(name), name) if linked else ("--ro-bind-try", name, name)

    return options


def bubblewrap_problem() -> str | None:
    """Why bubblewrap cannot start on this machine, with the remedy; None where it can.

    Found out by starting one, once in a process.
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
    """The `bwrap` program of the system, or None."""
    candidates = (os.path.join(folder, "bwrap") for folder in PROGRAM_FOLDERS)
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None)


@functools.cache
def _start_problem(program: str) -> str | None:
    with ExitStack() as stack:
        root, folder = (stack.enter_context(closing(open_root(name))) for name in ("/usr", "/usr/bin"))
        texts = stack.enter_context(_texts())
        view = View("/run/probe", root, "/", given=texts, read_only=((folder, "/run/probe/bin"),))
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


class Sandboxed:
    """A program and all that it starts, inside the sandbox.

    `process` is bubblewrap itself, outside of it; its exit code is the program's, or 128 and the signal. `watch`, once
    its limits are set, says which of them is reached.
    """

    def __init__(self, process: subprocess.Popen[bytes], status_fd: int) -> None:
        self.process = process
        self._reports = StatusReports(status_fd)
        self._first: int | None = None
        self._first_fd: int | None = None
        self.watch: processes.Watch | None = None

    def limit(self, view: View) -> ToolError | None:
        """Bound what the program may use, which does not run yet; UNAVAILABLE where that fails, and it must not run."""
        deadline = time.monotonic() + _PROBE_S
        report = select.poll()
        report.register(self._reports.handle, select.POLLIN)

        while self._first is None:
            if not report.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                return not_limited(f"bubblewrap reported no sandbox within {_PROBE_S:g} s")

            chunk = os.read(self._reports.handle, 4_096)
            if not chunk:
                return None  # it has ended, and says why

            self._learn(chunk)

        with suppress(OSError):  # an old kernel; bubblewrap's --die-with-parent does the same, a little later
            self._first_fd = os.pidfd_open(self._first)

        try:
            self.watch = processes.Watch(
                self._first, view.limits, _IN_MEMORY, None if view.root_read_only else view.root_fd
            )

            while not self.watch.opens() and self.process.poll() is None:
                if time.monotonic() > deadline:
                    return not_limited(f"bubblewrap mounted nothing within {_PROBE_S:g} s")

                time.sleep(_MOUNTING_S)
        except ProcessLookupError:  # the same
            return None
        except OSError as error:
            return not_limited(str(error))

        return None

    def takers(self, stdout: processes.Taker, stderr: processes.Taker) -> dict[int, processes.Taker]:
        """For `processes.read_until`."""
        out, err = processes.outputs(self.process)
        return {out: stdout, err: stderr, self._reports.handle: self._learn}

    def has_run(self) -> bool:
        """Whether the program itself was started, and so the exit code is its own."""
        self._reports.read_rest()
        return self._reports.number("exit-code") is not None

    def terminate(self) -> None:
        """Ask the program and its group to end."""
        if self._first is not None:
            with suppress(ProcessLookupError, PermissionError):  # its group exists from the moment when it is started
                os.killpg(self._first, signal.SIGTERM)

    def kill(self) -> None:
        """Kill all that is in the sandbox, whatever it has done to get away, and wait until it is gone."""
        if self._first_fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)

        processes.kill_group(self.process)
        self.process.wait()

        if self._first_fd is not None:  # the kernel ends the first process of a namespace after all the others
            gone = select.poll()
            gone.register(self._first_fd, select.POLLIN)
            gone.poll(_PATIENCE_MS)

    def close(self) -> None:
        """Close our handles."""
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

        if self._first_fd is not None:
            os.close(self._first_fd)

        if self.watch is not None:
            self.watch.close()

    def _learn(self, chunk: bytes) -> bool:
        self._reports.take(chunk)
        first = self._reports.number("child-pid")
        if self._first is None and first is not None and self.process.poll() is None:
            self._first = first

        return True


@contextmanager
def started(view: View, command: Sequence[str], env: Mapping[str, str]) -> Iterator[Sandboxed | ToolError]:
    """Start `command` inside a sandbox with this view, or say why not; when the block ends, nothing of it is alive."""
    program = bubblewrap_path()
    system_calls = seccomp_filter()
    if program is None or system_calls is None:
        yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"{bubblewrap_problem() or NOT_INSTALLED}.")
        return

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    # Datagrams have no end of file, which bubblewrap would take for the sign to start when the agent is killed.
    go, blocked = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    with closing(reader), go:
        with _texts() as texts, text_handle(system_calls) as filter_fd, closing(writer), blocked:
            view = replace(view, given=(*texts, *view.given))
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

        running = Sandboxed(process, reader)
        try:
            problem = running.limit(view)
            if problem is None:
                with suppress(ConnectionRefusedError):  # it has ended already, and says why
                    go.send(b"1")

            yield problem or running
        finally:
            running.kill()
            running.close()


def _options_file(options: Sequence[str]) -> AbstractContextManager[int]:
    """The options in a file, as they are too long for arguments."""
    return text_handle(b"".join(os.fsencode(option) + b"\0" for option in options))


@contextmanager
def _texts() -> Iterator[tuple[tuple[int, str], ...]]:
    """What a program finds in `/etc` instead of the machine's own: one account, one host."""
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
    """The sandbox that holds every guarantee; it needs user namespaces."""

    name: Final = "bubblewrap"
    guarantees: Final = frozenset(Guarantee)

    def problem(self) -> str | None:
        """Why it cannot start on this machine, with the remedy; None where it starts."""
        return bubblewrap_problem()

    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> AbstractContextManager[Sandboxed | ToolError]:
        """Start `command` with this view; when the block ends, nothing of it is alive."""
        return started(view, command, env)
