"""Unattended tasks: each works in a git worktree on its own branch, and may end with a commit."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.prices import load_prices
from mendgraph.graph.machine.workspace import file_versions, kept_content
from mendgraph.graph.runs.run_words import command_line
from mendgraph.graph.runs.runs import ListedRun, list_runs
from mendgraph.nodes.call_model.prices import find_price
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.language.display import count_of, listed, short_id
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.copies import workspace_copies
from mendgraph.nodes.workspace.copies.run_commits import commit_files
from mendgraph.nodes.workspace.processes.git import find_identity
from mendgraph.nodes.workspace.store.run_folder import data_folder, workspace_folder

_WORKTREES: Final = "worktrees"
_MAX_COST_USD: Final = 5.0
_NO_CHANGES: Final = "There is nothing to commit"


class PublishResult(NamedTuple):
    """The result of a task: its `branch`, its `commit` and the remaining `worktree`, each "" if there is none.

    `message` says it to people; `problem` is what could not be done.
    """

    branch: str
    commit: str
    worktree: str
    message: str
    problem: ToolError | None = None


class UnattendedTask(NamedTuple):
    """A task in its worktree; `root` is its workspace there."""

    root: str
    copy: workspace_copies.Copy
    request: workspace_copies.BranchRequest

    @property
    def run_prefix(self) -> str:
        """The beginning of the id of its run."""
        return self.copy.folder.rpartition("-")[2]

    @property
    def installed_folders(self) -> tuple[str, ...]:
        """Folders of the user's workspace that tests have to read: what is installed for the project."""
        return tuple(self.copy.installed.values())

    def start_messages(self, folder: str) -> Sequence[str]:
        """Return where it works, what is not in the copy, and how to continue in `folder` if it is interrupted."""
        where = f"The run works on the branch {self.request.branch} from commit {self.copy.base[:9]}, in {self.root}"
        resume = command_line(folder, "resume", self.run_prefix)
        return (where, *self.copy.notes, f"If it is interrupted, continue with: {resume}")

    def publish(self, files: Sequence[str], *, finished: bool, checked: bool, message: str) -> PublishResult:
        """Commit the changed files if requested, and remove the worktree if all its changes are committed.

        Nothing is committed, and the worktree stays, if the run has not `finished` or its changes are not `checked`.
        """
        branch = self.request.branch
        not_committed = (
            f"Nothing is committed: the changes are in the worktree {self.root}, and not yet on its branch {branch}"
        )
        if not finished or (files and not self.request.commit):
            return PublishResult(branch, "", self.root, not_committed)

        commit: workspace_copies.BranchCommit | ToolError = workspace_copies.BranchCommit("", {})
        if files:
            commit = self._commit(files, message, checked=checked)
        if isinstance(commit, ToolError):
            return PublishResult(branch, "", self.root, not_committed, commit)

        return self._remove_worktree(commit, len(files))

    def _commit(
        self, files: Sequence[str], message: str, *, checked: bool
    ) -> workspace_copies.BranchCommit | ToolError:
        if not checked:
            again = command_line(self.root, "resume", "--no-require-checks")
            reason = (
                f"Nothing is committed: no check has seen all changes. Look at them, then commit them with: {again}"
            )
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=reason)

        identity = find_identity(self.root)
        if isinstance(identity, ToolError):
            return identity

        return workspace_copies.commit_branch(self.copy, files, message, identity)

    def _remove_worktree(self, commit: workspace_copies.BranchCommit, files: int) -> PublishResult:
        """Remove the worktree, unless it has changes that are not committed."""
        branch = self.request.branch
        message = "Nothing is committed"
        if commit.id:
            count = count_of(files - len(commit.left_out), "file")
            message = f"Committed {count} to the branch {branch} ({commit.id[:9]})"

        left_out = workspace_copies.remove_branch_copy(self.copy, branch)
        problem = None
        if isinstance(left_out, ToolError):
            problem = left_out
        elif left_out:
            return PublishResult(
                branch, commit.id, self.root, f"{message}; {_uncommitted_message(left_out, self.root)}"
            )

        if not commit.id:
            return PublishResult("", "", "", "Nothing was changed: there is no commit, and no branch", problem)

        return PublishResult(branch, commit.id, "", message, problem)


def _uncommitted_message(reasons: Mapping[str, str], root: str) -> str:
    """Return which files stay in the worktree, grouped by their reasons."""
    parts = []
    for reason in dict.fromkeys(reasons.values()):
        names = [quoted(name) for name in reasons if reasons[name] == reason]
        part = f"{listed(names)} stay in {root} (for each: {reason})"
        if len(names) == 1:
            part = f"{names[0]} stays in {root} ({reason})"

        parts.append(part)

    return "; ".join(parts)


