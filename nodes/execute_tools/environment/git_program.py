"""The `git` program, started so that nothing but the arguments decides what it does.

No configuration of the user's or of the machine's is read, no hook and no filter program is started, nobody is asked
for a password, and nothing is fetched. What a repository's own configuration could start is overridden.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Final

from nodes.execute_tools.environment.failures import LONGEST_QUOTE, os_failure, quoted
from nodes.execute_tools.environment.processes import ProcessResult, run_process
from nodes.records import ToolError, ToolErrorCode

GIT_TIMEOUT_S: Final = 1_800.0
"""A checkout of a very large repository on a busy disk takes minutes."""

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
    given = {f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in enumerate(pairs)}
    given |= {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(pairs)}
    path = {"PATH": os.environ["PATH"]} if "PATH" in os.environ else {}
    return {**path, **_ENVIRONMENT, **given, "GIT_CONFIG_COUNT": str(len(pairs))}


def git_program() -> str | ToolError:
    """The path of `git`, or UNAVAILABLE with the remedy."""
    program = shutil.which("git")
    if program is not None:
        return os.path.abspath(program)
    message = "The program 'git' is needed for copies of workspaces and for patches: install your system's package git."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def run_git(
    arguments: Sequence[str],
    *,
    cwd: str,
    settings: Settings = (),
    env: Mapping[str, str] | None = None,
    max_output_bytes: int = MOST_OUTPUT,
) -> ProcessResult | ToolError:
    """What `git` printed, and its exit code; an error only where it could not be run to its end.

    `env` replaces the whole environment, see `git_environment`.
    """
    program = git_program()
    if isinstance(program, ToolError):
        return program
    return run_process(
        [program, *arguments],
        cwd=cwd,
        timeout_s=GIT_TIMEOUT_S,
        max_output_bytes=max_output_bytes,
        env=git_environment(settings) if env is None else env,
    )


def pipe_git(
    arguments: Sequence[str], given: bytes | IO[bytes], *, cwd: str, stdout: IO[bytes], settings: Settings = ()
) -> ProcessResult | ToolError:
    """Let `git` read `given`, bytes or an open file, and write to the open file `stdout`."""
    program = git_program()
    if isinstance(program, ToolError):
        return program
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [program, *arguments],
            cwd=cwd,
            env=git_environment(settings),
            input=given if isinstance(given, bytes) else None,
            stdin=None if isinstance(given, bytes) else given,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return os_failure(error, "run", program)
    except subprocess.TimeoutExpired:
        message = f"git was stopped after {GIT_TIMEOUT_S:g} s."
        return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
    return ProcessResult(done.returncode, b"", done.stderr)


def said_by_git(result: ProcessResult) -> str:
    """The line in which git says why it failed, without control characters, and never long."""
    lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    text = last.removeprefix("fatal: ").removeprefix("error: ").strip() or f"exit code {result.exit_code}"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_QUOTE])


def git_failure(result: ProcessResult, doing: str, path: str) -> ToolError:
    """The error for `doing` (such as "make a worktree of") with the repository at `path`, and what can be done."""
    if _DUBIOUS in result.stderr.decode(errors="replace"):
        message = (
            f"Git does not trust the repository {quoted(path)}, as it belongs to another user. If you trust it, say so:"
            f" git config --global --add safe.directory {path!r}"
        )
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    full = next((number for number, words in _FULL.items() if any(each in result.stderr for each in words)), None)
    if full is not None:
        return os_failure(OSError(full, os.strerror(full)), doing, path)
    message = f"Git could not {doing} {quoted(path)}: {said_by_git(result).rstrip('.')}."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def is_dubious(result: ProcessResult) -> bool:
    """Whether git refused because the repository belongs to somebody else."""
    return result.exit_code != 0 and _DUBIOUS in result.stderr.decode(errors="replace")


def users_safe_directories() -> tuple[str, ...]:
    """The folders that the user, or the machine, has declared safe for git, in the order of the configuration."""
    program = git_program()
    if isinstance(program, ToolError):
        return ()
    names = ("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env = {name: os.environ[name] for name in names if name in os.environ}
    found = run_process(
        [program, "config", "--null", "--get-all", "safe.directory"],
        cwd="/",
        timeout_s=GIT_TIMEOUT_S,
        max_output_bytes=1_000_000,
        env=env,
    )
    if isinstance(found, ToolError) or found.exit_code:
        return ()
    return tuple(os.fsdecode(each) for each in found.stdout.split(b"\0")[:-1])
