"""The workspace of a machine: its files, as guard's rules let them be used, and its records while a run works."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from os.path import basename, dirname, join, realpath, relpath
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final, NamedTuple, Self

from mendgraph.nodes.execute_tools.commands.protected_names import remove_placeholder
from mendgraph.nodes.execute_tools.files.change_records import ChangeState
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.files.text_files import LARGEST_TEXT, text_of
from mendgraph.nodes.execute_tools.files.tree_walk import IgnoreRules
from mendgraph.nodes.execute_tools.files.workspace import FileContent, OpenedFile, Workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.recovery import Recovered, recover
from mendgraph.nodes.execute_tools.run_call import describe_effect
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, WorkspaceLock
from mendgraph.nodes.execute_tools.store.user_files import user_skill_folders
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.guard.file_rules import (
    DEFAULT_GUARDRAIL_RULES,
    FileGuardrailRule,
    NameCheck,
    executed_rule,
    folded,
    folded_parts,
)
from mendgraph.nodes.guard.policy import judge_content, judge_path
from mendgraph.nodes.guard.scope import runs_later
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.project_notes import SKILL_FILE, SKILL_FOLDERS, SkillFolder
from mendgraph.nodes.records import FileChange, JsonMap, Mark, ToolError, ToolErrorCode


def judged_workspace(
    root: str,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
    observe: Callable[[JsonMap], None] | None = None,
    allowed_extensions: frozenset[str] = frozenset(),
) -> Workspace:
    """The workspace at `root` under these rules; see `Workspace` for the rest."""
    return Workspace(
        root,
        partial(judge_path, rules=rules, root=root),
        observe=observe,
        allowed_extensions=allowed_extensions,
        contents=partial(judge_content, rules=rules),
    )


class WorkspaceFiles(NamedTuple):
    """What a turn looks at before the model is asked."""

    workspace: Workspace

    def exists(self, path: str) -> bool:
        """Whether there is such a file, which a model may read."""
        return self.workspace.exists(path)

    def size_of(self, path: str) -> int:
        """The bytes of a file; 0 for what is none, or may not be read: the call will say so."""
        opened = self.workspace.open_file(path)
        if not isinstance(opened, OpenedFile):
            return 0

        with opened:
            return opened.size

    def readable(self) -> Iterator[tuple[str, int]]:
        """Paths and sizes in bytes of the files that guard lets a model read."""
        for entry in self.workspace.walk():
            if entry.kind == "file" and self.workspace.denied(entry.path) is None:
                yield entry.path, entry.size

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """The first bytes of a file; None where there is none, or why it is not read."""
        workspace = self.workspace
        if not workspace.exists(path):
            return workspace.denied(path)
        if isinstance(opened := workspace.open_file(path), ToolError):
            return opened

        with opened:
            return opened.stream.read(most)

    def skills(self) -> Iterator[SkillFolder]:
        """The folders of skills of the workspace."""
        for path in filter(self.workspace.exists, SKILL_FOLDERS):
            entries = self.workspace.list_directory(path)
            names = (
                () if isinstance(entries, ToolError) else tuple(basename(e.path) for e in entries if e.kind != "file")
            )
            yield SkillFolder(path, names, partial(self._skill_head, path))

    def _skill_head(self, folder: str, name: str, most: int) -> bytes | ToolError | None:
        return self.head(f"{folder}/{name}/{SKILL_FILE}", most)


def user_skills(workspace: str, rules: tuple[FileGuardrailRule, ...]) -> tuple[SkillFolder, ...]:
    """The user's folders of skills, but those of the workspace itself, whose real name is given."""
    own_folders = [join(workspace, path) for path in SKILL_FOLDERS]
    user_folders = user_skill_folders(own_folders)

    return tuple(
        SkillFolder(path, names, partial(_skill_head, path, rules), users=True) for path, names in user_folders
    )


