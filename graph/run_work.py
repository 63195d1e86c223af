"""What has come of a run so far: its plan, and a diff for each file that it has changed and nobody has taken back.

As in `graph.runs`, a run is named by the beginning of its id, and what can be expected to fail is a `ToolError`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from graph.judged_workspace import judged_workspace
from graph.open_store import with_store
from graph.step_history import newest_plan
from graph.store import Store
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.restoring import NetEffect, net_effects
from nodes.execute_tools.environment.sandbox import check_workspace
from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.tools.diffs import unified_diff
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from nodes.records import Plan, ToolError, ToolErrorCode


@dataclass(frozen=True)
class RunDiff:
    """What became of one file: a unified diff, or why there is none.

    `changed_since`: somebody else has changed the file after the run, and the diff has that in it.
    """

    path: str
    diff: str
    problem: str = ""
    changed_since: bool = False


def run_plan(run: str, workspace: str = ".") -> Plan | ToolError:
    """The plan of a run as it stands; one without steps where the model has made none."""

    def plan(store: Store) -> Plan | ToolError:
        found = store.run(run)
        return found if isinstance(found, ToolError) else newest_plan(store.saver, found.run_id)

    return with_store(workspace, plan)


def run_diffs(
    run: str, workspace: str = ".", *, rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES
) -> tuple[RunDiff, ...] | ToolError:
    """The diffs of a run's files in all its turns, by path; none for a file that is again as it was.

    A file that the `rules` deny is named without its text, and so is one that is no text or was too large to be kept.
    """

    def diffs(store: Store) -> tuple[RunDiff, ...] | ToolError:
        found = store.run(run)
        if isinstance(found, ToolError):
            return found
        journal = Journal(store.folder)
        files = judged_workspace(str(check_workspace(workspace)), rules)
        with journal.held():
            return tuple(_diffs(journal, files, net_effects(journal.changes_of(found.run_id))))

    return with_store(workspace, diffs)


def _diffs(journal: Journal, files: Workspace, effects: tuple[NetEffect, ...]) -> Iterator[RunDiff]:
    for effect in effects:
        now = files.read_file(effect.path)
        if isinstance(now, ToolError) and now.code is not ToolErrorCode.NOT_FOUND:
            yield RunDiff(effect.path, "", now.message)
            continue
        data, sha256 = (now.data, now.sha256) if isinstance(now, FileContent) else (b"", "")
        if sha256 == effect.before.sha256:
            continue
        before = journal.backup(effect.before.sha256) if effect.before.sha256 else b""
        since = sha256 != effect.after.sha256
        if before is None:
            yield RunDiff(effect.path, "", "what it held before was not kept, or is damaged", since)
        else:
            yield _diff(effect, before, data, gone=not sha256, since=since)


def _diff(effect: NetEffect, before: bytes, now: bytes, *, gone: bool, since: bool) -> RunDiff:
    try:
        old, new = before.decode(), now.decode()
    except UnicodeDecodeError:
        return RunDiff(effect.path, "", "it is no text", since)
    diff = unified_diff(effect.path, old if effect.before.sha256 else None, None if gone else new)
    return RunDiff(effect.path, diff, "" if diff else "only its line ends are others, or it is empty", since)
