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

_OPERATIONS: Final = {
    "rebase-merge": ("A rebase", "`git rebase --continue` or `git rebase --abort`"),
    "rebase-apply/applying": ("`git am`", "`git am --continue` or `git am --abort`"),
    "rebase-apply": ("A rebase", "`git rebase --continue` or `git rebase --abort`"),
    "MERGE_HEAD": ("A merge", "`git merge --continue` or `git merge --abort`"),
    "CHERRY_PICK_HEAD": ("A cherry-pick", "`git cherry-pick --continue` or `git cherry-pick --abort`"),
    "REVERT_HEAD": ("A revert", "`git revert --continue` or `git revert --abort`"),
    "sequencer": ("A cherry-pick or revert", "the command that `git status` names"),
    "BISECT_LOG": ("A bisect", "`git bisect reset`"),
}
"""Files and folders of git that exist while an operation has not ended; its name, and what ends it.

Source: git 2.45, wt-status.c.
"""

_MIXED: Final = "it had uncommitted changes"


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
    into its committed and its staged text; a file in which they meet is left out, and so is one that git treats
    specially or that has text of such a file under another name. Otherwise as `commit_branch`.
    UNAVAILABLE: one of the `_OPERATIONS` has not ended; nothing is staged. IO_ERROR: the branch has
    changed meanwhile; nothing is committed.
    """
    identity = find_identity(root)
    if isinstance(identity, ToolError):
        return identity

    try:
        repository = open_repository(root)
        _refuse_in_operation(repository)
        head = repository.line("rev-parse", "--verify", "--quiet", HEAD) or ""
        committed = {name: _blob(repository, f"{head or HEAD}:./{name}") for name in versions}
        origins = _origins(versions, {name: _hash(text) for name, text in committed.items()})
        left_out = find_uncommittable(repository, root, list(versions))
        states = _file_states(repository)
        names: list[str] = []
        merges: dict[str, _Texts] = {}

        for name, hashes in versions.items():
            original = committed[name]
            staged = _blob(repository, f":./{name}")
            text = _text_of_file(root, name)
            base, written = origins[name]
            state = states.get(os.path.join(repository.prefix, name), ("", "..", ""))

            if _hash(text) != hashes[0]:
                left_out.setdefault(name, "it has changed since")
            elif text == original or name in left_out:
                continue
            elif reason := _special(state, is_changed=staged not in (None, text)):
                left_out[name] = reason
            elif base == _hash(original) and _hash(staged) in {base, *written}:
                names.append(name)
            else:
                texts = _merged_texts(repository, original, staged, content_of(base or ""), text)
                if texts is None:
                    left_out[name] = _MIXED
                elif texts.committed != original:
                    merges[name] = texts

        if not names and not merges:
            return BranchCommit("", left_out)

        commit = _commit(repository, head, names, merges, message, identity)
        is_detached = repository.line("symbolic-ref", "--quiet", HEAD) is None
        return BranchCommit(commit, left_out, tuple(merges), is_detached)
    except CopyError as error:
        return error.error


def _commit(
    repository: Repository,
    head: str,
    names: Sequence[str],
    merges: Mapping[str, _Texts],
    message: str,
    identity: Mapping[str, str],
) -> str:
    """Commit the files as they are, and the merged texts of others, on top of `head`; return the commit's id.

    The tree is that of `head`, whatever the index has. The branch is not changed if it is no longer at `head`.
    """
    with tempfile.TemporaryDirectory(prefix="mendgraph-") as folder:
        index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        if head:
            git_output(repository, "read-tree", head, stdin=b"", **index)

        stage_files(repository, names, **index)
        for name, texts in merges.items():
            _stage_text(repository, name, texts.committed, **index)

        tree = git_output(repository, "write-tree", stdin=b"", **index)

    parents = ("-p", head) if head else ()
    commit = git_output(repository, "commit-tree", tree, *parents, stdin=message.encode(), **identity)
    git_output(repository, "update-ref", "-m", "mendgraph", HEAD, commit, head, stdin=b"", **identity)

    try:
        stage_files(repository, names)
        for name, texts in merges.items():
            _stage_text(repository, name, texts.staged)
    except CopyError:
        repository.run("update-ref", HEAD, head, commit)
        raise

    return commit


def _stage_text(repository: Repository, name: str, text: bytes, **variables: str) -> None:
    mode = git_output(repository, "ls-files", "--stage", "--", name, GIT_LITERAL_PATHSPECS="1").partition(" ")[0]
    blob = git_output(repository, "hash-object", "-w", "--stdin", stdin=text)
    entry = f"{mode} {blob}\t{os.path.join(repository.prefix, name)}\0"
    git_output(repository, "update-index", "-z", "--index-info", stdin=os.fsencode(entry), **variables)


def _merged_texts(
    repository: Repository,
    committed: bytes | None,
    staged: bytes | None,
    base: bytes | None,
    text: bytes | None,
) -> _Texts | None:
    """Return both texts with the changes from `base` to `text`, None if they meet others or a text is missing."""
    if committed is None or staged is None or text is None or base is None:
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


_Origin = tuple[str | None, set[str]]
"""The text that a run's uncommitted changes of a file began with, None if it is unknown, and those that they wrote."""


def _origins(versions: Mapping[str, Sequence[str]], committed: Mapping[str, str]) -> dict[str, _Origin]:
    """Return the origins of all files; `committed` are the hashes of their committed texts.

    The origin of a file is unknown if the run has moved to it a text of a file that had uncommitted changes.
    """
    origins = {name: _origin(hashes, committed[name]) for name, hashes in versions.items()}
    mixed = [name for name, (base, _) in origins.items() if base != committed[name]]

    for source in mixed:
        texts = {*versions[source]} - {""}
        for name, (base, written) in origins.items():
            if name != source and base is not None and texts & written:
                origins[name] = None, written
                mixed.append(name)  # the run may have moved it on

    return origins


def _origin(hashes: Sequence[str], committed: str) -> _Origin:
    """Return the origin of one file; it is unknown if the changes do not follow each other.

    The changes began with the committed text. A missing file is none: the run may have removed an untracked one.
    """
    text = hashes[0]
    written: set[str] = set()
    for after, before in zip(hashes[::2], hashes[1::2], strict=True):
        if committed and committed in (text, after):
            break
        if text != after:
            return None, written

        written.add(after)
        text = before

    return text, written


def _file_states(repository: Repository) -> dict[str, list[str]]:
    """Return the fields of `git status --porcelain=v2` of the tracked files that differ, by their paths."""
    output = git_output(
        repository, "status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all"
    )
    states = {}
    for line in output.split("\0")[:-1]:
        *fields, path = line.split(" ", 10 if line.startswith("u") else 8)
        states[path] = fields

    return states


def _special(state: Sequence[str], *, is_changed: bool) -> str | None:
    """Return why a file cannot be committed, None if it can; `is_changed` says that it differs from the index."""
    kind, letters, _, *modes = state[:6]
    if kind == "u":
        return "it has a conflict"
    if len({*modes} - {"000000"}) > 1:
        return "its mode was changed"
    if is_changed and letters[1] == ".":
        return "git ignores its changes: skip-worktree or assume-unchanged is set"

    return None


def _refuse_in_operation(repository: Repository) -> None:
    for name, (operation, end) in _OPERATIONS.items():
        path = git_output(repository, "rev-parse", "--git-path", name)
        if os.path.lexists(os.path.join(repository.path, path)):
            message = f"{operation} has not ended (.git/{name} exists). End it with {end}, then commit."
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
