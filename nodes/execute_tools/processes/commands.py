"""Programs that a run may start: which ones, what they learn of us, and how they run inside a sandbox.

The sandbox is safe by construction: there is no way around it.
"""

import functools
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Self

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_root
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge, JudgedPaths, PathAccess, check_workspace
from mendgraph.nodes.execute_tools.processes import processes, workspace_cover
from mendgraph.nodes.execute_tools.processes.backends import AUTO, choose_sandbox
from mendgraph.nodes.execute_tools.processes.repository_texts import RepositoryTexts
from mendgraph.nodes.execute_tools.processes.sandbox import (
    HOME,
    PROGRAM_FOLDERS,
    SCRATCH,
    SYSTEM_FOLDERS,
    Guarantee,
    Sandbox,
    View,
    text_handle,
)
from mendgraph.nodes.execute_tools.processes.shown_folders import Hidden, ShownFolders
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, os_failure, quoted

LONGEST_LAST_WORDS: Final = 1_500
"""Characters of an output that an error message repeats."""

_NEVER_SHOWN = ("/dev", "/proc", "/run", "/sys")
"""They lead to other processes, to devices and to services outside of the sandbox."""


@dataclass(frozen=True)
class CommandRules:
    """Which programs a run may start, and how.

    `programs` are allowed by bare name (`make`), or by exactly this path: absolute, or relative to the workspace. One
    with an absolute path may be called by its last part as well. After `soft_timeout_s` seconds a command is asked to
    end, `grace_s` later all of it is killed. Of each of its outputs `max_output_bytes` are kept, half of them from the
    end. `readable` are more folders of the machine that programs may read. `protected` are absolute names that no
    program may make, move or change where they lie in the workspace, whether they exist or not. `sandbox` is a kind of
    `choose_sandbox`.
    """

    programs: tuple[str, ...] = ()
    soft_timeout_s: float = 30.0
    grace_s: float = 0.2
    max_output_bytes: int = 16_000
    readable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    limits: processes.ResourceLimits = field(default_factory=processes.command_limits)
    sandbox: str = AUTO


def find_program(name: str, rules: CommandRules, root: str, path: str) -> str | ToolError:
    """The absolute name of an allowed program; a bare name is looked for on `path`, other names are below `root`."""
    if name not in rules.programs:
        absolute = [each for each in rules.programs if os.path.isabs(each) and os.path.basename(each) == name]
        if name and absolute:
            return os.path.normpath(absolute[0])

        if rules.programs:
            known_programs = f"allowed are {', '.join(rules.programs)}"
        else:
            known_programs = "no program is allowed"

        message = f"{quoted(name)} may not be run: {known_programs}."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=rules.programs)

    program = os.path.normpath(os.path.join(root, name)) if "/" in name else shutil.which(name, path=path)
    if program is not None:
        return program

    message = (
        f"The program {quoted(name)} is not installed where commands can see it. Whoever starts the run can allow it by"
        " its absolute path in `allowed_programs` (`--allow-program`), or show its folder in `readable_folders`."
    )

    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def readable_folders(rules: CommandRules) -> tuple[str, ...] | ToolError:
    """The real names of what is shown beside the system: where our own Python is installed, and what is asked for."""
    folders_found = [*own_installation()]

    for name in rules.readable:
        path = os.path.expanduser(name)
        real = os.path.realpath(path)
        unsafe = real == "/" or any(_is_below(real, folder) for folder in _NEVER_SHOWN)
        is_there = os.path.isdir(real) or os.path.isfile(real)  # a socket would lead out

        if not os.path.isabs(path) or not is_there or unsafe:
            message = (
                f"{quoted(name)} cannot be shown to commands: name an existing folder by its absolute path, and none of"
                f" / {' '.join(_NEVER_SHOWN)}."
            )

            return invalid(message)

        folders_found.append(real)

    return tuple(dict.fromkeys(folders_found))


