"""The workspace of a machine: its files under guard's rules, its journal during a step, and marks of changed files."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from os.path import basename, dirname, join, realpath, relpath
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final, NamedTuple, Self

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.execute_tools.commands.protected_names import remove_placeholder
from mendgraph.nodes.execute_tools.run_call import describe_effect
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
from mendgraph.nodes.language.project_notes import MOST_READ, MOST_SKILLS, SKILL_FILE, SKILL_FOLDERS, SkillFolder
from mendgraph.nodes.language.prompt_files import (
    AGENT_FOLDERS,
    COMMAND_FOLDERS,
    SUFFIX,
    PromptFile,
    agents_in,
    is_prompt_name,
    read_prompt_file,
)
from mendgraph.nodes.records import FileChange, JsonMap, Mark, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.change_records import ChangeState
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.files.text_files import LARGEST_TEXT, text_of
from mendgraph.nodes.workspace.files.tree_walk import IgnoreRules
from mendgraph.nodes.workspace.files.workspace import FileContent, OpenedFile, Workspace
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.journal.recovery import Recovered, recover
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import workspace_folder, workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, WorkspaceLock
from mendgraph.nodes.workspace.store.user_files import home_folders, user_skill_folders, with_tilde


def judged_workspace(
    root: str,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
    observe: Callable[[JsonMap], None] | None = None,
    allowed_extensions: frozenset[str] = frozenset(),
) -> Workspace:
    """Return the workspace at `root` under these rules; see `Workspace` for the other arguments."""
    return Workspace(
        root,
        partial(judge_path, rules=rules, root=root),
        observe=observe,
        allowed_extensions=allowed_extensions,
        contents=partial(judge_content, rules=rules),
    )


class WorkspaceFiles(NamedTuple):
    """The files that a turn may read before the model is called."""

    workspace: Workspace

    def exists(self, path: str) -> bool:
        """Return whether a model may read this file and it exists."""
        return self.workspace.exists(path)

    def size_of(self, path: str) -> int:
        """Return the bytes of a file; 0 if it cannot be read: the call will return the error."""
        opened = self.workspace.open_file(path)
        if not isinstance(opened, OpenedFile):
            return 0

        with opened:
            return opened.size

    def readable(self) -> Iterator[tuple[str, int]]:
        """Yield the paths and sizes in bytes of the files that a model may read."""
        for entry in self.workspace.walk():
            if entry.kind == "file" and self.workspace.denied(entry.path) is None:
                yield entry.path, entry.size

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """Return the first bytes of a file, None if it does not exist, or why it may not be read."""
        workspace = self.workspace
        if not workspace.exists(path):
            return workspace.denied(path)

        opened = workspace.open_file(path)
        if isinstance(opened, ToolError):
            return opened

        with opened:
            return opened.stream.read(most)

    def skills(self) -> Iterator[SkillFolder]:
        """Yield the folders of skills of the workspace."""
        for path in filter(self.workspace.exists, SKILL_FOLDERS):
            entries = self.workspace.list_directory(path)
            if isinstance(entries, ToolError):
                entries = ()

            names = tuple(basename(entry.path) for entry in entries if entry.kind != "file")
            yield SkillFolder(path, names, partial(self._skill_head, path))

    def _skill_head(self, folder: str, name: str, most: int) -> bytes | ToolError | None:
        return self.head(f"{folder}/{name}/{SKILL_FILE}", most)


def user_skills(workspace: str, rules: tuple[FileGuardrailRule, ...]) -> tuple[SkillFolder, ...]:
    """Return the user's folders of skills, except those of the workspace, which is a real path."""
    own_folders = [join(workspace, path) for path in SKILL_FOLDERS]
    user_folders = user_skill_folders(own_folders)

    return tuple(
        SkillFolder(path, names, partial(_skill_head, path, rules), users=True) for path, names in user_folders
    )


def open_skill(
    folders: Sequence[SkillFolder], rules: tuple[FileGuardrailRule, ...], name: str
) -> Workspace | ToolError:
    """Return the folder of a skill as a workspace; NOT_FOUND suggests skills with a similar name."""
    names: list[str] = []
    for folder in folders:
        names += folder.names
        workspace = _skill(folder.path, rules, name) if name in folder.names else None
        if workspace is not None and workspace.exists(SKILL_FILE):
            return workspace

    message = f"The user has no skill {name!r}."
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=tuple(closest_names(name, names)))


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


