"""A private repository beside a workspace, which knows the workspace's files at its beginning, and tells what differs.

Git never sees the workspace itself: it is told the files, byte for byte as they are, so neither attributes nor filters
nor another repository inside can change what a patch says. What the repository of a worktree has is not stored twice.
"""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.git_program import git_environment, git_failure, git_program, run_git
from nodes.execute_tools.environment.handles import closing, open_directory, open_regular
from nodes.execute_tools.environment.processes import ProcessResult
from nodes.records import ToolError, ToolErrorCode

BASE: Final = "refs/heads/base"
NOW: Final = "refs/heads/now"

MOST_PATCH_BYTES: Final = 500_000_000
"""A patch is held in memory."""

_CHUNK: Final = 1_048_576
_SETTINGS: Final = (("core.compression", "1"), ("core.bigFileThreshold", "16m"), ("fastimport.unpackLimit", "0"))
_DIFF: Final = (
    *("diff-tree", "-r", "-p", "--binary", "--full-index", "--find-renames", "-l400"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", BASE, NOW),
)


class PrivateGit:
    """The private repository in the folder `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def make(self, objects: str = "", object_format: str = "sha1") -> ToolError | None:
        """Make it; it has what the repository with the folder `objects` has, if one is named."""
        made = self._run("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}", self.path)
        if isinstance(made, ToolError) or made.exit_code:
            return made if isinstance(made, ToolError) else git_failure(made, "make a repository at", self.path)
        try:
            if objects:
                with open(os.path.join(self.path, "objects", "info", "alternates"), "wb") as file:
                    file.write((_path(objects) if "\n" in objects else os.fsencode(objects)) + b"\n")
        except OSError as error:
            return os_failure(error, "make a repository at", self.path)
        return None

    def keep(self, root_fd: int, names: Iterable[str], *, tree: str = "", gone: Iterable[str] = ()) -> str | ToolError:
        """Remember the beginning: these files as they are, on top of the known `tree` without `gone`; its own tree."""
        head = [_commit(BASE), f'M 040000 {tree} ""\n'.encode() if tree else b""]
        problem = self._feed(root_fd, head, gone, names)
        return self._tree(BASE) if problem is None else problem

    def patch(self, root_fd: int, gone: Iterable[str], names: Iterable[str]) -> bytes | ToolError:
        """How the beginning becomes what is now: `gone` are not there any more, `names` are told as they are."""
        head = [_commit(NOW), f"from {BASE}^0\n".encode()]
        problem = self._feed(root_fd, head, gone, names)
        if problem is not None:
            return problem
        found = self._run(*_DIFF, most=MOST_PATCH_BYTES)
        if isinstance(found, ToolError):
            return found
        if found.truncated:
            message = f"The patch has more than {MOST_PATCH_BYTES:,} bytes: what was changed is in the copy itself."
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
        return git_failure(found, "compare", self.path) if found.exit_code else found.stdout

    def _tree(self, reference: str) -> str | ToolError:
        found = self._run("rev-parse", "--verify", f"{reference}^{{tree}}")
        if isinstance(found, ToolError):
            return found
        return git_failure(found, "read", self.path) if found.exit_code else found.stdout.decode().strip()

    def _run(self, *arguments: str, most: int = 1_000_000) -> ProcessResult | ToolError:
        own = () if arguments[0] == "init" else (f"--git-dir={self.path}",)
        return run_git((*own, *arguments), cwd="/", settings=_SETTINGS, max_output_bytes=most)

    def _feed(self, root_fd: int, head: Iterable[bytes], gone: Iterable[str], names: Iterable[str]) -> ToolError | None:
        """One `git fast-import`."""
        program = git_program()
        if isinstance(program, ToolError):
            return program
        argv = [program, f"--git-dir={self.path}", "fast-import", "--quiet", "--force", "--done", "--depth=0"]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                argv,
                cwd="/",
                env=git_environment(_SETTINGS),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            with process:
                try:
                    problem = _write_all(process, head, gone, _told(root_fd, names))
                except BaseException:
                    process.kill()
                    raise
                process.wait()
            said.seek(0)
            result = ProcessResult(process.returncode, b"", said.read(_CHUNK))
        if problem is None and result.exit_code:
            problem = git_failure(result, "store files in", self.path)
        return problem


def _write_all(
    process: "subprocess.Popen[bytes]", head: Iterable[bytes], gone: Iterable[str], told: Iterator[bytes]
) -> ToolError | None:
    """Hand all of it to git; why a file could not be read."""
    stream: IO[bytes] | None = process.stdin
    if stream is None:
        raise ValueError("the process was started without a pipe")
    problem = None
    with suppress(BrokenPipeError), stream:  # then git has said why, or was ended by us
        stream.writelines(head)
        stream.writelines(b"D " + _path(name) + b"\n" for name in gone)
        try:
            for piece in told:
                stream.write(piece)
        except BrokenPipeError:
            raise
        except OSError as error:
            problem = os_failure(error, "read", error.filename or "a file of the workspace")
            process.kill()
        else:
            stream.write(b"\ndone\n")
    return problem


def _told(root_fd: int, names: Iterable[str]) -> Iterator[bytes]:
    """The files and links as git is told them.

    Raises:
        OSError: one of them cannot be read; its `filename` is the name.
    """
    for name in names:
        *above, last = name.split("/")
        try:
            with closing(open_directory(root_fd, above)) as folder:
                status = os.stat(last, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    target = os.fsencode(os.readlink(last, dir_fd=folder))
                    yield b"M 120000 inline %s\ndata %d\n%s\n" % (_path(name), len(target), target)
                else:
                    yield from _told_file(folder, last, name)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error


def _told_file(folder_fd: int, last: str, name: str) -> Iterator[bytes]:
    handle, status = open_regular(folder_fd, (last,), os.O_RDONLY)
    with closing(handle):
        mode = b"100755" if status.st_mode & stat.S_IXUSR else b"100644"
        yield b"M %s inline %s\ndata %d\n" % (mode, _path(name), status.st_size)
        left = status.st_size
        while left:
            chunk = os.read(handle, min(left, _CHUNK))
            if not chunk:
                raise OSError(0, f"{quoted(name)} became shorter while it was read")
            left -= len(chunk)
            yield chunk
        yield b"\n"


def _commit(reference: str) -> bytes:
    return f"commit {reference}\ncommitter mendgraph <mendgraph@localhost> 0 +0000\ndata 0\n".encode()


def _path(name: str) -> bytes:
    """The name between quotes, as C writes it. Source: git-fast-import(1)."""
    letters = (
        _ESCAPED.get(byte) or (b"%c" % byte if 32 <= byte < 127 else b"\\%03o" % byte) for byte in os.fsencode(name)
    )
    return b'"' + b"".join(letters) + b'"'


_ESCAPED: Final = {ord('"'): b'\\"', ord("\\"): b"\\\\"}