def open_skill(
    folders: Sequence[SkillFolder], rules: tuple[FileGuardrailRule, ...], name: str
) -> Workspace | ToolError:
    """The folder of a skill, to be read as a workspace is; NOT_FOUND names those that are called like it."""
    for folder in folders:
        workspace = None
        if name in folder.names:
            workspace = _skill(folder.path, rules, name)

        if workspace is not None and workspace.exists(SKILL_FILE):
            return workspace

    meant = closest_names(name, [name_below for folder in folders for name_below in folder.names])
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"The user has no skill {name!r}.", suggestions=tuple(meant))


def _skill(folder: str, rules: tuple[FileGuardrailRule, ...], name: str) -> Workspace | None:
    root = check_workspace(join(folder, name))
    if isinstance(root, ToolError):
        return None
    return judged_workspace(root, rules)


def _skill_head(folder: str, rules: tuple[FileGuardrailRule, ...], name: str, most: int) -> bytes | ToolError | None:
    workspace = _skill(folder, rules, name)
    if workspace is None:
        return None
    return WorkspaceFiles(workspace).head(SKILL_FILE, most)


@lru_cache(maxsize=128)
def own_rules(workspace: str, records: tuple[str, ...], settings: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """What denies the agent's own files, even where they lie below the workspace, which is a real name.

    Those are the folders of `records` of its runs, and the user's `settings`.
    """
    rules = (
        FileGuardrailRule("run_records", "The agent's own records of its runs", _Inside.of(workspace, records)),
        FileGuardrailRule("user_settings", "The user's own settings of the agent", _Inside.of(workspace, settings)),
    )

    return tuple(rule for rule in rules if rule.check != _Inside(frozenset()))


@lru_cache(maxsize=128)
def executed_rules(workspace: str, files: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """What keeps the agent from changing those of the files, named by absolute names, that lie in the workspace."""
    root_prefix = join(workspace, "")
    inside = tuple(relpath(file, root_prefix) for file in files if file.startswith(root_prefix))
    return (executed_rule(inside),) if inside else ()


@lru_cache(maxsize=64)
def denied_rules(patterns: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """The rule that denies what these patterns of `.gitignore` name, whatever their letters' case; none for none."""
    if not patterns:
        return ()

    lines = (
        "/".join(map(folded, pattern.removeprefix("." * pattern.startswith("./")).split("/"))) for pattern in patterns
    )

    return (FileGuardrailRule("denied_paths", "Files that denied_paths names", _Denied(IgnoreRules.of(lines))),)


@dataclass(frozen=True)
class _Denied(NameCheck):
    rules: IgnoreRules

    def __call__(self, path: Path) -> bool:
        return self.rules.hides(folded_parts(path))


@dataclass(frozen=True)
class _Inside(NameCheck):
    """A rule's check: whether a path is one of these, or below one."""

    places: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, workspace: str, places: tuple[str, ...]) -> Self:
        root_prefix = join(workspace, "")
        real = {join(realpath(dirname(place)), basename(place)) for place in places} | {
            realpath(place) for place in places
        }
        inside = (relpath(path, root_prefix) for path in real if path.startswith(root_prefix))

        return cls(frozenset(folded_parts(PurePosixPath(path)) for path in inside))

    def __call__(self, path: Path) -> bool:
        parts = folded_parts(path)
        return any(parts[:end] in self.places for end in range(1, len(parts) + 1))


# --- Its records while a run works


LONGEST_WAIT_S = 30.0
"""How long a step waits for another run of the same workspace to end its own step."""


class TakenBack(NamedTuple):
    """What the outcome says of files that were restored, which these are, and the changes by which they were."""

    sentence: str
    restored: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()


class WorkspaceRecords:
    """Opens the journal of a workspace for one step at a time, with nobody else at work there."""

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        """`lock` is held while a step uses the journal: steps of children that run side by side share these records."""
        self._locked_elsewhere: set[str] = set()
        self._lock = lock or nullcontext()

    def for_children(self, workspace: str) -> "WorkspaceRecords":
        """The records for the children of a step that holds the workspace: their steps with effects take turns."""
        records = WorkspaceRecords(Lock())
        records.hold(workspace)
        return records

    def hold(self, workspace: str) -> None:
        """Whoever runs the machine has the workspace's lock for longer than a step."""
        self._locked_elsewhere.add(workspace)

    def release(self, workspace: str) -> None:
        """It has the lock no longer."""
        self._locked_elsewhere.discard(workspace)

    @contextmanager
    def journal(
        self, workspace: str, run_id: str, sink: TraceSink, *, needed: bool
    ) -> Iterator[Journal | ToolError | None]:
        """The journal, once what was left open in it is decided; None where it is not `needed`, or why there is none.

        UNAVAILABLE where another run works in the workspace, IO_ERROR where the journal cannot be used.
        """
        if not needed:
            yield None
            return

        folder = workspace_folder(workspace)
        if isinstance(folder, ToolError):
            yield folder
            return

        with ExitStack() as opened:
            opened.enter_context(self._lock)
            busy = None

            if workspace not in self._locked_elsewhere:
                lock = WorkspaceLock(folder)
                busy = lock.acquire(Owner(run_id), LONGEST_WAIT_S)
                if busy is None:
                    opened.callback(lock.release)

            yield busy or _opened(opened, folder, workspace, sink)

    def take_back(
        self, files: Workspace, run_id: str, first_step: int, sink: TraceSink, changed: Sequence[str]
    ) -> TakenBack:
        """Give the files the state that they had before the run's step `first_step`, but those changed by others.

        `changed` are the files that the run says it has changed; one that was not recorded stays, and is named.
        """
        from mendgraph.nodes.execute_tools.journal import restoring

        with self.journal(files.root, run_id, sink, needed=True) as journal:
            done: Journal | restoring.Restored | ToolError | None = journal
            try:
                if isinstance(journal, Journal):
                    done = restoring.restore(journal, files, run_id, first_step, skip_changed=True)

                if isinstance(journal, Journal) and isinstance(done, restoring.Restored):
                    effects = restoring.taken_back(journal, run_id, first_step)
                    commands = journal.commands(run_id, first_step)
                    changes = tuple(describe_effect(files, journal, effect) for effect in effects)
                    paths = tuple(change.path for change in changes)
                    others = [path for path in changed if path not in {*paths, *(file.path for file in done.left)}]
                    left_files = (
                        *done.left,
                        *(restoring.LeftFile(path, restoring.Obstacle.NOT_KEPT) for path in others),
                    )

                    return TakenBack(restoring.failed_work_message(paths, left_files, commands, run_id), paths, changes)
            except StoreError as error:
                done = ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

        why = done.message if isinstance(done, ToolError) else ""
        return TakenBack(f"The files could not be restored; `mendgraph undo` does that. {why}")


def kept_content(workspace: str, sha256: str) -> bytes | None:
    """The bytes with this hash that a file of the workspace held before a change; None where they are not kept."""
    with suppress(StoreError):
        return Journal(workspace_folder_path(workspace)).backup(sha256)

    return None


def first_hashes(workspace: str, run_id: str) -> dict[str, str]:
    """The hashes of what the files that a run has changed held before its first change, "" for new ones."""
    with suppress(StoreError):
        changes = Journal(workspace_folder_path(workspace)).changes_of(run_id)
        return {effect.path: effect.before.sha256 for change in changes for effect in reversed(change.effects)}

    return {}


LARGE_FILE: Final = 10_000_000
"""Bytes of a changed file from which on an outcome tells its size."""


def marks_of(files: Workspace, changes: Mapping[str, tuple[str, str]]) -> tuple[Mark, ...]:
    """What a person should know of these changed files, which come with their hashes before and after."""
    marks = [*_marks_of_tests(files, changes)]

    for path in (path for path, (_, new) in changes.items() if new):
        place = files.leads_to(path)
        size = WorkspaceFiles(files).size_of(path)
        if runs_later(PurePosixPath(path), new=not changes[path][0]) and not _only_pins(files, path, *changes[path]):
            marks.append(Mark(kind="runs_later", path=path))

        if place != path:
            if isinstance(place, ToolError):
                where = "out of the workspace"
            else:
                where = f"to {place}"

            marks.append(Mark(kind="link", path=path, detail=where))

        if size > LARGE_FILE:
            marks.append(Mark(kind="large", path=path, detail=f"{size / 1e6:,.0f} MB"))

    return tuple(marks)


def _marks_of_tests(files: Workspace, changes: Mapping[str, tuple[str, str]]) -> Iterator[Mark]:
    from mendgraph.nodes.execute_tools.evidence.weakened import has_settings, ignored_tests, is_test, weakened

    tests = {path: hashes for path, hashes in changes.items() if is_test(path)}
    moved = {new for _, new in tests.values()}
    texts = {
        path: _texts(files, path, *hashes) for path, hashes in tests.items() if hashes[1] or hashes[0] not in moved
    }
    less = weakened({path: text for path, text in texts.items() if text is not None})

    for path, contents in texts.items():
        if not tests[path][1] and (path in less or contents is None):
            yield Mark(kind="tests_deleted", path=path)
        elif path in less:
            yield Mark(kind="tests_weakened", path=path, detail=less[path])

    for path, (old, new) in changes.items():
        settings = None
        if has_settings(path):
            settings = _texts(files, path, old, new)

        if settings and (ignored := ignored_tests(*settings)):
            yield Mark(kind="tests_ignored", path=path, detail=ignored)


_PIN: Final = re.compile(r"(?m)^([ \t]*+(?:-[ \t]++)?(?:uses:[ \t]++[\w./-]++@|rev:[ \t]))[ \t]*+\S++(?:[ \t]++#.*)?$")
"""A line of a workflow, or of pre-commit's settings, that names the version of something, like those of a manifest."""


def _only_pins(files: Workspace, path: str, old: str, new: str) -> bool:
    """Whether all that changed in a file are the versions of what it uses."""
    texts = _texts(files, path, old, new) if old else None
    return texts is not None and len({_PIN.sub(r"\1", text) for text in texts}) == 1


def _texts(files: Workspace, path: str, old: str, new: str) -> tuple[str, str] | None:
    """The file before and after, "" where it was not there; None where that is not known, or is no text."""
    file = files.read_file(path) if new else FileContent.of(path, b"")
    contents = (kept_content(files.root, old) if old else b""), None if isinstance(file, ToolError) else file.data
    before, after = (None if data is None or len(data) > LARGEST_TEXT else text_of(data) for data in contents)

    if before is None or after is None:
        return None

    return (before, after)


def decide_open_changes(journal: Journal, workspace: str) -> tuple[Recovered, ...] | ToolError:
    """How each change that was cut off has ended; IO_ERROR where one could not be brought to an end."""
    try:
        recovered = recover(journal, workspace)
        if journal.commands(cut_off=True):
            remove_placeholder(workspace)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

    for change in recovered:
        if change.state is ChangeState.INTENDED:
            return ToolError(code=ToolErrorCode.IO_ERROR, message=change.sentence)

    return recovered


def _opened(stack: ExitStack, folder: str, workspace: str, sink: TraceSink) -> Journal | ToolError:
    """The journal, open until `stack` ends, after every change that was cut off has been decided."""
    try:
        journal = stack.enter_context(Journal(folder).connected())
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

    if isinstance(decided := decide_open_changes(journal, workspace), ToolError):
        return decided

    for change in decided:
        sink.emit("journal.recovered", {"state": change.state.value, "reason": change.sentence})

    return journal