# --- Commands and agents in Markdown files

MOST_PROMPT_FILES: Final = 256
"""The maximum number of files in one folder of commands or agents."""


def command_files(root: str, rules: tuple[FileGuardrailRule, ...]) -> dict[str, PromptFile | ToolError]:
    """Return the commands and skills by name, or why they cannot be read.

    The user's go before those of the workspace at `root`, a real path: no repository replaces a command of its user.
    """
    workspace = WorkspaceFiles(judged_workspace(root, rules))
    return _first_by_name(
        _skill_files(user_skills(root, rules)),
        _user_prompt_files(COMMAND_FOLDERS, rules),
        _skill_files(workspace.skills()),
        *(_prompt_files(workspace, folder, folder) for folder in COMMAND_FOLDERS),
    )


def agent_files(root: str, rules: tuple[FileGuardrailRule, ...], *, users: bool) -> dict[str, PromptFile]:
    """Return the agents by name: those of the workspace at `root`, after the user's if `users`."""
    workspace = WorkspaceFiles(judged_workspace(root, rules))
    files = _first_by_name(
        _user_prompt_files(AGENT_FOLDERS, rules) if users else (),
        *(_prompt_files(workspace, folder, folder) for folder in AGENT_FOLDERS),
    )
    return agents_in(files.values())


_Candidate = tuple[str, str, bytes | ToolError | None]
"""The name and the path of a prompt file, and its bytes, why it cannot be read, or None if it does not exist."""


def _user_prompt_files(folders: Sequence[str], rules: tuple[FileGuardrailRule, ...]) -> Iterator[_Candidate]:
    for folder, path in home_folders(folders):
        root = check_workspace(path)
        if isinstance(root, str):
            yield from _prompt_files(WorkspaceFiles(judged_workspace(root, rules)), ".", f"~/{folder}")


def _prompt_files(workspace: WorkspaceFiles, folder: str, written: str) -> Iterator[_Candidate]:
    """Yield the Markdown files below a folder, which a person writes as `written`."""
    entries = (entry for entry in workspace.workspace.walk(folder) if entry.path.endswith(SUFFIX))

    for entry in islice(entries, MOST_PROMPT_FILES):
        path = relpath(entry.path, folder)
        name = path.removesuffix(SUFFIX).replace("/", ":")
        yield name, f"{written}/{path}", workspace.head(entry.path, MOST_READ + 1)


def _skill_files(folders: Iterable[SkillFolder]) -> Iterator[_Candidate]:
    for folder in folders:
        for name in sorted(folder.names)[:MOST_SKILLS]:
            path = with_tilde(f"{folder.path}/{name}/{SKILL_FILE}")
            yield name, path, folder.head(name, MOST_READ + 1)


def _first_by_name(*sources: Iterable[_Candidate]) -> dict[str, PromptFile | ToolError]:
    files: dict[str, PromptFile | ToolError] = {}
    for name, path, data in chain(*sources):
        if data is not None and name not in files and is_prompt_name(name):
            files[name] = read_prompt_file(name, path, data) if isinstance(data, bytes) else data

    return files


