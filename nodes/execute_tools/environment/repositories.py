"""Git repositories that workspaces are in: which one, at which commit, and what of it is not committed."""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.git_program import (
    git_failure,
    is_dubious,
    run_git,
    users_safe_directories,
)
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.records import ToolError, ToolErrorCode

HEAD: Final = "HEAD"

OLDEST_GIT: Final = "2.31"
"""Which knows `--path-format`, and settings in the environment. Source: its release notes."""

_LONGEST_REVISION: Final = 1_000
_NO_REPOSITORY: Final = "not a git repository"
_FOUND: Final = ("--path-format=absolute", "--git-common-dir", "--is-bare-repository", "--show-object-format")


class Repository(NamedTuple):
    """The repository of the folder `path`. `common` is where all of its worktrees keep what they share.

    `prefix` is the folder's own name below the top of its worktree, "" for the top itself. `settings` are needed for
    every git command in it.
    """

    path: str
    common: str
    prefix: str
    object_format: str
    is_bare: bool
    settings: tuple[tuple[str, str], ...] = ()

    def run(self, *arguments: str, cwd: str | None = None) -> ProcessResult | ToolError:
        """What git says in this repository."""
        return run_git(arguments, cwd=self.path if cwd is None else cwd, settings=self.settings)

    def line(self, *arguments: str) -> str | None:
        """What git prints as one line; None where it fails."""
        found = self.run(*arguments)
        if isinstance(found, ToolError) or found.exit_code:
            return None
        return os.fsdecode(found.stdout).removesuffix("\n")


class Uncommitted(NamedTuple):
    """What is in a workspace and in no commit: names of `changed` files, and whether there are `untracked` ones."""

    changed: tuple[str, ...]
    untracked: bool


def find_repository(path: str) -> Repository | ToolError | None:
    """The repository that the folder is in; None where it is in none.

    PERMISSION_DENIED where git does not trust it, UNAVAILABLE where there is no git.
    """
    settings: tuple[tuple[str, str], ...] = ()
    found = run_git(("rev-parse", *_FOUND), cwd=path)
    if isinstance(found, ProcessResult) and is_dubious(found):
        settings = _trusted(users_safe_directories())
        found = run_git(("rev-parse", *_FOUND), cwd=path, settings=settings)
    if isinstance(found, ToolError):
        return found
    if found.exit_code:
        unknown = _NO_REPOSITORY in found.stderr.decode(errors="replace")
        return None if unknown else git_failure(found, "open the repository", path)
    if found.stdout.startswith(b"--"):  # an option that it does not know is repeated
        message = f"The program 'git' is too old for copies of workspaces: install {OLDEST_GIT} or newer."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    *common, is_bare, object_format = os.fsdecode(found.stdout).removesuffix("\n").split("\n")
    shared = os.path.realpath("\n".join(common))
    repository = Repository(path, shared, "", object_format, is_bare == "true", settings)
    prefix = "" if repository.is_bare else repository.line("rev-parse", "--show-prefix")
    named = repository._replace(prefix=(prefix or "").removesuffix("/"))
    return named._replace(settings=(*settings, *filters_off(named)))


def find_commit(repository: Repository, revision: str = "") -> str | ToolError:
    """The full id of the commit that the revision names, HEAD's for "".

    NOT_FOUND where there is none, INVALID_ARGUMENT for what is no revision.
    """
    problem = malformed_revision(revision)
    if problem is not None:
        return problem
    commit = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision or HEAD}^{{commit}}")
    if commit:
        return commit
    if not revision and repository.line("rev-list", "--all", "--max-count=1") == "":
        message = f"The repository {quoted(repository.path)} has no commit yet: commit what is there first."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    message = (
        f"There is no commit {quoted(revision or HEAD)} in the repository {quoted(repository.path)}: name a branch, a"
        " tag or a commit that is there (git fetch brings what is only on a server)."
    )
    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def malformed_revision(revision: str) -> ToolError | None:
    """Why this cannot be a revision, or None."""
    odd = not revision.isprintable() or len(revision) > _LONGEST_REVISION
    if not odd and not revision.startswith("-") and revision == revision.strip():
        return None
    message = f"{quoted(revision)} is no git revision: name a branch, a tag or a commit."
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def find_tree(repository: Repository, commit: str) -> str | None:
    """The id of the workspace's own tree in the commit; None where it is not in there."""
    if not repository.prefix:
        return repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")
    name = f"{commit}:{repository.prefix}"
    tree = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", name)
    return tree if tree and repository.line("cat-file", "-t", tree) == "tree" else None


def find_uncommitted(repository: Repository) -> Uncommitted | ToolError:
    """What of the workspace is not as in HEAD."""
    if repository.is_bare:
        return Uncommitted((), untracked=False)
    found = repository.run(
        "status", "--porcelain=v2", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--", "."
    )
    if isinstance(found, ToolError):
        return found
    if found.exit_code:
        return git_failure(found, "look for changes in", repository.path)
    return _uncommitted(found.stdout.split(b"\0")[:-1])


def _uncommitted(entries: Sequence[bytes]) -> Uncommitted:
    """Read the entries of `git status --porcelain=v2 -z`. Source: git-status(1)."""
    changed: list[str] = []
    untracked, rest = False, iter(entries)
    for entry in rest:
        kind = entry[:1]
        if kind == b"?":
            untracked = True
            continue
        changed.append(os.fsdecode(entry.split(b" ", {b"1": 8, b"2": 9, b"u": 10}.get(kind, 0))[-1]))
        if kind == b"2":
            next(rest, None)  # the name that the file had before
    return Uncommitted(tuple(changed), untracked)


def _trusted(folders: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The user's own words about whom git may trust; a setting that is given once can hold one value only."""
    return tuple(("safe.directory", folder) for folder in folders)


def filters_off(repository: Repository, cwd: str | None = None) -> tuple[tuple[str, str], ...]:
    """Settings by which no program that the repository's configuration names changes a file on its way out.

    `cwd` is a worktree, in which other parts of the configuration may hold.
    """
    found = repository.run("config", "--null", "--name-only", "--get-regexp", r"^filter\.", cwd=cwd)
    if isinstance(found, ToolError) or found.exit_code:
        return ()
    names = {os.fsdecode(each).rpartition(".")[0] for each in found.stdout.split(b"\0")[:-1]}
    off = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return tuple((f"{name}.{setting}", value) for name in sorted(names) for setting, value in off)


def object_folder(repository: Repository) -> str:
    """Where the repository keeps its objects."""
    return os.path.join(repository.common, "objects")


__all__ = [
    "HEAD",
    "Repository",
    "Uncommitted",
    "filters_off",
    "find_commit",
    "find_repository",
    "find_tree",
    "find_uncommitted",
    "malformed_revision",
    "object_folder",
]