def command_environment(root: str, readable: Sequence[str]) -> dict[str, str]:
    """All the variables that a program gets: no secrets, and nothing that leads back to our own virtualenv."""
    return {
        "PATH": ":".join(_program_folders(root, readable)),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": HOME,
        "TMPDIR": SCRATCH,
    }


def own_installation() -> tuple[str, ...]:
    """Where our Python is installed, unless that is the system or holds somebody's home."""
    prefix = os.path.realpath(sys.base_prefix)
    home = os.path.realpath(os.path.expanduser("~"))
    if _is_below(prefix, "/usr") or _is_below(home, prefix):
        return ()

    return (prefix,)


def _program_folders(root: str, readable: Sequence[str]) -> Iterator[str]:
    """Our PATH without the folders that a program cannot see, those of the workspace and of our own virtualenv."""
    folders_shown = ("/usr", *readable)

    if sys.prefix != sys.base_prefix:
        base_prefix = os.path.realpath(sys.prefix)
    else:
        base_prefix = None

    path_folders = [os.path.realpath(part) for part in os.environ.get("PATH", "").split(":") if os.path.isabs(part)]
    ours = [folder for folder_name in readable if os.path.isdir(folder := os.path.join(folder_name, "bin"))]
    system = [os.path.realpath(folder_name) for folder_name in PROGRAM_FOLDERS]

    for folder in dict.fromkeys((*path_folders, *ours, *system)):
        hidden = _is_below(folder, root) or (base_prefix is not None and _is_below(folder, base_prefix))
        if not hidden and (folder in system or any(_is_below(folder, shown_folder) for shown_folder in folders_shown)):
            yield folder


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")


_REMEMBERED = 200_000
"""Names whose judgement is remembered: judging one takes about 16 us, and each command asks about all."""


@dataclass(frozen=True)
class CommandResult:
    """What a command did. A failing exit code is a result as well.

    `timed_out` says that it was ended after `limit_s` seconds. `limit` is the one of its `ResourceLimits` at which it
    ended or was ended.
    """

    exit_code: int
    stdout: processes.Ends
    stderr: processes.Ends
    seconds: float
    limit_s: float
    timed_out: bool = False
    limit: processes.LimitReached | None = None

    @property
    def signal(self) -> int:
        """The one that ended it, 0 for none: as in a shell, the exit code is then 128 more."""
        number = self.exit_code - 128
        return number if number in signal.valid_signals() else 0


def open_commands(
    root: str,
    rules: CommandRules,
    denied: workspace_cover.Denied,
    contents: ContentJudge = lambda _: None,
    guarded: workspace_cover.Denied = lambda _: False,
    refused: workspace_cover.Denied = lambda _: False,
) -> "Commands | ToolError":
    """The commands of a run in the workspace `root`; UNAVAILABLE, with reason and remedy, where no sandbox starts.

    `denied` says which workspace-relative names no program may see, `refused` which absolute names in the `readable`
    folders, `contents` which files for what they hold, and `guarded` which names no program may change: where one of
    them makes such a name, it is renamed afterwards.
    """
    if isinstance(sandbox := choose_sandbox(rules.sandbox), ToolError):
        return sandbox
    if isinstance(real := check_workspace(root), ToolError):
        return real
    if isinstance(readable := readable_folders(rules), ToolError):
        return readable

    remembered = functools.lru_cache(_REMEMBERED)(denied)
    return Commands(
        root=real,
        rules=rules,
        env=command_environment(real, readable),
        _denied=remembered,
        _holds=workspace_cover.HeldSecrets(contents),
        _shown=ShownFolders(denied, contents, refused),
        _texts=RepositoryTexts(),
        _paths=JudgedPaths(real, lambda name, _: _judged(remembered, name)),
        _readable=readable,
        _protected=_names_below(real, rules.protected),
        _guarded=functools.lru_cache(_REMEMBERED)(guarded),
        sandbox=sandbox,
    )


