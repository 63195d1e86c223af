"""Git: the program, the repositories of workspaces, and their linked worktrees.

Git reads no configuration of the user or the machine, starts no hooks and no filters, asks for no password and fetches
nothing.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, NamedTuple

from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import LONGEST_QUOTE, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.handles import (
    closing,
    lock_folder,
    open_directory,
    open_regular,
    open_root,
    read_beginning,
)
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.processes.processes import ProcessResult, run_process

GIT_TIMEOUT_S: Final = 1_800.0
"""A checkout of a very large repository on a busy disk takes minutes."""

LOCK_WAIT_S: Final = 60.0
"""How long to wait while another run adds or removes a worktree of the same repository."""

MOST_OUTPUT: Final = 1_000_000_000
"""Bytes: the list of the files of a very large repository."""

Settings = Sequence[tuple[str, str]]
"""Names and values of git's configuration; a name may occur more than once."""

SAFE_SETTINGS: Final[Settings] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.autocrlf", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.quotePath", "true"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
    ("checkout.workers", "1"),
    ("advice.detachedHead", "false"),
)
"""Settings of every command; they override those of the repository."""

_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_AUTHOR_NAME": "mendgraph",
    "GIT_AUTHOR_EMAIL": "mendgraph@localhost",
    "GIT_COMMITTER_NAME": "mendgraph",
    "GIT_COMMITTER_EMAIL": "mendgraph@localhost",
}
_DUBIOUS: Final = "dubious ownership"
_FULL: Final = {
    errno.ENOSPC: (b"No space left on device", b"Out of diskspace"),
    errno.EDQUOT: (b"Disk quota exceeded",),
}
"""Messages of git where the disk is full."""


def git_environment(settings: Settings = ()) -> dict[str, str]:
    """Return the whole environment of a git process, with `SAFE_SETTINGS` and these settings."""
    pairs = [*SAFE_SETTINGS, *settings]
    variables = {**_ENVIRONMENT, "GIT_CONFIG_COUNT": str(len(pairs))}
    if "PATH" in os.environ:
        variables["PATH"] = os.environ["PATH"]

    for number, (name, value) in enumerate(pairs):
        variables[f"GIT_CONFIG_KEY_{number}"] = name
        variables[f"GIT_CONFIG_VALUE_{number}"] = value

    return variables


def run_git(
    arguments: Sequence[str],
    *,
    cwd: str,
    settings: Settings = (),
    stdin: bytes = b"",
    max_output_bytes: int = MOST_OUTPUT,
    env: Mapping[str, str] | None = None,
) -> ProcessResult | ToolError:
    """Run git with these bytes as its input; return an error if it could not start or end, whatever its exit code.

    `env` replaces `git_environment(settings)`.
    """
    program = shutil.which("git")
    if program is None:
        needed = "The program 'git' is needed for copies of workspaces and for patches"
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"{needed}: install your system's package git.")

    with tempfile.TemporaryFile() if stdin else nullcontext() as stream:
        if stream is not None:
            stream.write(stdin)
            stream.seek(0)

        return run_process(
            [os.path.abspath(program), *arguments],
            cwd=cwd,
            timeout_s=GIT_TIMEOUT_S,
            max_output_bytes=max_output_bytes,
            env=git_environment(settings) if env is None else env,
            stdin=stream,
        )


def git_failure(result: ProcessResult, doing: str, path: str) -> ToolError:
    """Return the error of a failed action (such as "make a worktree of") on the repository at `path`, with a remedy."""
    error_text = result.stderr.decode(errors="replace")
    if _DUBIOUS in error_text:
        message = (
            f"Git does not trust the repository {quoted(path)}, which belongs to another user. If you trust it, run:"
            f" git config --global --add safe.directory {path!r}"
        )

        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    for number, messages in _FULL.items():
        if any(message in result.stderr for message in messages):
            return os_failure(OSError(number, os.strerror(number)), doing, path)

    message = f"Git could not {doing} {quoted(path)}: {_reason(error_text) or f'exit code {result.exit_code}'}."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _reason(error_text: str) -> str:
    """Return the first line of an error, or else the last line, without a full stop."""
    lines = [line for line in error_text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))]
    reason = (errors[:1] or lines[-1:] or [""])[0]
    return one_line(reason.removeprefix("fatal: ").removeprefix("error: ").strip(), LONGEST_QUOTE).rstrip(".")


