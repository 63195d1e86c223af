"""The files of a workspace, as guard's rules let them be used: by their names, and for what they hold."""

from collections.abc import Callable, Iterator
from functools import partial
from os.path import join, realpath, relpath
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mendgraph.nodes.execute_tools.files.file_reads import OpenedFile
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.store.run_folder import Identity, folder_identity, records_folders
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.guard.paths import folded_parts
from mendgraph.nodes.guard.policy import judge_content, judge_path
from mendgraph.nodes.records import JsonMap, ToolError

_MOST_WORKSPACES = 64


def judged_workspace(
    root: str,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
    observe: Callable[[JsonMap], None] | None = None,
    allowed_extensions: frozenset[str] = frozenset(),
) -> Workspace:
    """The workspace at `root` under these rules; see `Workspace` for the rest."""
    return Workspace(
        root,
        partial(judge_path, rules=rules),
        observe=observe,
        allowed_extensions=allowed_extensions,
        contents=partial(judge_content, rules=rules),
    )


class WorkspaceFiles(NamedTuple):
    """What a turn looks at before the model is asked."""

    workspace: Workspace

    def exists(self, path: str) -> bool:
        """Whether there is such a file, which a model may read."""
        workspace = self.workspace
        return workspace.exists(path)

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
        opened = workspace.open_file(path)
        if isinstance(opened, ToolError):
            return opened
        with opened:
            return opened.stream.read(most)


class RecordRules:
    """The rule by which the agent's own records are no files of a workspace, even where they lie in it.

    Where the links lead is looked up again once a name leads to another folder.
    """

    def __init__(self) -> None:
        """Nothing is looked up yet."""
        self._known: dict[tuple[str, ...], tuple[list[Identity | None], FileGuardrailRule | None]] = {}

    def rule(self, workspace: str) -> FileGuardrailRule | None:
        """What denies the records that lie below the workspace, a real name; None where none do."""
        folders = records_folders()
        key, identities = (workspace, *folders), [folder_identity(each) for each in folders]
        known = self._known.get(key)
        if known is None or known[0] != identities or None in identities:
            if len(self._known) >= _MOST_WORKSPACES:
                self._known.clear()
            known = self._known[key] = identities, _rule(workspace, folders)
        return known[1]


def _rule(workspace: str, folders: tuple[str, ...]) -> FileGuardrailRule | None:
    real = map(realpath, folders)
    inside = [relpath(each, workspace) for each in real if each.startswith(join(workspace, ""))]
    if not inside:
        return None
    records = [folded_parts(PurePosixPath(each)) for each in inside]

    def is_record(path: Path) -> bool:
        parts = folded_parts(path)
        return any(parts[: len(record)] == record for record in records)

    return FileGuardrailRule("run_records", "The agent's own records of its runs", is_record)
