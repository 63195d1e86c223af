"""The agent's own records are no files of a workspace, even where they lie in it."""

from os.path import join, realpath, relpath
from pathlib import Path, PurePosixPath

from nodes.execute_tools.environment.run_folder import Identity, folder_identity, records_folders
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.paths import folded_parts

_MOST_WORKSPACES = 64


class RecordRules:
    """The rule for each workspace. Where the links lead is looked up again once a name leads to another folder."""

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
