"""Programs below Landlock, where no user namespaces are to be had: they work on a copy of the workspace.

Landlock can only grant: below a folder that a program may use, nothing can be hidden. So a program gets a copy without
what it may not open, and its changes are applied to the workspace when it has ended. It has no sockets but pairs of
UNIX sockets. Names and metadata of files elsewhere are not covered. Source: landlock(7).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from mendgraph.nodes.execute_tools.processes import launcher
from mendgraph.nodes.execute_tools.processes.private_folder import PrivateFolder, PrivateNames
from mendgraph.nodes.execute_tools.processes.sandbox import HOME, SCRATCH, SYSTEM_FILES, SYSTEM_FOLDERS, Guarantee, View
from mendgraph.nodes.execute_tools.processes.supervised import SupervisedProcess, supervised, supervision_problem
from mendgraph.nodes.execute_tools.processes.workspace_copy import NotCopiedError, WorkspaceCopy
from mendgraph.nodes.records import ToolError, ToolErrorCode

LEAST_VERSION: Final = 3
"""From this version on, truncating a file needs a right. Source: landlock(7), "Truncation"."""

_SIGNALS_VERSION: Final = 6
"""From this version on, signals stay inside."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _DEVICE_CONTROL = 1 << 14, 1 << 15
_RIGHTS: Final = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights of files, by the version that brought the last of them."""
_FILE_RIGHTS: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
"""The rights that a rule for a file may name."""
_LOOK: Final = _EXECUTE | _READ_FILE | _READ_DIR

_TCP: Final = 0b11
_SCOPED: Final = 0b11
_SIZES: Final = {3: 8, 4: 16, 6: 24}
"""Bytes of `struct landlock_ruleset_attr`, by the version that extended it: files, network, scopes."""

_NO_SYSTEM_SETTINGS: Final = {"GIT_CONFIG_NOSYSTEM": "1"}
"""Git gives up where `/etc/gitconfig` is there and cannot be read."""

_ACCOUNTS: Final = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_GUARANTEES: Final = frozenset(
    {
        Guarantee.SYSTEM_CALLS,
        Guarantee.PRIVILEGES,
        Guarantee.OUTSIDE_FILES,
        Guarantee.DENIED_FILES,
        Guarantee.PROTECTED_FILES,
        Guarantee.READ_ONLY_CHECKS,
        Guarantee.NO_NETWORK,
        Guarantee.PROCESS_LIMITS,
        Guarantee.TOTAL_LIMITS,
        Guarantee.END,
    }
)


class Landlock:
    """The sandbox for machines without user namespaces, as in most containers."""

    name: Final = "landlock"

    def __init__(self) -> None:
        self._folder: PrivateFolder | None = None
        self._copy: WorkspaceCopy | None = None

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What it guarantees on this machine; the others are not held."""
        scopes_signals = launcher.landlock_version() >= _SIGNALS_VERSION
        if scopes_signals:
            return _GUARANTEES | {Guarantee.SIGNALS}

        return _GUARANTEES

    def problem(self) -> str | None:
        """Why it cannot start on this machine, with the remedy; None where it starts."""
        problem = supervision_problem()
        version = launcher.landlock_version() if problem is None else 0
        if problem is None and version < LEAST_VERSION:
            return f"the kernel offers version {version} of Landlock, of which {LEAST_VERSION} is needed (Linux 6.2)"

        return problem

    @contextmanager
    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[SupervisedProcess | ToolError]:
        """Start `command` in a copy; when the block ends without an error, its changes are in the workspace."""
        self._folder = folder = self._folder or PrivateFolder()
        self._copy = copy = self._copy or WorkspaceCopy(folder.folder("work"), view.root)

        try:
            copy.update(view)
        except NotCopiedError as error:
            message = f"The workspace cannot be copied for the sandbox 'landlock': {error}."
            yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
            return

        files_given = folder.give(view.given, copy.translate)
        places = {HOME: folder.folder("home"), SCRATCH: folder.folder("tmp"), view.root: copy.root}
        repositories = {os.path.join(view.root, name): path for name, path in copy.repositories.items()}
        names = PrivateNames({name: name for name in view.readable} | repositories | places | files_given)
        rules = [*_system_rules(), *_readable_rules(view)]
        rules += [(path, _LOOK) for path in (*copy.objects, *repositories.values(), folder.folder("given"))]
        rules += [(folder.folder(name), ~0) for name in ("home", "tmp")]
        rules.append((copy.root, _LOOK if view.root_read_only else ~0))

        try:
            with supervised(
                command,
                {**env, **_NO_SYSTEM_SETTINGS},
                names.translate(view.cwd),
                names=names,
                families=(),
                limits=view.limits,
                disk_fd=None if view.root_read_only else view.root_fd,
                landlock=_ruleset(rules),
            ) as running:
                yield running
                if isinstance(running, SupervisedProcess) and not view.root_read_only:
                    _apply_changes(copy, view, running)
        finally:
            folder.empty()


def _apply_changes(copy: WorkspaceCopy, view: View, running: SupervisedProcess) -> None:
    """Apply what the program has changed. What was not applied is named at the end of its error output."""
    running.kill()

    try:
        refused = copy.apply_changes(view)
    except NotCopiedError as error:
        running.add_error_line(f"mendgraph: the workspace was not changed: {error}")
        return

    for name in refused:
        running.add_error_line(f"mendgraph: {name} was not changed in the workspace")


def _ruleset(rules: Sequence[tuple[str, int]]) -> dict[str, object]:
    """The ruleset that `launcher` describes: nothing but what these rules grant."""
    version = launcher.landlock_version()
    rights = max((since, rights) for since, rights in _RIGHTS.items() if since <= version)[1]
    size = max(size for since, size in _SIZES.items() if since <= version)
    granted = [(path, rights & rights_wanted & _rights_of(path)) for path, rights_wanted in rules]

    return {"fs": rights, "net": _TCP, "scoped": _SCOPED, "size": size, "rules": granted}


def _rights_of(path: str) -> int:
    return ~0 if os.path.isdir(path) else _FILE_RIGHTS


def _system_rules() -> Iterator[tuple[str, int]]:
    for path in ("/usr", *SYSTEM_FOLDERS, *SYSTEM_FILES, *_ACCOUNTS):
        if os.path.exists(path):
            yield path, _LOOK

    yield "/proc", _READ_FILE | _READ_DIR
    for path in _DEVICES:
        if os.path.exists(path):
            yield path, _READ_FILE | _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL


def _readable_rules(view: View) -> Iterator[tuple[str, int]]:
    """The rules for what is shown beside the workspace, without what is hidden or replaced there."""
    hidden = {*view.hidden_files, *view.hidden_folders, *(name for _, name in view.replaced)}
    for path in view.readable:
        yield from _rules_around(path, {name for name in hidden if name.startswith(f"{path}/")})


def _rules_around(path: str, hidden: set[str]) -> Iterator[tuple[str, int]]:
    """Rules for all that is below `path` but what is hidden; the names of that can be seen."""
    if not hidden:
        yield path, _LOOK
        return

    yield path, _READ_DIR
    with os.scandir(path) as entries:
        names = [entry.path for entry in entries if not entry.is_symlink()]

    for name in names:
        if name not in hidden:
            yield from _rules_around(
                name, {hidden_name for hidden_name in hidden if hidden_name.startswith(f"{name}/")}
            )
