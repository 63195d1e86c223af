"""A task that nobody watches: it works in a git worktree on a branch of its own, which may end in a commit."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.loading import load_prices
from mendgraph.graph.runs.run_words import command_line
from mendgraph.nodes.call_model.ledger import find_price
from mendgraph.nodes.execute_tools.copies import workspace_copies
from mendgraph.nodes.execute_tools.copies.copy_sources import installed_folders
from mendgraph.nodes.execute_tools.processes.git import find_identity
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.execute_tools.store.run_folder import data_folder, workspace_folder
from mendgraph.nodes.language.display import count_of, listed, short_id
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

_WORKTREES: Final = "worktrees"
_MAX_COST_USD: Final = 5.0


class Published(NamedTuple):
    """What is there at the end: the `branch`, its `commit`, the `worktree`, each "" where there is none.

    `words` say that to people; `problem` is what could not be done.
    """

    branch: str
    commit: str
    worktree: str
    words: str
    problem: ToolError | None = None


class Unattended(NamedTuple):
    """The worktree of a task, whose workspace is `root`."""

    root: str
    copy: workspace_copies.Copy
    request: workspace_copies.BranchRequest

    @property
    def run(self) -> str:
        """How the id of its run begins."""
        return self.copy.folder.rpartition("-")[2]

    def installed(self) -> tuple[str, ...]:
        """Folders of the person's own workspace that tests have to see: what was installed for the project."""
        return installed_folders(self.root)

    def first_words(self) -> Sequence[str]:
        """Where it works, what is not there, and how to go on if it is cut off."""
        where = f"It works on the branch {self.request.branch} from commit {self.copy.base[:9]}, in {self.root}"
        return (where, *self.copy.notes, f"If it is cut off, go on with: {command_line(self.root, 'resume')}")

    def _not_checked(self) -> ToolError:
        again = command_line(self.root, "resume", "--no-require-checks")
        message = (
            f"Nothing is committed, as no check has seen all changes. Look at them, then commit them with: {again}"
        )

        return ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)

    def publish(self, files: Sequence[str], *, finished: bool, checked: bool, message: str) -> Published:
        """Commit the changed files, if a commit is requested, and remove the worktree if all its changes are committed.

        A run that has not `finished` commits nothing and leaves its worktree. So does one with changes that are not
        `checked`, or for which no commit is requested.
        """
        branch = self.request.branch
        commit: workspace_copies.BranchCommit | ToolError = workspace_copies.BranchCommit("", {})
        if finished and files and self.request.commit:
            commit = self._commit(files, message, checked=checked)

        words = f"Nothing is committed: the work is on the branch {branch}, in {self.root}"
        if isinstance(commit, ToolError):
            return Published(branch, "", self.root, words, commit)
        if not finished or (files and not self.request.commit):
            return Published(branch, "", self.root, words)

        return self._remove_worktree(branch, commit, len(files))

    def _commit(
        self, files: Sequence[str], message: str, *, checked: bool
    ) -> workspace_copies.BranchCommit | ToolError:
        if not checked:
            return self._not_checked()

        identity = find_identity(self.root)
        if isinstance(identity, ToolError):
            return identity

        return workspace_copies.commit_branch(self.copy, files, message, identity)

    def _remove_worktree(self, branch: str, commit: workspace_copies.BranchCommit, files: int) -> Published:
        """Remove the worktree, unless it holds changes that are not committed."""
        message = "Nothing is committed"
        if commit.id:
            count = count_of(files - len(commit.left_out), "file")
            message = f"Committed {count} to the branch {branch} ({commit.id[:9]})"

        left_out = workspace_copies.remove_branch_copy(self.copy, branch)
        problem = None
        if isinstance(left_out, ToolError):
            problem = left_out
        elif left_out:
            return Published(branch, commit.id, self.root, f"{message}; {_uncommitted_words(left_out, self.root)}")

        if not commit.id:
            return Published("", "", "", "Nothing was changed: there is no commit, and no branch", problem)

        return Published(branch, commit.id, "", message, problem)


def _uncommitted_words(reasons: Mapping[str, str], root: str) -> str:
    """The files that stay in the worktree, grouped by their reasons."""
    parts = []
    for reason in dict.fromkeys(reasons.values()):
        names = [quoted(name) for name in reasons if reasons[name] == reason]
        verb = "stay"
        if len(names) == 1:
            verb = "stays"

        parts.append(f"{listed(names)} in {root} {verb} there, as {reason}")

    return "; ".join(parts)


def begin(workspace: str, task: str, run_id: str, *, commit: bool, report: str) -> Unattended | ToolError:
    """Create the worktree of a task; `commit` and `report` are those of `BranchRequest`.

    The error says what is missing: a repository, a commit in it, or an identity to commit with.
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

    return Unattended(branch_result.root, branch_result, commit_request)


def taken_up(root: str) -> Unattended | None:
    """The unattended task whose worktree holds this folder, None where there is none."""
    folder = os.path.join(os.path.realpath(data_folder()), _WORKTREES)
    real = os.path.realpath(root)
    name = os.path.relpath(real, folder).split(os.sep)[0]

    if name in {os.curdir, os.pardir}:
        copy = None
    else:
        copy = workspace_copies.open_copy(os.path.join(folder, name))

    if copy is None or copy.request is None:
        return None

    return Unattended(real, copy, copy.request)


def cost_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A limit on the cost, where the settings name one model, of which the price is known."""
    prices = load_prices()
    model = settings.get("model")
    unknown = not model or isinstance(prices, ToolError) or find_price(prices, model) is None

    if unknown or settings.get("fallback_models"):
        return {}

    return {"max_cost_usd": _MAX_COST_USD}
