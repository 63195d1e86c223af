"""Commits of what a run has changed in the user's own repository, apart from the user's changes."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.copies.copy_sources import CopyError, required
from mendgraph.nodes.workspace.copies.workspace_copies import (
    BranchCommit,
    find_uncommittable,
    git_output,
    open_repository,
    stage_files,
)
from mendgraph.nodes.workspace.files.handles import closing, open_regular, open_root
from mendgraph.nodes.workspace.processes.git import HEAD, Repository, find_identity

_OPERATIONS: Final = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")
"""Files and folders of git that exist while an operation has not ended. Source: git 2.45, wt-status.c."""

_MIXED: Final = "it had changes that were not committed"


class _Texts(NamedTuple):
    """The texts of a file with the run's changes alone: for the commit and for the index."""

    committed: bytes
    staged: bytes


def commit_files(
    root: str, versions: Mapping[str, Sequence[str]], content_of: Callable[[str], bytes | None], message: str
) -> BranchCommit | ToolError:
    """Commit what a run has changed in these files to the current branch. Your other changes stay as they are.

    `versions` are the hashes that a run has written and found of each file, newest first; `content_of` returns the
    bytes with such a hash, None if they are unknown. If a file had other changes, staged or not, the run's are merged
    into its committed and its staged text; a file in which they meet is left out. Otherwise as `commit_branch`.
    UNAVAILABLE: a merge, cherry-pick, revert or rebase has not ended; nothing is staged.
    """
    identity = find_identity(root)
    if isinstance(identity, ToolError):
        return identity

    try:
        repository = open_repository(root)
        _refuse_in_operation(repository)
        left_out = find_uncommittable(repository, root, list(versions))
        names: list[str] = []
        merges: dict[str, _Texts] = {}

        for name, hashes in versions.items():
            committed = _blob(repository, f"{HEAD}:./{name}")
            staged = _blob(repository, f":./{name}")
            text = _text_of_file(root, name)
            base = _base(hashes, _hash(committed))

            if _hash(text) != hashes[0]:
                left_out.setdefault(name, "it has changed since")
            elif base == _hash(committed) == _hash(staged):
                if base != hashes[0] and name not in left_out:
                    names.append(name)
            elif name not in left_out:
                texts = _merged_texts(repository, committed, staged, base and content_of(base), text)
                if texts is None:
                    left_out[name] = _MIXED
                elif texts.committed != committed:
                    merges[name] = texts

        if not names and not merges:
            return BranchCommit("", left_out)

        _commit(repository, names, merges, message, identity)
        return BranchCommit(git_output(repository, "rev-parse", HEAD), left_out, tuple(merges))
    except CopyError as error:
        return error.error


def _commit(
    repository: Repository,
    names: Sequence[str],
    merges: Mapping[str, _Texts],
    message: str,
    identity: Mapping[str, str],
) -> None:
    """Commit the files as they are, and the merged texts of others, from an index that has nothing else."""
    with tempfile.TemporaryDirectory(prefix="mendgraph-") as folder:
        index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        if repository.line("rev-parse", "--verify", "--quiet", HEAD) is not None:
            git_output(repository, "read-tree", HEAD, stdin=b"", **index)

        stage_files(repository, names, **index)
        stage_files(repository, names)

        for name, texts in merges.items():
            _stage_text(repository, name, texts.committed, **index)
            _stage_text(repository, name, texts.staged)

        options = ("--quiet", "--no-verify", "--no-gpg-sign", f"--message={message}")
        git_output(repository, "commit", *options, stdin=b"", **index, **identity)


def _stage_text(repository: Repository, name: str, text: bytes, **variables: str) -> None:
    mode = git_output(repository, "ls-files", "--stage", "--", name, GIT_LITERAL_PATHSPECS="1").partition(" ")[0]
    blob = git_output(repository, "hash-object", "-w", "--stdin", stdin=text)
    entry = f"{mode} {blob}\t{os.path.join(repository.prefix, name)}\0"
    git_output(repository, "update-index", "-z", "--index-info", stdin=os.fsencode(entry), **variables)


def _merged_texts(
    repository: Repository,
    committed: bytes | None,
    staged: bytes | None,
    base: bytes | str | None,
    text: bytes | None,
) -> _Texts | None:
    """Return both texts with the changes from `base` to `text`, None if they meet others or a text is missing."""
    if committed is None or staged is None or text is None or not isinstance(base, bytes):
        return None

    for_commit = _merged(repository, committed, base, text)
    for_index = _merged(repository, staged, base, text)
    if for_commit is None or for_index is None:
        return None

    return _Texts(for_commit, for_index)


def _merged(repository: Repository, ours: bytes, base: bytes, text: bytes) -> bytes | None:
    """Return our text with the changes from `base` to `text`, None if they meet others."""
    if ours == base:
        return text

    with tempfile.TemporaryDirectory(prefix="mendgraph-") as folder:
        paths = [os.path.join(folder, name) for name in ("ours", "base", "text")]
        for path, content in zip(paths, (ours, base, text), strict=True):
            with open(path, "wb") as file:
                file.write(content)

        result = required(repository.run("merge-file", "-p", *paths))

    return None if result.exit_code else result.stdout


def _base(hashes: Sequence[str], committed: str) -> str | None:
    """Return the text that the uncommitted changes of a run began with, None if they do not follow each other.

    `hashes` are those of the file's `versions`, `committed` is the hash of its committed text.
    """
    text = hashes[0]
    for after, before in zip(hashes[::2], hashes[1::2], strict=True):
        if committed in (text, after):
            break
        if text != after:
            return None

        text = before

    return text


def _refuse_in_operation(repository: Repository) -> None:
    for name in _OPERATIONS:
        path = git_output(repository, "rev-parse", "--git-path", name)
        if os.path.lexists(os.path.join(repository.path, path)):
            message = f"An operation of git has not ended (.git/{name} exists). End or abort it, then commit."
            raise CopyError(ToolError(code=ToolErrorCode.UNAVAILABLE, message=message))


def _blob(repository: Repository, revision: str) -> bytes | None:
    result = required(repository.run("cat-file", "blob", revision))
    return None if result.exit_code else result.stdout


def _hash(text: bytes | None) -> str:
    return "" if text is None else hashlib.sha256(text).hexdigest()


def _text_of_file(root: str, name: str) -> bytes | None:
    with suppress(OSError), closing(open_root(root)) as folder:
        handle, _ = open_regular(folder, tuple(name.split("/")), os.O_RDONLY)
        with os.fdopen(handle, "rb") as file:
            return file.read()

    return None
