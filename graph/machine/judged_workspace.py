"""The files of a workspace, as guard's rules let them be used: by their names, and for what they hold."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from os.path import basename, dirname, join, realpath, relpath
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mendgraph.graph.configuration.loading import user_places
from mendgraph.nodes.execute_tools.files.file_reads import OpenedFile
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.store.run_folder import Identity, folder_identity, records_folders
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.guard.paths import folded_parts
from mendgraph.nodes.guard.policy import judge_content, judge_path
from mendgraph.nodes.records import JsonMap, ToolError

_MOST_RULES = 128


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


def own_rules(workspace: str) -> tuple[FileGuardrailRule, ...]:
    """What denies the agent's own files, even where they lie below the workspace, which is a real name.

    Those are the records of its runs and the user's settings. Where the links of records lead is looked up again once
    a name leads to another folder.
    """
    folders, whole = records_folders(), join(workspace, "")
    records = _rule("run_records", "The agent's own records of its runs", whole, folders, _identities(folders))
    settings = _rule("user_settings", "The user's own settings of the agent", whole, user_places(), ())
    return tuple(rule for rule in (records, settings) if rule is not None)


def _identities(folders: Sequence[str]) -> tuple[Identity | None, ...]:
    return tuple(map(folder_identity, folders))


@dataclass(frozen=True)
class _Inside:
    """A rule's check: whether a path is one of these, or below one."""

    places: frozenset[tuple[str, ...]]

    def __call__(self, path: Path) -> bool:
        parts = folded_parts(path)
        return any(parts[:end] in self.places for end in range(1, len(parts) + 1))


@lru_cache(maxsize=_MOST_RULES)
def _rule(
    name: str,
    description: str,
    workspace: str,
    places: tuple[str, ...],
    _: tuple[Identity | None, ...],
) -> FileGuardrailRule | None:
    real = {join(realpath(dirname(each)), basename(each)) for each in places} | {realpath(each) for each in places}
    inside = (relpath(each, workspace) for each in real if each.startswith(workspace))
    found = frozenset(folded_parts(PurePosixPath(each)) for each in inside)
    return FileGuardrailRule(name, description, _Inside(found)) if found else None