def _names_below(root: str, places: Sequence[str]) -> tuple[str, ...]:
    """The names, relative to the workspace, under which these absolute names and what they link to lie in it."""
    names = set()

    for place in places:
        folder, name = os.path.split(os.path.abspath(place))
        for real in (os.path.join(os.path.realpath(folder), name), os.path.realpath(place)):
            if real != root and _is_below(real, root):
                names.add(os.path.relpath(real, root))

    return tuple(sorted(names))


def _judged(denied: workspace_cover.Denied, name: str) -> ToolError | None:
    message = f"No command may run in {quoted(name)}."
    if denied(name):
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    return None


@dataclass(frozen=True)
class Commands:
    """Starts programs in one workspace, one at a time, each inside the sandbox of the run.

    Made by `open_commands`. A program sees the workspace under its real name and may change it, but for `.git`, the
    settings of mendgraph, and denied files, which it cannot even open. A file with another name outside of the
    workspace, a hard link, is changed there as well. With `scope`, none is started once it is revoked, and one that
    runs is killed. `given` are texts that programs find under these absolute names: below `/run`, or those of files of
    the workspace, which hold something else then.
    """

    root: str
    rules: CommandRules
    env: Mapping[str, str]
    _denied: workspace_cover.Denied
    _holds: workspace_cover.HeldSecrets
    _shown: ShownFolders
    _texts: RepositoryTexts
    _paths: JudgedPaths
    _readable: tuple[str, ...]
    sandbox: Sandbox
    _protected: tuple[str, ...] = ()
    _guarded: workspace_cover.Denied = lambda _: False
    scope: CancellationScope = field(default_factory=CancellationScope)
    given: Mapping[str, bytes] = field(default_factory=dict)
    looks_only: bool = False
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def in_scope(self, scope: CancellationScope) -> Self:
        """The same commands for one call."""
        return replace(self, scope=scope)

    def permitting(self, program: str) -> Self:
        """The same commands, which may start this program as well; what it sees and may change stays as it is."""
        listed = find_program(program, self.rules, self.root, self.env["PATH"])
        if not isinstance(listed, ToolError) or listed.code is not ToolErrorCode.PERMISSION_DENIED:
            return self

        return replace(self, rules=replace(self.rules, programs=(*self.rules.programs, program)))

    def program(self, name: str, cwd: str = ".") -> str | ToolError:
        """The real name of the program that a command would start, or why none would be; nothing is started."""
        place = find_program(name, self.rules, self.root, self.env["PATH"])
        if isinstance(place, ToolError):
            return place

        real = os.path.realpath(place)
        folders_shown = ("/usr", *SYSTEM_FOLDERS, *self._readable, self.root)
        bounded = Guarantee.OUTSIDE_FILES in self.sandbox.guarantees
        is_visible = not bounded or any(_is_below(real, folder) for folder in folders_shown)
        is_hidden = _is_below(real, self.root) and self._denied(os.path.relpath(real, self.root))

        if is_hidden or not is_visible:
            message = f"{quoted(name)} cannot be run: no command sees this file."
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

        if not (os.path.isfile(real) and os.access(real, os.X_OK)):
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"{quoted(name)} is no program.")

        with closing(open_root(self.root)) as root:
            folder = self._folder(root, cwd)

        return folder if isinstance(folder, ToolError) else real

    def read_only(
        self,
        given: Mapping[str, bytes],
        env: Mapping[str, str],
        limits: processes.ResourceLimits | None = None,
        readable: Sequence[str] = (),
    ) -> Self:
        """The same commands for programs that may look at the workspace and change nothing, with more variables.

        `readable` are more folders that they may read, by their real names.
        """
        rules = replace(self.rules, limits=limits or self.rules.limits)
        folders_shown = tuple(dict.fromkeys((*self._readable, *readable)))
        env = {**command_environment(self.root, folders_shown), **env}

        return replace(self, looks_only=True, given=given, env=env, rules=rules, _readable=folders_shown)

    def run(self, argv: Sequence[str], cwd: str = ".", timeout_s: float | None = None) -> CommandResult | ToolError:
        """Run a program with its arguments, without a shell and without input, and wait until all of it is gone.

        `cwd` is a folder of the workspace. `timeout_s` seconds of wall time can only be less than the rules allow.
        Raises ScopeOverError: the call's time is over; nothing of the command is left.
        """
        if timeout_s is None:
            limit = self.rules.soft_timeout_s
        else:
            limit = min(timeout_s, self.rules.soft_timeout_s)

        started = time.monotonic()
        program = find_program(argv[0], self.rules, self.root, self.env["PATH"])
        if isinstance(program, ToolError):
            return program

        self._check_scope()
        if limit <= 0:
            return ToolError(code=ToolErrorCode.TIMEOUT, message="There is no time left for a command.")

        if not self._one_at_a_time.acquire(timeout=limit):
            message = f"Another command of this workspace did not end within {limit:g} s: run one at a time."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)

        try:
            with closing(open_root(self.root)) as root:
                return self._run(root, [program, *argv[1:]], cwd, (started, limit))
        except ScopeOverError:
            raise
        except OSError as error:
            return os_failure(error, "run", argv[0])
        finally:
            self._one_at_a_time.release()

    def _run(
        self, root: int, command: Sequence[str], cwd: str, times: tuple[float, float]
    ) -> CommandResult | ToolError:
        if isinstance(folder := self._folder(root, cwd), ToolError):
            return folder

        started, limit = times
        with ExitStack() as protection:
            problem = None

            if not self.looks_only:
                problem = protection.enter_context(workspace_cover.protected_git(root, started + limit))
                protection.enter_context(workspace_cover.kept_settings(root, self._protected))
                workspace_cover.make_protected_folders(root, self._protected)

            before = problem or workspace_cover.find_cover(
                root, self._denied, started + limit, self._holds, self._protected, self._guarded
            )

            if isinstance(before, ToolError):
                return before

            linked = workspace_cover.linked_repository(self.root)
            if linked is None:
                readable = self._readable
            else:
                readable = (*self._readable, linked)

            beside = self._shown.find(self._readable, self.root, started + limit, linked, own_installation())
            if isinstance(beside, ToolError):
                return beside

            with ExitStack() as handles:
                view = replace(self._view(root, before, beside, handles), cwd=self._absolute(folder), readable=readable)
                if not self.looks_only:
                    protection.callback(workspace_cover.set_aside, root, self._guarded, before.guarded)

                return self._wait(view, command, started, limit)

    def _wait(self, view: View, command: Sequence[str], started: float, limit: float) -> CommandResult | ToolError:
        stdout, stderr = (processes.Ends(most=self.rules.max_output_bytes) for _ in range(2))
        with ExitStack() as stack:
            with self.scope.effect():
                running = stack.enter_context(self.sandbox.started(view, command, self.env))

            if isinstance(running, ToolError):
                return running

            takers = running.takers(stdout.take, stderr.take)
            watch = running.watch
            exceeded = list[processes.LimitReached]()

            def check() -> None:
                self._check_scope()
                size = stdout.size + stderr.size
                most = self.rules.limits.output_bytes
                limit_reached = watch.look() if watch is not None else None

                if size > most:
                    limit_reached = processes.LimitReached(processes.Limit.OUTPUT, size, most)

                if not exceeded and limit_reached is not None:
                    exceeded.append(limit_reached)
                    running.kill()

            in_time = processes.read_until(running.process, takers, started + limit, check)
            if not in_time:
                running.terminate()
                processes.read_until(running.process, takers, started + limit + self.rules.grace_s, check)

            running.kill()
            if in_time and not running.has_run() and running.process.returncode >= 0:
                return _not_started(command[0], stderr)

            code = running.process.returncode
            code = code if code >= 0 else 128 - code
            last = b"\n".join(output.head + output.tail for output in (stdout, stderr))
            reached = watch.met(code, last) if watch else None
            seconds = time.monotonic() - started

            with self.scope.effect():
                stack.close()  # the sandbox may still change the workspace, and add to the outputs

        return CommandResult(
            exit_code=code,
            stdout=stdout,
            stderr=stderr,
            seconds=seconds,
            limit_s=limit,
            timed_out=not in_time and not exceeded,
            limit=exceeded[0] if exceeded else reached,
        )

    def _check_scope(self) -> None:
        with self.scope.effect():
            pass

    def _view(self, root: int, cover: workspace_cover.Cover, beside: Hidden, handles: ExitStack) -> View:
        def opened(names: Sequence[str]) -> Iterator[tuple[int, str]]:
            for name in names:
                handle = open_beneath(root, name.split("/"), os.O_PATH)
                yield handles.enter_context(closing(handle)), self._absolute(name)

        pinned = tuple[tuple[int, str], ...]()
        read_only = tuple[tuple[int, str], ...]()
        if not self.looks_only:
            pinned = tuple(opened(cover.pinned))
            read_only = tuple(opened((*cover.repositories, *cover.settings)))

        texts_given = [(handles.enter_context(text_handle(text)), name) for name, text in self.given.items()]
        inside = [text_given for text_given in texts_given if _is_below(text_given[1], self.root)]
        inside += self._repository_texts(root, cover.texts, beside.texts, handles)

        return View(
            root=self.root,
            root_fd=root,
            cwd=self.root,
            pinned=pinned,
            read_only=read_only,
            hidden_files=(*map(self._absolute, cover.files), *beside.files),
            hidden_folders=(*map(self._absolute, cover.folders), *beside.folders),
            given=tuple(text_given for text_given in texts_given if text_given not in inside),
            replaced=tuple(inside),
            root_read_only=self.looks_only,
            limits=self.rules.limits,
        )

    def _repository_texts(
        self, root: int, inside: Sequence[str], beside: Sequence[str], handles: ExitStack
    ) -> Iterator[tuple[int, str]]:
        """The handle of each text that a program sees in place of one of a repository, with that one's name."""
        for name in inside:
            clean = self._texts.replacement(root, tuple(name.split("/")), name)
            if clean is not None:
                yield handles.enter_context(text_handle(clean)), self._absolute(name)

        for name in beside:
            folder, file_name = os.path.split(name)
            with suppress(OSError), closing(open_root(folder)) as parent:
                clean = self._texts.replacement(parent, (file_name,), name)
                if clean is not None:
                    yield handles.enter_context(text_handle(clean)), name

    def _folder(self, root: int, cwd: str) -> str | ToolError:
        if isinstance(place := self._paths.existing(cwd, PathAccess.LIST_DIR), ToolError):
            return place

        try:
            with closing(open_beneath(root, place.parts, os.O_RDONLY | os.O_DIRECTORY)) as handle:
                return self._paths.opened_name(handle, root, place, for_write=False)
        except NotADirectoryError:
            return invalid(f"{quoted(cwd)} is a file: a command runs in a directory.")
        except OSError as error:
            return os_failure(error, "run in", cwd)

    def _absolute(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.root, name))


def _not_started(program: str, stderr: processes.Ends) -> ToolError:
    lines = stderr.tail.decode(errors="replace").strip() or stderr.head.decode(errors="replace").strip()
    reason = (lines.splitlines() or ["the sandbox gave no reason"])[-1].removeprefix("bwrap: ")
    message = f"{quoted(program)} could not be started in the sandbox ({reason})."

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def output_text(ends: processes.Ends) -> str:
    """The output as text; where bytes are left out, a line of its own says how many.

    Bytes that are no UTF-8 become U+FFFD, and NUL characters, which JSON and databases dislike, are dropped.
    """
    if not ends.left_out:
        return _decoded(ends.head + ends.tail)

    between = f"[... {ends.left_out} of {ends.size} bytes left out ...]"
    return f"{_decoded(ends.head)}\n{between}\n{_decoded(ends.tail)}"


def last_words(*outputs: processes.Ends) -> str:
    """The ends of the outputs that have something to say, one below the other."""
    texts = (_decoded(output.tail if output.left_out else output.head + output.tail) for output in outputs)
    return "\n".join(text.strip()[-LONGEST_LAST_WORDS:] for text in texts if text.strip())


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "")
