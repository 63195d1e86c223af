"""Starts the programs of a run, all of them inside the sandbox of the run."""

import functools
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

from mendgraph.nodes.execute_tools.commands.command_outputs import decoded
from mendgraph.nodes.execute_tools.commands.command_rules import (
    CommandRules,
    command_environment,
    entered_folder,
    find_program,
    own_installation,
    readable_folders,
)
from mendgraph.nodes.execute_tools.commands.protected_names import (
    make_protected_folders,
    protected_git,
    rename_guarded,
    settings_names,
)
from mendgraph.nodes.execute_tools.commands.repository_texts import repository_text
from mendgraph.nodes.execute_tools.commands.shown_folders import Hidden, ShownFolders
from mendgraph.nodes.execute_tools.commands.workspace_cover import ContentRule, Cover, NameRule, find_cover, never
from mendgraph.nodes.language.command_lines import ENVIRONMENT_PROGRAMS, SHELL, is_command_line
from mendgraph.nodes.language.command_lists import listed_commands
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, open_root
from mendgraph.nodes.workspace.files.sandbox import ContentJudge, JudgedPaths, PathAccess, check_workspace, is_below
from mendgraph.nodes.workspace.processes.git import enclosing_repository, linked_repository
from mendgraph.nodes.workspace.processes.processes import CapturedOutput, read_until
from mendgraph.nodes.workspace.processes.resource_limits import Limit, LimitReached, ResourceLimits
from mendgraph.nodes.workspace.sandboxes.backends import choose_sandbox
from mendgraph.nodes.workspace.sandboxes.private_folder import remove_abandoned
from mendgraph.nodes.workspace.sandboxes.sandbox import (
    SYSTEM_FOLDERS,
    Guarantee,
    Sandbox,
    SandboxedProcess,
    View,
    text_handle,
)

_SEARCH_S: Final = 5.0
"""Seconds in which the repository that holds the workspace must be searched."""

_MOST_CACHED: Final = 200_000
"""Names whose verdict is cached: a verdict takes about 10 us, and each command asks for those of all names."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code, outputs and time of a command; a failing exit code is a result as well.

    `timed_out`: it was ended after `limit_s` seconds. `limit` is the resource limit at which it ended or was ended.
    """

    exit_code: int
    stdout: CapturedOutput
    stderr: CapturedOutput
    seconds: float
    limit_s: float
    timed_out: bool = False
    limit: LimitReached | None = None

    @property
    def signal(self) -> int:
        """The signal that ended it, 0 for none; the exit code is then 128 more, as in a shell."""
        number = self.exit_code - 128
        return number if number in signal.valid_signals() else 0


def open_commands(
    root: str,
    rules: CommandRules,
    denied: NameRule,
    contents: ContentJudge = lambda _: None,
    guarded: NameRule = never,
    refused: NameRule = never,
) -> "Commands | ToolError":
    """Return the commands of a run in the workspace `root`; UNAVAILABLE, with reason and remedy, without a sandbox.

    `denied` judges workspace-relative names that no program may see, `refused` absolute names in readable folders, and
    `contents` files by their content. `guarded` judges names that no program may change; one that a program creates is
    renamed afterwards. Of the `commands` of the rules only those count whose programs are installed.
    """
    if isinstance(sandbox := choose_sandbox(rules.sandbox), ToolError):
        return sandbox
    if isinstance(real := check_workspace(root), ToolError):
        return real
    if isinstance(readable := readable_folders(rules), ToolError):
        return readable

    remove_abandoned()
    denied_cached = functools.lru_cache(_MOST_CACHED)(denied)
    protected = _names_below(real, rules.protected)
    settings = settings_names(protected)

    commands = Commands(
        root=real,
        rules=rules,
        env={**command_environment(real, readable), **dict(rules.variables)},
        sandbox=sandbox,
        _denied=denied_cached,
        _content_rule=ContentRule(contents),
        _shown_folders=ShownFolders(denied, contents, refused),
        _paths=JudgedPaths(real, lambda name, _: _denial(denied_cached, name)),
        _readable=readable,
        _repository=enclosing_repository(real),
        _protected=protected,
        _guarded=functools.lru_cache(_MOST_CACHED)(lambda name: name in settings or guarded(name)),
    )

    installed = tuple(line for line in rules.commands if commands.is_runnable(line))
    return replace(commands, rules=replace(rules, commands=installed))