def begin_unattended(
    workspace: str, task: str, run_id: str, *, commit: bool, report: str
) -> UnattendedTask | ToolError:
    """Create the worktree of a task; `commit` and `report` are those of `BranchRequest`.

    The error says what is missing: a repository, a commit in it, or an author for commits.
    """
    path = os.path.abspath(workspace)
    if commit:
        identity = find_identity(path)
        if isinstance(identity, ToolError):
            return identity

    folder_of_runs = workspace_folder(path)
    if isinstance(folder_of_runs, ToolError):
        return folder_of_runs

    task = Redactor(known_values(os.environ)).text(task)
    words = "-".join(re.findall(r"[a-z0-9]+", task.lower())[:6])[:40]
    name = f"{words}-{short_id(run_id)}".strip("-")
    folder = os.path.join(os.path.abspath(data_folder()), _WORKTREES, name)
    commit_request = workspace_copies.BranchRequest(f"mendgraph/{name}", task, commit, report)
    branch_result = workspace_copies.make_branch(path, folder, commit_request)

    if isinstance(branch_result, ToolError):
        return branch_result

    return UnattendedTask(branch_result.root, branch_result, commit_request)


def commit_run(root: str, run_id: str, message: str) -> PublishResult | ToolError:
    """Commit what a run has changed in the user's own folder, to the current branch; see `commit_files`."""
    versions = file_versions(root, run_id)
    if isinstance(versions, ToolError):
        return versions

    if not versions:
        return PublishResult("", "", "", _NO_CHANGES)

    commit = commit_files(root, versions, partial(kept_content, root), message)
    if isinstance(commit, ToolError):
        return commit

    words = _NO_CHANGES
    if commit.id:
        words = f"Committed to the current branch ({commit.id[:9]})"
    if commit.is_detached:
        words = f"Committed to the detached HEAD ({commit.id[:9]}), which no branch has: `git branch NAME` keeps it"
    if commit.merged:
        words += f"; your own changes of {listed(map(quoted, commit.merged))} are not in it"
    if commit.left_out:
        words += f"; {_uncommitted_message(commit.left_out, root)}"

    return PublishResult("", commit.id, "", words)


def find_unattended(root: str) -> UnattendedTask | None:
    """Return the unattended task whose worktree contains this folder, if there is one."""
    folder = os.path.join(os.path.realpath(data_folder()), _WORKTREES)
    real = os.path.realpath(root)
    name = os.path.relpath(real, folder).split(os.sep)[0]

    if name in {os.curdir, os.pardir}:
        return None

    copy = workspace_copies.open_copy(os.path.join(folder, name))
    if copy is None or copy.request is None or copy.removed:
        return None

    return UnattendedTask(real, copy, copy.request)


class UnattendedRun(NamedTuple):
    """A recorded run and the worktree in which it works."""

    record: ListedRun
    worktree: workspace_copies.Copy

    @property
    def branch(self) -> str:
        """The branch of the worktree; "" if it was removed because the run changed nothing."""
        if self.worktree.request is None or (self.worktree.removed and not self.record.files):
            return ""

        return self.worktree.request.branch

    def missing_files(self) -> ToolError | None:
        """Return where the changes of the run are, if its worktree was removed."""
        if not self.worktree.removed:
            return None

        run = f"The unattended run {short_id(self.record.run_id)}"
        message = f"{run} changed no file, and its worktree was removed: start a new run."
        if self.branch:
            message = (
                f"{run} committed its changes to a branch, and its worktree was removed. See them with"
                f" `git diff {self.worktree.base[:9]} {self.branch}`; continue with `git switch {self.branch}`."
            )

        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def list_unattended(workspace: str) -> list[UnattendedRun]:
    """Return the runs of the worktrees that were made of this workspace, without those that cannot be read."""
    source = os.path.realpath(workspace)
    runs = []

    for worktree in workspace_copies.list_copies(os.path.join(os.path.abspath(data_folder()), _WORKTREES)):
        if worktree.source != source:
            continue

        records = list_runs(worktree.root)
        if not isinstance(records, ToolError):
            runs += [UnattendedRun(record, worktree) for record in records]

    return runs


def cost_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a limit on the cost if the settings name one model, with a known price."""
    prices = load_prices()
    model = settings.get("model")
    unknown = not model or isinstance(prices, ToolError) or find_price(prices, model) is None

    if unknown or settings.get("fallback_models"):
        return {}

    return {"max_cost_usd": _MAX_COST_USD}