@lru_cache(maxsize=128)
def own_rules(workspace: str, records: tuple[str, ...], settings: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """Return the rules that deny the agent's own files in a workspace, which is a real path.

    These are the folders of `records` of its runs, and the user's `settings`.
    """
    rules = (
        FileGuardrailRule("run_records", "The agent's own records of its runs", _Inside.of(workspace, records)),
        FileGuardrailRule("user_settings", "The user's own settings of the agent", _Inside.of(workspace, settings)),
    )

    return tuple(rule for rule in rules if rule.check != _Inside(frozenset()))


def executed_files(files_of_servers: tuple[str, ...], context: AgentContext) -> tuple[str, ...]:
    """Return the absolute names of the files that MCP servers and hooks execute."""
    if context.hooks == "off":
        return files_of_servers

    from mendgraph.graph.hooks.claude_hooks import executed_by_hooks

    return (*files_of_servers, *executed_by_hooks(context.workspace))


@lru_cache(maxsize=128)
def executed_rules(workspace: str, files: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """Return the rule that protects those of the files, named by absolute paths, that are in the workspace."""
    root_prefix = join(workspace, "")
    inside = tuple(relpath(file, root_prefix) for file in files if file.startswith(root_prefix))
    return (executed_rule(inside),) if inside else ()


@lru_cache(maxsize=64)
def file_rules(denied_paths: Sequence[str]) -> tuple[FileGuardrailRule, ...]:
    """Return the default rules, and that of these `.gitignore` patterns."""
    return (*DEFAULT_GUARDRAIL_RULES, *denied_rules(tuple(denied_paths)))


def denied_rules(patterns: tuple[str, ...]) -> tuple[FileGuardrailRule, ...]:
    """Return the rule that denies what these `.gitignore` patterns match, in any case of letters."""
    if not patterns:
        return ()

    lines = []
    for pattern in patterns:
        anchored = pattern.removeprefix(".") if pattern.startswith("./") else pattern
        lines.append("/".join(map(folded, anchored.split("/"))))

    return (FileGuardrailRule("denied_paths", "Files that denied_paths names", _Denied(IgnoreRules.of(lines))),)


@dataclass(frozen=True)
class _Denied(NameCheck):
    rules: IgnoreRules

    def __call__(self, path: Path) -> bool:
        return self.rules.hides(folded_parts(path))


@dataclass(frozen=True)
class _Inside(NameCheck):
    """A rule's check: whether a path is one of these paths or below one."""

    places: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, workspace: str, places: tuple[str, ...]) -> Self:
        root_prefix = join(workspace, "")
        inside = set()
        for place in places:
            for path in (join(realpath(dirname(place)), basename(place)), realpath(place)):
                if path.startswith(root_prefix):
                    inside.add(folded_parts(PurePosixPath(relpath(path, root_prefix))))

        return cls(frozenset(inside))

    def __call__(self, path: Path) -> bool:
        parts = folded_parts(path)
        return any(parts[:end] in self.places for end in range(1, len(parts) + 1))


# --- The journal during a step

LONGEST_WAIT_S = 30.0
"""How long a step waits until another run of the workspace has ended its step."""


class RestoredWork(NamedTuple):
    """The sentence of the outcome on restored files, their paths, and the changes that restored them."""

    sentence: str
    paths: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()


class WorkspaceRecords:
    """Opens the journal of a workspace for one step at a time, while no other run works there."""

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        """`lock` is held while a step uses the journal: children that run side by side share these records."""
        self._locked_elsewhere: set[str] = set()
        self._lock = lock or nullcontext()

    def for_children(self, workspace: str) -> "WorkspaceRecords":
        """Return the records for the children of a step that has locked the workspace: one at a time has effects."""
        records = WorkspaceRecords(Lock())
        records.hold(workspace)
        return records

    def hold(self, workspace: str) -> None:
        """Note that the caller of the machine has locked the workspace for longer than a step."""
        self._locked_elsewhere.add(workspace)

    def release(self, workspace: str) -> None:
        """Note that the caller has unlocked the workspace."""
        self._locked_elsewhere.discard(workspace)

    @contextmanager
    def journal(
        self, workspace: str, run_id: str, sink: TraceSink, *, needed: bool
    ) -> Iterator[Journal | ToolError | None]:
        """Yield the journal after recovery of interrupted changes; None if it is not `needed`.

        UNAVAILABLE if another run works in the workspace, IO_ERROR if the journal cannot be used.
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
    ) -> RestoredWork:
        """Restore the files as they were before the run's step `first_step`, except those changed by others.

        Files that were changed only while a job was running stay, too: a person may have changed them.
        `changed` are the files that the run reports as changed; one without a record stays, and is named.
        """
        with self.journal(files.root, run_id, sink, needed=True) as journal:
            problem = journal
            try:
                if isinstance(journal, Journal):
                    restored = _restore(journal, files, run_id, first_step, changed)
                    if isinstance(restored, RestoredWork):
                        return restored
                    problem = restored
            except StoreError as error:
                problem = ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

        why = problem.message if isinstance(problem, ToolError) else ""
        return RestoredWork(f"The files could not be restored; `mendgraph undo` does that. {why}")


def _restore(
    journal: Journal, files: Workspace, run_id: str, first_step: int, changed: Sequence[str]
) -> RestoredWork | ToolError:
    from mendgraph.nodes.workspace.journal import restoring

    restored = restoring.restore(journal, files, run_id, first_step, skip_changed=True, skip_beside_jobs=True)
    if isinstance(restored, ToolError):
        return restored

    effects = restoring.effects_of_last_restore(journal, run_id, first_step)
    changes = tuple(describe_effect(files, journal, effect) for effect in effects)
    paths = tuple(change.path for change in changes)
    left = [*restored.left]
    known = {*paths, *(file.path for file in left)}
    left += [restoring.LeftFile(path, restoring.Obstacle.NOT_KEPT) for path in changed if path not in known]
    commands = journal.commands(run_id, first_step)
    return RestoredWork(restoring.failed_work_message(paths, tuple(left), commands, run_id), paths, changes)


def kept_content(workspace: str, sha256: str) -> bytes | None:
    """Return the bytes with this hash that a file held before a change; None if they are not kept."""
    with suppress(StoreError):
        return Journal(workspace_folder_path(workspace)).backup(sha256)

    return None


def first_hashes(workspace: str, run_id: str) -> dict[str, str]:
    """Return the hashes of a run's changed files before its first change, "" for new ones."""
    versions = file_versions(workspace, run_id)
    if isinstance(versions, ToolError):
        return {}

    return {path: hashes[-1] for path, hashes in versions.items()}


def file_versions(workspace: str, run_id: str) -> dict[str, list[str]] | ToolError:
    """Return the hashes that a run's changes have left and found of each file, newest first; "" is no file."""
    versions: dict[str, list[str]] = {}
    try:
        changes = Journal(workspace_folder_path(workspace)).changes_of(run_id)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

    for change in changes:
        for effect in reversed(change.effects):
            versions.setdefault(effect.path, []).extend((effect.after.sha256, effect.before.sha256))

    return versions


LARGE_FILE: Final = 10_000_000
"""Bytes above which an outcome marks a changed file as large."""


def marks_of(files: Workspace, changes: Mapping[str, tuple[str, str]]) -> tuple[Mark, ...]:
    """Return what a person should know of these changed files; `changes` has their hashes before and after."""
    marks = [*_marks_of_tests(files, changes)]

    for path in (path for path, (_, new) in changes.items() if new):
        place = files.leads_to(path)
        size = WorkspaceFiles(files).size_of(path)
        old, new = changes[path]
        if runs_later(PurePosixPath(path), new=not old) and not _changes_versions_only(files, path, old, new):
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


_VERSION_LINE: Final = re.compile(
    r"(?m)^([ \t]*+(?:-[ \t]++)?(?:uses:[ \t]++[\w./-]++@|rev:[ \t]))[ \t]*+\S++(?:[ \t]++#.*)?$"
)
"""A line of a workflow, or of pre-commit's settings, that names the version of something, like those of a manifest."""


def _changes_versions_only(files: Workspace, path: str, old: str, new: str) -> bool:
    """Return whether the versions of what a file uses are all that changed in it."""
    if not old:
        return False

    texts = _texts(files, path, old, new)
    if texts is None:
        return False

    before, after = texts
    return _VERSION_LINE.sub(r"\1", before) == _VERSION_LINE.sub(r"\1", after)


def _texts(files: Workspace, path: str, old: str, new: str) -> tuple[str, str] | None:
    """Return the text of a file before and after, "" if it did not exist; None if one is unknown or is not text."""
    file = files.read_file(path) if new else FileContent.of(path, b"")
    before = kept_content(files.root, old) if old else b""
    if before is None or isinstance(file, ToolError) or max(len(before), len(file.data)) > LARGEST_TEXT:
        return None

    old_text = text_of(before)
    new_text = text_of(file.data)
    if old_text is None or new_text is None:
        return None
    return old_text, new_text


def recover_open_changes(journal: Journal, workspace: str) -> tuple[Recovered, ...] | ToolError:
    """Complete or undo each interrupted change, and return them; IO_ERROR if one is still open."""
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
    """Return the journal, open until `stack` ends, after the recovery of interrupted changes."""
    try:
        journal = stack.enter_context(Journal(folder).connected())
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

    recovered = recover_open_changes(journal, workspace)
    if isinstance(recovered, ToolError):
        return recovered

    for change in recovered:
        sink.emit("journal.recovered", {"state": change.state.value, "reason": change.sentence})

    return journal