def _names_below(root: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the workspace-relative names of these absolute names, and of their targets, that lie in the workspace."""
    names = set()

    for path in paths:
        folder, name = os.path.split(os.path.abspath(path))
        for real in (os.path.join(os.path.realpath(folder), name), os.path.realpath(path)):
            if real != root and is_below(real, root):
                names.add(os.path.relpath(real, root))

    return tuple(sorted(names))


def _denial(denied: NameRule, name: str) -> ToolError | None:
    if not denied(name):
        return None

    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"No command may run in {quoted(name)}.")


class _TimeLimit(NamedTuple):
    """The start of a command, by the monotonic clock, and the seconds that it may take."""

    started: float
    seconds: float

    @property
    def deadline(self) -> float:
        return self.started + self.seconds


@dataclass(frozen=True)
class Commands:
    """Starts programs in one workspace, one at a time, each inside the sandbox of the run.

    Created by `open_commands`. A program sees the workspace under its real name and may change it, except `.git`, the
    settings of mendgraph, and denied files, which it cannot open either. It can read the rest of the git repository
    that holds the workspace, unless that is too large. A file with a hard link outside of the workspace is changed
    there as well. When `scope` is revoked, no program is started and a running one is killed. `added_texts` are the
    contents of more files by their absolute names: below `/run`, or in place of files of the workspace.
    """

    root: str
    rules: CommandRules
    env: Mapping[str, str]
    sandbox: Sandbox
    _denied: NameRule
    _content_rule: ContentRule
    _shown_folders: ShownFolders
    _paths: JudgedPaths
    _readable: tuple[str, ...]
    _repository: str | None = None
    _protected: tuple[str, ...] = ()
    _guarded: NameRule = never
    scope: CancellationScope = field(default_factory=CancellationScope)
    added_texts: Mapping[str, bytes] = field(default_factory=dict)
    is_read_only: bool = False
    copy_deadline: float | None = None
    _too_large: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def in_scope(self, scope: CancellationScope) -> Self:
        """Return the commands for one tool call."""
        return replace(self, scope=scope)

    def permitting(self, argv: Sequence[str]) -> Self:
        """Return the commands with one more allowed program, which may see and change the same files."""
        listed = self.resolve(argv)
        if not isinstance(listed, ToolError) or listed.code is not ToolErrorCode.PERMISSION_DENIED:
            return self

        return replace(self, rules=replace(self.rules, programs=(*self.rules.programs, argv[0])))

    def is_runnable(self, line: str) -> bool:
        """Return whether the program of a command line is allowed, installed and visible."""
        return not isinstance(self.program(shlex.split(line)), ToolError)

    def read_only(
        self,
        added_texts: Mapping[str, bytes],
        env: Mapping[str, str],
        limits: ResourceLimits | None = None,
        readable: Sequence[str] = (),
    ) -> Self:
        """Return the commands for programs that may not change the workspace, with more variables.

        `readable` are the real names of more folders that they may read.
        """
        rules = replace(self.rules, limits=limits or self.rules.limits)
        folders = tuple(dict.fromkeys((*self._readable, *readable)))
        env = {**command_environment(self.root, folders), **dict(rules.variables), **env}

        return replace(self, is_read_only=True, added_texts=added_texts, env=env, rules=rules, _readable=folders)

    def on_copy(self, deadline: float) -> Self:
        """Return read-only commands for programs that write: each works on a copy, whose changes are discarded.

        The time limit of a program begins when its copy is made, and ends at `deadline` (of the monotonic clock) at the
        latest. UNAVAILABLE if the workspace is too large to be copied.
        """
        return replace(self, copy_deadline=deadline if self.is_read_only else None)

    def program(self, argv: Sequence[str], cwd: str = ".") -> str | ToolError:
        """Return the real name of the program that `run` would start, or the error."""
        path = self.resolve(argv, cwd)
        if isinstance(path, ToolError):
            return path

        name = argv[0]
        real = os.path.realpath(path)
        if not self._is_visible(real):
            message = f"{quoted(name)} cannot be run: no command sees this file."
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

        if not (os.path.isfile(real) and os.access(real, os.X_OK)):
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"{quoted(name)} is not a program.")

        with closing(open_root(self.root)) as root:
            folder = self._folder(root, cwd)

        return folder if isinstance(folder, ToolError) else real

    def resolve(self, argv: Sequence[str], cwd: str = ".") -> str | ToolError:
        """Return the absolute name of the program of a command, or why it may not, or cannot, be run."""
        path = self.env["PATH"]
        if argv[0] in ENVIRONMENT_PROGRAMS:
            folders = self._environments(cwd)
            if argv[1:2] == ["-m"]:  # that of the program of this name, such as pytest
                folders.sort(key=lambda folder: not os.path.exists(os.path.join(folder, *argv[2:3])))

            path = ":".join((*folders, path))

        return find_program(argv[0], self.rules, self.root, path, argv[1:])

    def started_argv(self, program: str, argv: Sequence[str], cwd: str) -> list[str]:
        """Return the command with the absolute name of its program.

        A list of commands calls programs of an environment by functions of the shell: PATH could have other ones.
        """
        command = [program, *argv[1:]]
        if not is_command_line(argv) or SHELL in self.rules.programs:
            return command

        functions: dict[str, str] = {}
        for words in listed_commands(argv[2]):
            resolved = self.resolve(words, entered_folder(argv, cwd))
            if words[0] in ENVIRONMENT_PROGRAMS and isinstance(resolved, str):
                folder, name = (shlex.quote(part) for part in (os.path.dirname(resolved), resolved))
                functions.setdefault(words[0], f'{words[0]}() {{ PATH={folder}:"$PATH" {name} "$@"; }}; ')

        return [*command[:2], f"{''.join(functions.values())}{argv[2]}"]

    def env_of(self, command: Sequence[str], cwd: str) -> Mapping[str, str]:
        """Return the variables of a command, whose program is an absolute name, in this folder.

        PATH begins with the folder of a program of an environment, and with those of all environments for a shell that
        may run any line.
        """
        is_line = is_command_line([os.path.basename(command[0]), *command[1:]])
        folders = self._environments(entered_folder(command, cwd) if is_line else cwd)
        if not is_line:
            folders = [folder for folder in folders if folder == os.path.dirname(command[0])]
        elif SHELL not in self.rules.programs:
            folders = []

        return {**self.env, "PATH": ":".join((*folders, self.env["PATH"]))}

    def _environments(self, cwd: str) -> list[str]:
        """Return the folders of Pythons that can be started; that of a subproject that holds `cwd` is the first."""
        folders = [
            os.path.dirname(python)
            for python in self.rules.pythons
            if os.access(python, os.X_OK) and self._is_visible(os.path.realpath(python))
        ]

        return sorted(folders, key=lambda folder: not self._is_of_subproject(folder, cwd))

    def _is_of_subproject(self, environment: str, cwd: str) -> bool:
        """Return whether the `bin` of an environment belongs to a project in a folder that holds `cwd`."""
        project = os.path.dirname(os.path.dirname(environment))
        is_subproject = project != self.root and is_below(project, self.root)
        return is_subproject and is_below(os.path.join(self.root, os.path.normpath(cwd)), project)

    def _is_visible(self, path: str) -> bool:
        if is_below(path, self.root):
            return not self._denied(os.path.relpath(path, self.root))
        if Guarantee.OUTSIDE_FILES not in self.sandbox.guarantees:
            return True

        folders = ["/usr", *SYSTEM_FOLDERS, *self._readable]
        if self._repository is not None:
            folders.append(self._repository)

        return any(is_below(path, folder) for folder in folders)

    def run(self, argv: Sequence[str], cwd: str = ".", timeout_s: float | None = None) -> CommandResult | ToolError:
        """Run a program without a shell and without input, and wait until all its processes have ended.

        `cwd` is a folder of the workspace. `timeout_s` seconds of wall time can shorten the limit of the rules.
        Raises ScopeOverError: the time of the call is over; all its processes are dead.
        """
        limit = self.rules.soft_timeout_s
        if timeout_s is not None:
            limit = min(timeout_s, self.rules.soft_timeout_s)

        time_limit = _TimeLimit(time.monotonic(), limit)
        program = self.resolve(argv, cwd)
        if isinstance(program, ToolError):
            return program

        self.scope.check()
        if limit <= 0:
            return ToolError(code=ToolErrorCode.TIMEOUT, message="There is no time left for a command.")

        if not self._lock.acquire(timeout=limit):
            message = f"Another command of this workspace did not end within {limit:g} s: run one at a time."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)

        try:
            with closing(open_root(self.root)) as root:
                return self._run_protected(root, self.started_argv(program, argv, cwd), cwd, time_limit)
        except ScopeOverError:
            raise
        except OSError as error:
            return os_failure(error, "run", argv[0])
        finally:
            self._lock.release()

    def _run_protected(
        self, root: int, command: Sequence[str], cwd: str, time_limit: _TimeLimit
    ) -> CommandResult | ToolError:
        """Run the command with the view that the rules allow."""
        with ExitStack() as stack:
            view = self.open_view(root, cwd, time_limit.deadline, stack)
            if isinstance(view, ToolError):
                return view

            if self.copy_deadline is None or not self.sandbox.mounts_root:
                return self._run_sandboxed(view, command, time_limit)

            from mendgraph.nodes.workspace.sandboxes.discarded_copy import discarded_copy

            copied = stack.enter_context(discarded_copy(view, self.copy_deadline, self.scope.check))
            if isinstance(copied, ToolError):
                return copied

            started = time.monotonic()
            seconds = min(time_limit.seconds, self.copy_deadline - started)
            return self._run_sandboxed(copied, command, _TimeLimit(started, seconds))

    def open_view(self, root: int, cwd: str, deadline: float, stack: ExitStack) -> View | ToolError:
        """Return the view that the rules allow, until `stack` is closed.

        Then a guarded name that was created meanwhile is renamed.
        """
        folder = self._folder(root, cwd)
        if isinstance(folder, ToolError):
            return folder

        if not self.is_read_only:
            problem = stack.enter_context(protected_git(root, deadline))
            if problem is not None:
                return problem

            make_protected_folders(root, self._protected)

        cover = find_cover(root, self._denied, deadline, self._content_rule, self._protected, self._guarded)
        if isinstance(cover, ToolError):
            return cover

        if not self.is_read_only:
            settings = settings_names(self._protected)
            stack.callback(rename_guarded, root, self._guarded, cover.guarded, settings)

        folders = self._shown_without_secrets(deadline, [*map(self._absolute, cover.files)])
        if isinstance(folders, ToolError):
            return folders

        readable, hidden = folders
        view = self._view(root, cover, hidden, stack)
        return replace(view, cwd=self._absolute(folder), readable=readable)

    def _shown_without_secrets(
        self, deadline: float, hidden_files: Sequence[str]
    ) -> tuple[tuple[str, ...], Hidden] | ToolError:
        """Return the folders that programs may read beside the workspace, and what has to be hidden in them.

        `hidden_files` are those of the workspace. The repository that holds it is left out, also later, if it cannot be
        searched soon.
        """
        folders = self._readable
        enclosing = self._repository
        linked = linked_repository(enclosing or self.root)
        find = functools.partial(
            self._shown_folders.find,
            root=self.root,
            repository=linked,
            installations=own_installation(),
            hidden_files=hidden_files,
        )

        if enclosing is not None and enclosing not in self._too_large:
            soon = min(deadline, time.monotonic() + _SEARCH_S)
            with_enclosing = (*folders, enclosing)
            hidden = find(with_enclosing, deadline=soon)
            if not isinstance(hidden, ToolError):
                return with_enclosing if linked is None else (*with_enclosing, linked), hidden

            self._too_large.add(enclosing)

        hidden = find(folders, deadline=deadline)
        if isinstance(hidden, ToolError):
            return hidden

        return folders if linked is None else (*folders, linked), hidden

    def _run_sandboxed(self, view: View, command: Sequence[str], time_limit: _TimeLimit) -> CommandResult | ToolError:
        stdout = CapturedOutput(most=self.rules.max_output_bytes)
        stderr = CapturedOutput(most=self.rules.max_output_bytes)

        with ExitStack() as stack:
            with self.scope.effect():
                running = stack.enter_context(self.sandbox.started(view, command, self.env_of(command, view.cwd)))

            if isinstance(running, ToolError):
                return running

            exceeded, in_time = self._wait(running, stdout, stderr, time_limit)
            running.kill()
            if in_time and not running.has_run() and running.process.returncode >= 0:
                stderr.translate(running.public_output)
                return _not_started(command[0], stderr)

            code = running.process.returncode
            code = code if code >= 0 else 128 - code
            seconds = time.monotonic() - time_limit.started
            limit_reached = exceeded

            if limit_reached is None and running.watch is not None:
                ends = b"\n".join(output.head + output.tail for output in (stdout, stderr))
                limit_reached = running.watch.failure_limit(code, ends)

            with self.scope.effect():
                stack.close()  # the sandbox may still change the workspace

            for line in running.error_lines:
                stderr.add(f"{line}\n".encode(errors="replace"))

            for output in (stdout, stderr):
                output.translate(running.public_output)

        return CommandResult(
            exit_code=code,
            stdout=stdout,
            stderr=stderr,
            seconds=seconds,
            limit_s=time_limit.seconds,
            timed_out=not in_time and exceeded is None,
            limit=limit_reached,
        )

    def _wait(
        self, running: SandboxedProcess, stdout: CapturedOutput, stderr: CapturedOutput, time_limit: _TimeLimit
    ) -> tuple[LimitReached | None, bool]:
        """Read the outputs until the end; returns the exceeded limit, if any, and whether the program ended in time."""
        most = self.rules.limits.output_bytes
        exceeded: LimitReached | None = None

        def check() -> None:
            nonlocal exceeded
            self.scope.check()
            limit_reached = running.watch.exceeded_limit() if running.watch is not None else None
            size = stdout.size + stderr.size
            if size > most:
                limit_reached = LimitReached(Limit.OUTPUT, size, most)

            if exceeded is None and limit_reached is not None:
                exceeded = limit_reached
                running.kill()

        handlers = running.output_handlers(stdout.add, stderr.add)
        in_time = read_until(running.process, handlers, time_limit.deadline, check)
        if not in_time:
            running.terminate()
            read_until(running.process, handlers, time_limit.deadline + self.rules.grace_s, check)

        return exceeded, in_time

    def _view(self, root: int, cover: Cover, hidden: Hidden, handles: ExitStack) -> View:
        """Return the view without `cwd` and readable folders; its handles are closed with `handles`."""

        def opened(names: Sequence[str]) -> Iterator[tuple[int, str]]:
            for name in names:
                handle = open_beneath(root, name.split("/"), os.O_PATH)
                yield handles.enter_context(closing(handle)), self._absolute(name)

        pinned: tuple[tuple[int, str], ...] = ()
        read_only: tuple[tuple[int, str], ...] = ()
        if not self.is_read_only:
            pinned = tuple(opened(cover.pinned))
            read_only = tuple(opened(cover.read_only))

        added: list[tuple[int, str]] = []
        replaced: list[tuple[int, str]] = []
        for name, text in self.added_texts.items():
            pairs = replaced if is_below(name, self.root) else added
            pairs.append((handles.enter_context(text_handle(text)), name))

        replaced += self._replaced_texts(root, cover.texts, hidden.texts, handles)

        return View(
            root=self.root,
            root_fd=root,
            cwd=self.root,
            pinned=pinned,
            read_only=read_only,
            hidden_files=(*map(self._absolute, cover.files), *hidden.files),
            hidden_folders=(*map(self._absolute, cover.folders), *hidden.folders),
            added_files=tuple(added),
            replaced_files=tuple(replaced),
            root_read_only=self.is_read_only,
            root_copied=self.copy_deadline is not None,
            limits=self.rules.limits,
        )

    def _replaced_texts(
        self, root: int, workspace_names: Sequence[str], readable_names: Sequence[str], handles: ExitStack
    ) -> Iterator[tuple[int, str]]:
        """Yield handle and name of each file of a repository that programs see without its logins."""
        for name in workspace_names:
            clean = repository_text(root, tuple(name.split("/")))
            if clean is not None:
                yield handles.enter_context(text_handle(clean)), self._absolute(name)

        for name in readable_names:
            folder, file_name = os.path.split(name)
            with suppress(OSError), closing(open_root(folder)) as parent:
                clean = repository_text(parent, (file_name,))
                if clean is not None:
                    yield handles.enter_context(text_handle(clean)), name

    def _folder(self, root: int, cwd: str) -> str | ToolError:
        """Return the workspace-relative name of an existing folder in which commands may run."""
        path = self._paths.existing(cwd, PathAccess.LIST_DIR)
        if isinstance(path, ToolError):
            return path

        try:
            with closing(open_beneath(root, path.parts, os.O_RDONLY | os.O_DIRECTORY)) as handle:
                return self._paths.opened_name(handle, root, path, for_write=False)
        except NotADirectoryError:
            return invalid(f"{quoted(cwd)} is a file: a command runs in a directory.")
        except OSError as error:
            return os_failure(error, "run in", cwd)

    def _absolute(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.root, name))


def _not_started(program: str, stderr: CapturedOutput) -> ToolError:
    reason = "the sandbox gave no reason"
    text = decoded(stderr.tail).strip() or decoded(stderr.head).strip()
    if text:
        reason = text.splitlines()[-1].removeprefix("bwrap: ")

    message = f"{quoted(program)} could not be started in the sandbox ({reason})."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