def succeeded(result: ProcessResult | ToolError, doing: str, path: str) -> ProcessResult | ToolError:
    """Return the result, or an error if git has failed."""
    if isinstance(result, ToolError) or not result.exit_code:
        return result
    return git_failure(result, doing, path)


HEAD: Final = "HEAD"

OLDEST_GIT: Final = "2.31"
"""The first version with `--path-format`, and settings in the environment. Source: its release notes."""

_LONGEST_REVISION: Final = 1_000
_NO_REPOSITORY: Final = "not a git repository"
_QUERY: Final = ("--path-format=absolute", "--git-common-dir", "--is-bare-repository", "--show-object-format")


class Repository(NamedTuple):
    """The repository of the folder `path`. `common` is the folder that all its worktrees share.

    `prefix` is the name of `path` relative to the top of its worktree, "" for the top itself. Every git command in the
    repository needs `settings`.
    """

    path: str
    common: str
    prefix: str
    object_format: str
    is_bare: bool
    settings: tuple[tuple[str, str], ...] = ()

    def run(
        self, *arguments: str, cwd: str | None = None, stdin: bytes = b"", **variables: str
    ) -> ProcessResult | ToolError:
        """Run git in this repository, or in its worktree `cwd`, with more variables in its environment."""
        env = {**git_environment(self.settings), **variables}
        return run_git(arguments, cwd=self.path if cwd is None else cwd, stdin=stdin, env=env)

    def line(self, *arguments: str) -> str | None:
        """Return the output of git as one line, None if it fails."""
        result = self.run(*arguments)
        if isinstance(result, ToolError) or result.exit_code:
            return None

        return os.fsdecode(result.stdout).removesuffix("\n")


def find_repository(path: str) -> Repository | ToolError | None:
    """Return the repository of the folder, None if there is none.

    PERMISSION_DENIED: git does not trust it. UNAVAILABLE: git is missing, or older than `OLDEST_GIT`.
    """
    settings: tuple[tuple[str, str], ...] = ()
    result = run_git(("rev-parse", *_QUERY), cwd=path)

    if isinstance(result, ProcessResult) and result.exit_code and _DUBIOUS.encode() in result.stderr:
        settings = _safe_folders()
        result = run_git(("rev-parse", *_QUERY), cwd=path, settings=settings)

    if isinstance(result, ToolError):
        return result

    if result.exit_code:
        if _NO_REPOSITORY in result.stderr.decode(errors="replace"):
            return None
        return git_failure(result, "open the repository", path)

    if result.stdout.startswith(b"--"):  # git prints an option that it does not know
        message = f"The program 'git' is too old for copies of workspaces: install {OLDEST_GIT} or newer."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    *common_lines, is_bare, object_format = os.fsdecode(result.stdout).removesuffix("\n").split("\n")
    common = os.path.realpath("\n".join(common_lines))  # a path may have line ends
    repository = Repository(path, common, "", object_format, is_bare == "true", settings)
    if not repository.is_bare:
        prefix = repository.line("rev-parse", "--show-prefix") or ""
        repository = repository._replace(prefix=prefix.removesuffix("/"))

    return repository._replace(settings=(*settings, *filters_off(repository)))


