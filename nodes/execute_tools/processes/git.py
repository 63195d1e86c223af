"""Git: the program, the repositories that workspaces are in, and their linked worktrees.

Nothing but the arguments decides what the program does: no configuration of the user's or of the machine's is read, no
hook and no filter is started, nobody is asked for a password, and nothing is fetched.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.handles import closing, lock_folder, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult, run_process
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import LONGEST_QUOTE, ToolError, ToolErrorCode, invalid, os_failure, quoted

GIT_TIMEOUT_S: Final = 1_800.0
"""A checkout of a very large repository on a busy disk takes minutes."""

LOCK_WAIT_S: Final = 60.0
"""How long another run may take to make or remove a worktree of the same repository."""

MOST_OUTPUT: Final = 1_000_000_000
"""Bytes: the list of the files of a very large repository."""

Settings = Sequence[tuple[str, str]]
"""Names and values of git's configuration; a name may come more than once."""

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
"""What holds for every command, whatever a repository says."""

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
"""What git says where the disk is full."""


def git_environment(settings: Settings = ()) -> dict[str, str]:
    """The whole environment of a `git` that is started with `SAFE_SETTINGS` and these."""
    pairs = [*SAFE_SETTINGS, *settings]
    variables = {f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in enumerate(pairs)}
    variables |= {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(pairs)}
    path = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}

    return {**path, **_ENVIRONMENT, **variables, "GIT_CONFIG_COUNT": str(len(pairs))}


def run_git(
    arguments: Sequence[str],
    *,
    cwd: str,
    settings: Settings = (),
    given: bytes = b"",
    max_output_bytes: int = MOST_OUTPUT,
    env: Mapping[str, str] | None = None,
) -> ProcessResult | ToolError:
    """What `git` printed, and its exit code; an error only where it could not be run to its end.

    It reads what is `given`. `env` is its environment instead of `git_environment`.
    """
    program = shutil.which("git")
    if program is None:
        needed = "The program 'git' is needed for copies of workspaces and for patches"
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"{needed}: install your system's package git.")

    with tempfile.TemporaryFile() if given else nullcontext() as stream:
        if stream is not None:
            stream.write(given)
            stream.seek(0)

        return run_process(
            [os.path.abspath(program), *arguments],
            cwd=cwd,
            timeout_s=GIT_TIMEOUT_S,
            max_output_bytes=max_output_bytes,
            env=git_environment(settings) if env is None else env,
            given=stream,
        )


