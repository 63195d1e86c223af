"""The backend that restricts programs by Landlock, for machines without user namespaces.

Landlock can only grant rights: below a folder that a program may use, nothing can be hidden. So a program works on a
copy of the workspace without denied files. Its changes are applied to the workspace after its end, except those of
checks. It can open no sockets but pairs of UNIX sockets. Names and metadata of files elsewhere stay visible. Source:
landlock(7).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.sandboxes import launcher
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateFolder, PrivateNames
from mendgraph.nodes.workspace.sandboxes.sandbox import HOME, SCRATCH, SYSTEM_FILES, SYSTEM_FOLDERS, Guarantee, View
from mendgraph.nodes.workspace.sandboxes.supervised import SupervisedProcess, supervised, supervision_problem
from mendgraph.nodes.workspace.sandboxes.workspace_copy import NotCopiedError, WorkspaceCopy

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
_ALL: Final = ~0

_TCP: Final = 0b11
_SCOPED: Final = 0b11
_SIZES: Final = {3: 8, 4: 16, 6: 24}
"""Bytes of `struct landlock_ruleset_attr`, by the version that extended it: files, network, scopes."""

_NO_SYSTEM_SETTINGS: Final = {"GIT_CONFIG_NOSYSTEM": "1"}
"""Git fails if `/etc/gitconfig` exists and cannot be read."""

_ACCOUNTS: Final = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_MISSING: Final = {
    Guarantee.OUTSIDE_NAMES,
    Guarantee.OTHER_PROCESSES,
    Guarantee.SIGNALS,
    Guarantee.SCRATCH_LIMITS,
}
"""What it cannot guarantee; signals only since `_SIGNALS_VERSION`."""


class Landlock:
    """The backend for machines without user namespaces, such as most containers."""

    name: Final = "landlock"
    mounts_root: Final = False

    def __init__(self) -> None:
        self._folder: PrivateFolder | None = None
        self._copy: WorkspaceCopy | None = None

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What it guarantees on this machine."""
        missing = _MISSING
        if launcher.landlock_version() >= _SIGNALS_VERSION:
            missing = _MISSING - {Guarantee.SIGNALS}

        return frozenset(Guarantee) - missing

    def problem(self) -> str | None:
        """Return why it cannot start on this machine, with the remedy; None if it can."""
        problem = supervision_problem()
        if problem is not None:
            return problem

        version = launcher.landlock_version()
        if version < LEAST_VERSION:
            return f"the kernel offers version {version} of Landlock, of which {LEAST_VERSION} is needed (Linux 6.2)"

        return None

    @contextmanager
    def started(
        self, view: View, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[SupervisedProcess | ToolError]:
        """Start `command` in a copy; at the end of the block its processes are dead and its changes are applied."""
        self._folder = folder = self._folder or PrivateFolder()
        self._copy = copy = self._copy or WorkspaceCopy(folder.folder("work"), view.root)

        try:
            copy.update(view)
        except NotCopiedError as error:
            message = f"The workspace cannot be copied for the sandbox 'landlock': {error}."
            yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
            return

        added_files = folder.add_files(view.added_files, copy.translate)
        folders = {HOME: folder.folder("home"), SCRATCH: folder.folder("tmp"), view.root: copy.root}
        repositories = {os.path.join(view.root, name): path for name, path in copy.repositories.items()}
        names = PrivateNames({name: name for name in view.readable} | repositories | folders | added_files)
        rules = [*_system_rules(), *_readable_rules(view)]
        rules += [(path, _LOOK) for path in (*copy.objects, *repositories.values(), folder.folder("files"))]
        rules.append((folder.folder("home"), _ALL))
        rules.append((folder.folder("tmp"), _ALL))
        is_writable = view.root_copied or not view.root_read_only
        rules.append((copy.root, _ALL if is_writable else _LOOK))

        try:
            with (
                closing(open_root(copy.root)) as copy_fd,
                supervised(
                    command,
                    {**env, **_NO_SYSTEM_SETTINGS},
                    names.translate(view.cwd),
                    names=names,
                    families=(),
                    limits=view.limits,
                    disk_fd=_disk(view, copy_fd),
                    landlock=_ruleset(rules),
                ) as running,
            ):
                yield running
                if isinstance(running, SupervisedProcess) and not view.root_read_only:
                    _apply_changes(copy, view, running)
        finally:
            folder.empty()


def _disk(view: View, copy_fd: int) -> int | None:
    """Return a handle on the disk that the program can fill: of the workspace if its changes are applied."""
    if view.root_copied:
        return copy_fd

    return None if view.root_read_only else view.root_fd


def _apply_changes(copy: WorkspaceCopy, view: View, running: SupervisedProcess) -> None:
    """Apply the program's changes; its error output ends with the names of those that were refused."""
    running.kill()

    try:
        refused = copy.apply_changes(view)
    except NotCopiedError as error:
        running.error_lines.append(f"mendgraph: the workspace was not changed: {error}")
        return

    for name in refused:
        running.error_lines.append(f"mendgraph: {name} was not changed in the workspace")


def _ruleset(rules: Sequence[tuple[str, int]]) -> dict[str, object]:
    """Return the ruleset that `launcher` describes: it grants these rights below these paths, and no others."""
    version = launcher.landlock_version()
    handled = _newest(_RIGHTS, version)
    granted = [(path, handled & rights & _rights_of(path)) for path, rights in rules]

    return {"fs": handled, "net": _TCP, "scoped": _SCOPED, "size": _newest(_SIZES, version), "rules": granted}


def _newest(by_version: Mapping[int, int], version: int) -> int:
    """Return the value of the newest version that is not newer than this one."""
    return by_version[max(since for since in by_version if since <= version)]


def _rights_of(path: str) -> int:
    """Return the rights that a rule for this path may name."""
    return _ALL if os.path.isdir(path) else _FILE_RIGHTS


def _system_rules() -> Iterator[tuple[str, int]]:
    for path in filter(os.path.exists, ("/usr", *SYSTEM_FOLDERS, *SYSTEM_FILES, *_ACCOUNTS)):
        yield path, _LOOK

    yield "/proc", _READ_FILE | _READ_DIR
    for path in filter(os.path.exists, _DEVICES):
        yield path, _READ_FILE | _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL


def _readable_rules(view: View) -> Iterator[tuple[str, int]]:
    """Yield the rules for readable folders, without what is hidden or replaced in them."""
    hidden = {*view.hidden_files, *view.hidden_folders, *(name for _, name in view.replaced_files)}
    for path in view.readable:
        yield from _rules_around(path, hidden)


def _rules_around(path: str, hidden: set[str]) -> Iterator[tuple[str, int]]:
    """Rules that grant reading below `path`, except what is hidden. Names of hidden files stay visible."""
    hidden_below = {name for name in hidden if name.startswith(f"{path}/")}
    if not hidden_below:
        yield path, _LOOK
        return

    yield path, _READ_DIR
    with os.scandir(path) as entries:
        names = [entry.path for entry in entries if not entry.is_symlink()]

    for name in names:
        if name not in hidden_below:
            yield from _rules_around(name, hidden_below)
