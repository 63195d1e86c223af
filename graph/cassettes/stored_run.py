"""A stored run, and its workspace at the start, as far as they are needed to play the run again."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot

from mendgraph.graph.cassettes.cassette_file import secrets_in
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.workspace import file_rules, judged_workspace
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.runs import small_history, thread_config
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.language.history import is_added, is_request
from mendgraph.nodes.language.media import media_of
from mendgraph.nodes.records import ModelReply, Outcome, Profile, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.journal.restoring import net_effects

MOST_FILES: Final = 200
MOST_BYTES: Final = 2_000_000
"""Limits of the files beside a cassette; a test that needs more tests more than one run."""

Files = Mapping[str, bytes]
"""The contents of a folder's files, by path with "/" between the parts."""


@dataclass(frozen=True)
class StoredRun:
    """A run from its first request to its last outcome; `files_read` are the paths of the files that it has read."""

    run_id: str
    context: AgentContext
    profile: Profile
    requests: tuple[str, ...]
    replies: tuple[ModelReply, ...]
    outcomes: tuple[Outcome, ...]
    messages: tuple[AnyMessage, ...]
    files_read: frozenset[str]


def read_run(saver: BaseCheckpointSaver[Any], run_id: str) -> StoredRun | ToolError:
    """Return the run as its checkpoints tell it, or why it cannot be played again.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    history = list(small_history(saver, run_id))
    history.reverse()
    if not history or history[-1].next:
        return invalid("The run has not ended: `mendgraph resume` continues it.")

    calls = [snapshot.values for snapshot in history if snapshot.next == ("call_model",)]
    if not calls:
        message = history[-1].values["outcome"].message
        return invalid(
            f"No call of a model is stored of the run, which needs durability sync or async. It ended with: {message}"
        )

    state = build_graph(saver).get_state(thread_config(run_id)).values
    messages = tuple(state.get("messages") or ())
    requests = tuple(message.text for message in messages if is_request(message))
    outcomes = tuple(snapshot.values["outcome"] for snapshot in history if not snapshot.next)

    if any(media_of(message) for message in messages if is_request(message)):
        return invalid("A request of the run has an image or a file, which a test cannot send: choose another run.")

    if any(map(is_added, messages)):
        return invalid("Words were added during a turn of the run, which a test cannot send: choose another run.")

    if len(requests) != len(outcomes):
        return invalid(
            f"The run has {len(requests)} requests and {len(outcomes)} ends: it was forked, or a turn of it was cut"
            " off. Take a run whose turns have all ended."
        )

    return StoredRun(
        run_id=run_id,
        context=calls[0]["context"],
        profile=calls[0]["profile"],
        requests=requests,
        replies=tuple(_replies(history)),
        outcomes=outcomes,
        messages=messages,
        files_read=frozenset(state.get("files_read") or ()),
    )


def _replies(history: Sequence[StateSnapshot]) -> Iterator[ModelReply]:
    """Yield the model's replies: the checkpoint after `call_model` holds one."""
    for before, snapshot in pairwise(history):
        reply = snapshot.values.get("reply")
        if before.next == ("call_model",) and reply is not None and not reply.preloaded:
            yield reply


# --- Its workspace at the start


@dataclass(frozen=True)
class StartFiles:
    """A workspace before a run; `before` holds the files that the run has changed, None if it has created them."""

    workspace: Workspace
    before: Mapping[str, bytes | None]

    def read(self, is_needed: Callable[[str], bool]) -> Files | ToolError:
        """Return the needed files that git does not ignore and no rule denies; one that holds a secret is refused."""
        paths = {path for path, data in self.before.items() if data is not None}
        for entry in self.workspace.walk():
            if entry.kind == "file" and entry.path not in self.before and self.workspace.denied(entry.path) is None:
                paths.add(entry.path)

        files: dict[str, bytes] = {}
        remaining = MOST_BYTES
        for path in sorted(filter(is_needed, paths)):
            data = self.before.get(path)
            if data is None:
                content = self.workspace.read_file(path, MOST_BYTES)
                if isinstance(content, ToolError):
                    return content

                data = content.data

            if (secret := _secret_in(path, data)) is not None:
                return secret

            files[path] = data
            remaining -= len(data)
            if len(files) > MOST_FILES or remaining < 0:
                return invalid(
                    f"The run needs more than {MOST_FILES} files or {MOST_BYTES:,} bytes of its workspace, more than is"
                    " kept beside a test. Let a .gitignore name what it does not need, or run the task in a smaller"
                    " folder."
                )

        return files


def read_start_files(store: Store, root: str, run: StoredRun) -> StartFiles | ToolError:
    """Return the workspace at `root` before the run, without what the run's rules deny.

    Raises:
        StoreError: the journal cannot be read.
    """
    journal = Journal(store.folder)
    before: dict[str, bytes | None] = {}
    for effect in net_effects(journal.changes_of(run.run_id)):
        sha256 = effect.before.sha256
        before[effect.path] = journal.backup(sha256) if sha256 else None

        if sha256 and before[effect.path] is None:
            message = f"What {quoted(effect.path)} held before the run is gone or damaged."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    return StartFiles(judged_workspace(root, file_rules(run.context.denied_paths)), before)


def _secret_in(path: str, data: bytes) -> ToolError | None:
    """Return the refusal of a file that holds a secret."""
    text = data.decode("utf-8", "replace")
    lines = secrets_in(text)
    if lines:
        what = f"a secret in line {lines[0]}"
    elif Redactor(tuple(known_values(os.environ))).unnamed(text) != text:
        what = "a secret of the environment"
    else:
        return None

    message = (
        f"{quoted(path)} holds {what}, and the test would need the file: take the secret out of it, or let a"
        " .gitignore name it, and run the task again."
    )
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=(path,))


def read_files(workspace: Workspace) -> Files:
    """Return the files of a workspace after a run, at most twice as many as a run may need."""
    files: dict[str, bytes] = {}
    for entry in workspace.walk():
        if entry.kind == "file" and len(files) < 2 * MOST_FILES:
            content = workspace.read_file(entry.path)
            if isinstance(content, FileContent):
                files[content.path] = content.data

    return files