def git_failure(result: ProcessResult, doing: str, path: str) -> ToolError:
    """The error for `doing` (such as "make a worktree of") with the repository at `path`, and what can be done."""
    error_text = result.stderr.decode(errors="replace")
    if _DUBIOUS in error_text:
        message = (
            f"Git does not trust the repository {quoted(path)}, as it belongs to another user. If you trust it, say so:"
            f" git config --global --add safe.directory {path!r}"
        )

        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    full = next((number for number, words in _FULL.items() if any(word in result.stderr for word in words)), None)
    if full is not None:
        return os_failure(OSError(full, os.strerror(full)), doing, path)

    lines = [line for line in error_text.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    text = last.removeprefix("fatal: ").removeprefix("error: ").strip() or f"exit code {result.exit_code}"
    message = f"Git could not {doing} {quoted(path)}: {one_line(text, LONGEST_QUOTE).rstrip('.')}."

    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def succeeded(result: ProcessResult | ToolError, doing: str, path: str) -> ProcessResult | ToolError:
    """The result, or the `git_failure` that it is."""
    if isinstance(result, ToolError) or not result.exit_code:
        return result
    return git_failure(result, doing, path)


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

    def run(
        self, *arguments: str, cwd: str | None = None, given: bytes = b"", **more: str
    ) -> ProcessResult | ToolError:
        """What git says in this repository when it is `given` this to read, with `more` in its environment."""
        env = {**git_environment(self.settings), **more}
        return run_git(arguments, cwd=self.path if cwd is None else cwd, given=given, env=env)

    def line(self, *arguments: str) -> str | None:
        """What git prints as one line; None where it fails."""
        result = self.run(*arguments)
        if isinstance(result, ToolError) or result.exit_code:
            return None

        return os.fsdecode(result.stdout).removesuffix("\n")


def find_repository(path: str) -> Repository | ToolError | None:
    """The repository that the folder is in; None where it is in none.

    PERMISSION_DENIED where git does not trust it, UNAVAILABLE where there is no git, or one older than `OLDEST_GIT`.
    """
    settings: tuple[tuple[str, str], ...] = ()
    result = run_git(("rev-parse", *_FOUND), cwd=path)

    if isinstance(result, ProcessResult) and result.exit_code and _DUBIOUS.encode() in result.stderr:
        names = ("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
        env = {name: os.environ[name] for name in names if name in os.environ}  # what the user has declared safe
        safe = run_git(("config", "--null", "--get-all", "safe.directory"), cwd="/", env=env)

        if isinstance(safe, ProcessResult):
            folders = safe.stdout.split(b"\0")[:-1]
        else:
            folders = []

        settings = tuple(("safe.directory", os.fsdecode(folder)) for folder in folders)
        result = run_git(("rev-parse", *_FOUND), cwd=path, settings=settings)

    if isinstance(result, ToolError):
        return result

    if result.exit_code:
        unknown = _NO_REPOSITORY in result.stderr.decode(errors="replace")
        if unknown:
            return None
        return git_failure(result, "open the repository", path)

    if result.stdout.startswith(b"--"):  # an option that git does not know is repeated
        message = f"The program 'git' is too old for copies of workspaces: install {OLDEST_GIT} or newer."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    *common, is_bare, object_format = os.fsdecode(result.stdout).removesuffix("\n").split("\n")
    shared = os.path.realpath("\n".join(common))
    repository = Repository(path, shared, "", object_format, is_bare == "true", settings)
    prefix = "" if repository.is_bare else repository.line("rev-parse", "--show-prefix")
    named = repository._replace(prefix=(prefix or "").removesuffix("/"))

    return named._replace(settings=(*settings, *filters_off(named)))


def find_commit(repository: Repository, revision: str = "") -> str | ToolError:
    """The full id of the commit that the revision names, HEAD's for "".

    NOT_FOUND where there is none, INVALID_ARGUMENT for what is no revision.
    """
    if (problem := malformed_revision(revision)) is not None:
        return problem

    commit = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision or HEAD}^{{commit}}")
    if commit:
        return commit

    if revision in {"", HEAD} and repository.line("rev-list", "--all", "--max-count=1") == "":
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

    return invalid(f"{quoted(revision)} is no git revision: name a branch, a tag or a commit.")


def find_tree(repository: Repository, commit: str) -> str | None:
    """The id of the workspace's own tree in the commit; None where it is not in there."""
    if not repository.prefix:
        return repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")

    name = f"{commit}:{repository.prefix}"
    tree = repository.line("rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if tree and repository.line("cat-file", "-t", tree) == "tree":
        return tree

    return None


def find_uncommitted(repository: Repository) -> tuple[tuple[str, ...], bool] | ToolError:
    """The files of the workspace that are not as in HEAD, and whether there are untracked ones."""
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


_SUBMODULE_PATH: Final = re.compile(r"^[ \t]*+path[ \t]*+=(.*)$", re.MULTILINE)
_MOST_MODULES: Final = 1_000_000
"""Bytes of a `.gitmodules` that are read."""


def absent_submodules(workspace: str) -> tuple[str, ...]:
    """The empty folders of a workspace, relative to it, that `.gitmodules` names: submodules that are not fetched."""
    workspace = top = os.path.realpath(workspace)
    while not os.path.lexists(os.path.join(top, _POINTER)):
        if top == (top := os.path.dirname(top)):
            return ()

    try:
        with closing(open_root(top)) as folder:
            handle, _ = open_regular(folder, (".gitmodules",), os.O_RDONLY)

        with os.fdopen(handle, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(_MOST_MODULES)
    except OSError:
        return ()

    named = [value.strip().strip('"').rstrip("/") for value in _SUBMODULE_PATH.findall(text)]
    empty = [os.path.join(top, name) for name in named if _is_empty(top, name)]
    return tuple(os.path.relpath(path, workspace) for path in empty if path.startswith(os.path.join(workspace, "")))


def _is_empty(root: str, name: str) -> bool:
    try:
        with closing(open_root(root)) as top, closing(open_directory(top, name.split("/"))) as folder:
            return not os.listdir(folder)
    except (OSError, ValueError):
        return False


def filters_off(repository: Repository, cwd: str | None = None) -> tuple[tuple[str, str], ...]:
    """Settings by which no program that the repository's configuration names changes a file on its way out.

    `cwd` is a worktree, in which other parts of the configuration may hold.
    """
    filters = repository.run("config", "--null", "--name-only", "--get-regexp", r"^filter\.", cwd=cwd)
    if isinstance(filters, ToolError) or filters.exit_code:
        return ()

    names = {os.fsdecode(part).rpartition(".")[0] for part in filters.stdout.split(b"\0")[:-1]}
    off = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return tuple((f"{name}.{setting}", value) for name in sorted(names) for setting, value in off)


_WORKTREES: Final = "worktrees"
_LOCKED: Final = "locked"
_POINTER: Final = ".git"
_MISSING_OBJECT: Final = ("unable to read", "missing blob", "promisor", "transport")


def worktree_name(folder: str) -> str:
    """The name under which a repository keeps the worktree that is made in this folder."""
    return f"mendgraph-{hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]}"


def records_path(common: str, folder: str) -> str:
    """Where the repository with the shared folder `common` keeps what it knows of this worktree."""
    return os.path.join(common, _WORKTREES, worktree_name(folder))


def add_worktree(repository: Repository, commit: str, folder_fd: int, folder: str, name: str) -> str | ToolError:
    """Make `name` in the open `folder` a worktree at the commit, with a detached HEAD; the path of its records.

    What an earlier try has left in the repository is taken away first; in `folder` nothing may be left of it.
    """
    worktree = worktree_name(folder)
    try:
        with _turn(repository.common):
            _remove_records(repository.common, worktree, folder)
            path = os.path.join(folder, worktree)
            result = repository.run("worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", path, commit)

        if isinstance(result := succeeded(result, "make a worktree of", repository.path), ToolError):
            return result

        with closing(os.open(f"{worktree}/{_POINTER}", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder_fd)) as handle:
            pointer = os.fsdecode(os.read(handle, 10_000))

        records = os.path.realpath(pointer.removeprefix("gitdir: ").removesuffix("\n"))
        os.rename(worktree, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        with open(os.path.join(records, "gitdir"), "wb") as file:
            file.write(os.fsencode(os.path.join(os.path.realpath(folder), name, _POINTER)) + b"\n")

        if (failure := _check_out(repository, os.path.join(folder, name))) is not None:
            return failure

        with suppress(FileNotFoundError):
            os.unlink(os.path.join(records, _LOCKED))  # from now on `git worktree prune` decides by what is there
    except OSError as error:
        return os_failure(error, "make a worktree of", repository.path)

    return records


def remove_worktree_records(records: str, folder: str) -> None:
    """Take away what a repository knows of the worktree in this folder, where it still is that one's.

    Raises OSError: it could not be taken away.
    """
    common = os.path.dirname(os.path.dirname(records))
    if os.path.basename(os.path.dirname(records)) == _WORKTREES and os.path.isdir(common):
        with _turn(common):
            _remove_records(common, os.path.basename(records), folder)


@contextmanager
def _turn(common: str) -> Iterator[None]:
    with closing(open_root(common)) as handle:
        if not lock_folder(handle, fcntl.LOCK_EX, time.monotonic() + LOCK_WAIT_S):
            raise OSError(errno.ETIMEDOUT, "another program has locked it and does not let go of it")

        yield


def _check_out(repository: Repository, path: str) -> ToolError | None:
    careful = repository._replace(settings=(*repository.settings, *filters_off(repository, path)))
    failure = careful.run("reset", "--quiet", "--hard", "--no-recurse-submodules", cwd=path)
    failure = succeeded(failure, "check out", repository.path)

    if isinstance(failure, ProcessResult):
        return None
    if not any(sign in failure.message for sign in _MISSING_OBJECT):
        return failure

    message = (
        f"{failure.message} Nothing is fetched for a copy: where the repository is a partial clone, bring the missing"
        " files into it first (git checkout of this revision does so)."
    )

    return failure.model_copy(update={"message": message})


def _remove_records(common: str, own: str, folder: str) -> None:
    records = os.path.join(common, _WORKTREES, own)
    pointer = ""
    if not os.path.isdir(records) or os.path.islink(records):
        return

    with suppress(OSError), open(os.path.join(records, "gitdir"), "rb") as file:
        pointer = os.fsdecode(file.read(10_000)).removesuffix("\n")

    # A pointer that was never written belongs to who made it: us, by its name.
    if not pointer or os.path.realpath(os.path.dirname(os.path.dirname(pointer))) == os.path.realpath(folder):
        shutil.rmtree(records)
        with suppress(OSError):  # others are in there
            os.rmdir(os.path.join(common, _WORKTREES))


def init_repository(path: str, object_format: str, settings: Settings = ()) -> ToolError | None:
    """Make an empty, bare repository at `path`."""
    argv = ("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}", path)
    result = succeeded(run_git(argv, cwd="/", settings=settings), "make a repository at", path)
    return result if isinstance(result, ToolError) else None


# --- In whose name commits are made

_IDENTITY: Final = re.compile(r"(.*) <([^<>]*)> [0-9]+ [+-][0-9]{4}")


def find_identity(path: str) -> dict[str, str] | ToolError:
    """Who the person is that commits there, as variables of git; NOT_FOUND where nobody has told git."""
    identity_output = run_git(("-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT"), cwd=path, env=os.environ)
    if isinstance(identity_output, ToolError):
        return identity_output

    identity = _IDENTITY.match(os.fsdecode(identity_output.stdout))
    if identity is None:
        remedy = "say it with git config --global user.name NAME, and the same for user.email."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=f"Git does not know in whose name to commit: {remedy}")

    kinds = (f"GIT_{who}" for who in ("AUTHOR", "COMMITTER"))
    return {f"{kind}_{part}": identity[n] for kind in kinds for n, part in enumerate(("NAME", "EMAIL"), 1)}