def _safe_folders() -> tuple[tuple[str, str], ...]:
    """Return the folders that the user has declared safe, as settings."""
    names = ("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env = {name: os.environ[name] for name in names if name in os.environ}
    result = run_git(("config", "--null", "--get-all", "safe.directory"), cwd="/", env=env)
    if isinstance(result, ToolError):
        return ()

    return tuple(("safe.directory", os.fsdecode(folder)) for folder in result.stdout.split(b"\0")[:-1])


def find_commit(repository: Repository, revision: str = "") -> str | ToolError:
    """Return the full id of the commit of this revision; "" is HEAD.

    NOT_FOUND: there is none. INVALID_ARGUMENT: this is no revision.
    """
    problem = malformed_revision(revision)
    if problem is not None:
        return problem

    commit = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision or HEAD}^{{commit}}")
    if commit:
        return commit

    if revision in {"", HEAD} and repository.line("rev-list", "--all", "--max-count=1") == "":
        message = f"The repository {quoted(repository.path)} has no commit yet: commit the files first."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    message = (
        f"There is no commit {quoted(revision or HEAD)} in the repository {quoted(repository.path)}: name a branch, a"
        " tag or a commit that exists here (git fetch gets those of a server)."
    )

    return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def malformed_revision(revision: str) -> ToolError | None:
    """Return why this cannot be a revision, None if it can."""
    is_name = revision.isprintable() and revision == revision.strip() and not revision.startswith("-")
    if is_name and len(revision) <= _LONGEST_REVISION:
        return None

    return invalid(f"{quoted(revision)} is not a git revision: name a branch, a tag or a commit.")


def find_tree(repository: Repository, commit: str) -> str | None:
    """Return the id of the tree of the repository's `path` in the commit, None if the commit does not have it."""
    if not repository.prefix:
        return repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")

    name = f"{commit}:{repository.prefix}"
    tree = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if tree and repository.line("cat-file", "-t", tree) == "tree":
        return tree

    return None


def find_uncommitted(repository: Repository) -> tuple[tuple[str, ...], bool] | ToolError:
    """Return the tracked files of the workspace that differ from HEAD, and whether there are untracked files."""
    if repository.is_bare:
        return (), False

    kinds = ("--no-renames", "--untracked-files=normal", "--ignore-submodules=dirty")
    result = succeeded(
        repository.run("status", "--porcelain=v1", "-z", *kinds, "--", "."), "look for changes in", repository.path
    )

    if isinstance(result, ToolError):
        return result

    entries = result.stdout.split(b"\0")[:-1]  # two letters, a space and the name. Source: git-status(1)
    changed = tuple(os.fsdecode(entry[3:]) for entry in entries if not entry.startswith(b"??"))
    return changed, len(changed) < len(entries)


def list_uncommitted(repository: Repository) -> tuple[str, ...] | ToolError:
    """Return the files of the workspace that differ from HEAD or are untracked, except those that git ignores."""
    names: list[str] = []
    changed = ("diff", "--name-only", "-z", "--relative", "--no-renames", "--no-ext-diff", "--ignore-submodules", HEAD)

    for words in (changed, ("ls-files", "-z", "--others", "--exclude-standard")):
        result = succeeded(repository.run(*words), "look for changes in", repository.path)
        if isinstance(result, ToolError):
            return result

        names += os.fsdecode(result.stdout).split("\0")[:-1]

    return tuple(names)


_SUBMODULE_PATH: Final = re.compile(r"^[ \t]*+path[ \t]*+=(.*)$", re.MULTILINE)
_MOST_MODULES: Final = 1_000_000
"""The most bytes to read of a `.gitmodules`."""


def absent_submodules(workspace: str) -> tuple[str, ...]:
    """Return the submodules of a workspace that are not fetched: empty folders that `.gitmodules` lists."""
    workspace = os.path.realpath(workspace)
    top = _top_of_worktree(workspace)
    if top is None:
        return ()

    try:
        with closing(open_root(top)) as folder:
            handle, _ = open_regular(folder, (".gitmodules",), os.O_RDONLY)

        with os.fdopen(handle, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(_MOST_MODULES)
    except OSError:
        return ()

    absent = []
    for value in _SUBMODULE_PATH.findall(text):
        name = value.strip().strip('"').rstrip("/")
        path = os.path.join(top, name)
        if path.startswith(os.path.join(workspace, "")) and _is_empty(top, name):
            absent.append(os.path.relpath(path, workspace))

    return tuple(absent)


def _top_of_worktree(path: str) -> str | None:
    """Return the innermost folder, from `path` upwards, with a `.git`, None if there is none."""
    while not os.path.lexists(os.path.join(path, _POINTER)):
        parent = os.path.dirname(path)
        if parent == path:
            return None

        path = parent

    return path


def _is_empty(root: str, name: str) -> bool:
    try:
        with closing(open_root(root)) as top, closing(open_directory(top, name.split("/"))) as folder:
            return not os.listdir(folder)
    except (OSError, ValueError):
        return False


def filters_off(repository: Repository, cwd: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return settings that disable all filters of the repository's configuration, which may start programs.

    `cwd` is a worktree, which may have a configuration of its own.
    """
    filters = repository.run("config", "--null", "--name-only", "--get-regexp", r"^filter\.", cwd=cwd)
    if isinstance(filters, ToolError) or filters.exit_code:
        return ()

    names = {os.fsdecode(part).rpartition(".")[0] for part in filters.stdout.split(b"\0")[:-1]}
    settings: list[tuple[str, str]] = []

    for name in sorted(names):
        settings += [
            (f"{name}.clean", ""),
            (f"{name}.smudge", ""),
            (f"{name}.process", ""),
            (f"{name}.required", "false"),
        ]

    return tuple(settings)


def linked_repository(root: str) -> str | None:
    """Return the repository of which `root` is a linked worktree, if that repository points back to it.

    The pointer in the workspace could name any folder; only git writes the pointer back.
    """
    pointer = _stripped_text(root, _POINTER)
    if not pointer.startswith("gitdir:"):
        return None

    records = os.path.realpath(os.path.join(root, pointer.removeprefix("gitdir:").strip()))
    repository, kind = os.path.split(os.path.dirname(records))
    if kind != _WORKTREES or not os.path.isfile(os.path.join(repository, "HEAD")):
        return None

    back = os.path.realpath(_stripped_text(records, "gitdir") or "/")
    if back != os.path.join(root, _POINTER):
        return None

    return repository


def enclosing_repository(root: str) -> str | None:
    """Return the folder above `root` that is a working tree of git, if `root` is not one itself.

    It belongs to the owner of `root`, not everybody can create files in it, and the user's home is not below it.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    folder = root

    while not os.path.lexists(os.path.join(folder, _POINTER)):
        parent = os.path.dirname(folder)
        if parent == folder or is_below(home, parent):
            return None

        folder = parent

    if folder == root:
        return None

    with suppress(OSError):
        status = os.stat(folder)
        if status.st_uid == os.stat(root).st_uid and not status.st_mode & stat.S_IWOTH:
            return folder

    return None


def _stripped_text(folder: str, name: str) -> str:
    with suppress(OSError, ValueError), closing(open_root(folder)) as parent:
        return os.fsdecode(read_beginning(parent, (name,))).strip().replace("\0", "")

    return ""


_WORKTREES: Final = "worktrees"
_LOCKED: Final = "locked"
_POINTER: Final = ".git"


def worktree_name(folder: str) -> str:
    """Return the name of the worktree in this folder within its repository."""
    return f"mendgraph-{hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]}"


def records_path(common: str, folder: str) -> str:
    """Return the path of the repository's records of the worktree in this folder."""
    return os.path.join(common, _WORKTREES, worktree_name(folder))


def add_worktree(repository: Repository, commit: str, folder: str, name: str) -> str | ToolError:
    """Create the worktree `name` in the empty `folder`, at the commit with a detached HEAD; return its records' path.

    Records of an earlier attempt are removed first.
    """
    worktree = worktree_name(folder)
    try:
        with _locked(repository.common):
            _remove_records(repository.common, worktree, folder)
            path = os.path.join(folder, worktree)
            result = repository.run("worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", path, commit)

        result = succeeded(result, "make a worktree of", repository.path)
        if isinstance(result, ToolError):
            return result

        with open(os.path.join(path, _POINTER), "rb") as pointer:
            target = os.fsdecode(pointer.read()).removeprefix("gitdir: ").removesuffix("\n")

        records = os.path.realpath(target)
        os.rename(path, os.path.join(folder, name))
        with open(os.path.join(records, "gitdir"), "wb") as file:
            file.write(os.fsencode(os.path.join(os.path.realpath(folder), name, _POINTER)) + b"\n")

        failure = _check_out(repository, os.path.join(folder, name))
        if failure is not None:
            return failure

        with suppress(FileNotFoundError):  # `git worktree prune` may now remove the records of a deleted worktree
            os.unlink(os.path.join(records, _LOCKED))
    except OSError as error:
        return os_failure(error, "make a worktree of", repository.path)

    return records


def remove_worktree_records(records: str, folder: str) -> None:
    """Remove a repository's records of the worktree in this folder, unless they belong to another folder now.

    Raises OSError where they cannot be removed.
    """
    common = os.path.dirname(os.path.dirname(records))
    if os.path.basename(os.path.dirname(records)) == _WORKTREES and os.path.isdir(common):
        with _locked(common):
            _remove_records(common, os.path.basename(records), folder)


@contextmanager
def _locked(common: str) -> Iterator[None]:
    with closing(open_root(common)) as handle:
        if not lock_folder(handle, fcntl.LOCK_EX, time.monotonic() + LOCK_WAIT_S):
            raise OSError(errno.ETIMEDOUT, "another program keeps it locked")

        yield


def _check_out(repository: Repository, path: str) -> ToolError | None:
    without_filters = repository._replace(settings=(*repository.settings, *filters_off(repository, path)))
    result = without_filters.run("reset", "--quiet", "--hard", "--no-recurse-submodules", cwd=path)
    failure = succeeded(result, "check out", repository.path)
    return failure if isinstance(failure, ToolError) else None


def _remove_records(common: str, worktree: str, folder: str) -> None:
    records = os.path.join(common, _WORKTREES, worktree)
    pointer = ""
    if not os.path.isdir(records) or os.path.islink(records):
        return

    with suppress(OSError), open(os.path.join(records, "gitdir"), "rb") as file:
        pointer = os.fsdecode(file.read(10_000)).removesuffix("\n")

    # Without a pointer they are ours, by their name: git was killed before it wrote it.
    if not pointer or os.path.realpath(os.path.dirname(os.path.dirname(pointer))) == os.path.realpath(folder):
        shutil.rmtree(records)
        with suppress(OSError):  # it holds records of other worktrees
            os.rmdir(os.path.join(common, _WORKTREES))


def init_repository(path: str, object_format: str, settings: Settings = ()) -> ToolError | None:
    """Create an empty, bare repository at `path`."""
    argv = ("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}", path)
    result = succeeded(run_git(argv, cwd="/", settings=settings), "make a repository at", path)
    return result if isinstance(result, ToolError) else None


# --- The author of commits

_IDENTITY: Final = re.compile(r"(.*) <([^<>]*)> [0-9]+ [+-][0-9]{4}")


def find_identity(path: str) -> dict[str, str] | ToolError:
    """Return the user's name and address for commits, as variables of git; NOT_FOUND if git has none."""
    result = run_git(("-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"), cwd=path, env=os.environ)
    if isinstance(result, ToolError):
        return result

    identity = _IDENTITY.match(os.fsdecode(result.stdout))
    if identity is None:
        remedy = "set it with git config --global user.name NAME, and user.email in the same way."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"Git has no author for the commit: {remedy}")

    name = identity[1]
    email = identity[2]
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }
