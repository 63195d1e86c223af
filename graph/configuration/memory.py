"""Notes of runs for later runs in the same workspace, in LangGraph's store: few, short, and without secrets."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from os.path import basename
from typing import Final, NamedTuple, TypeVar

from langgraph.store.base import BaseStore

from mendgraph.nodes.language.project_notes import visible
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path

MOST_NOTES: Final = 40
MOST_BYTES: Final = 4_000
"""Of all notes of a workspace in UTF-8; the oldest are removed. About 1,000 tokens of each request."""

LONGEST_NOTE: Final = 400
"""Bytes."""

Result = TypeVar("Result")


class Note(NamedTuple):
    """A note, with its time as ISO 8601 in UTC. The same text has the same `id`."""

    id: str
    text: str
    at: str


class Memory:
    """The notes of one workspace in a store, which other processes may use at the same time.

    Every method returns an IO_ERROR if the store fails, UNAVAILABLE if there is none.
    """

    def __init__(self, store: BaseStore | None, workspace: str) -> None:
        """`workspace` is the real path of a folder."""
        self._store = store
        self.namespace = ("mendgraph", "memory", basename(workspace_folder_path(workspace, "/")))

    def notes(self) -> list[Note] | ToolError:
        """Return all notes, the oldest first."""
        return self._with_store(self._notes)

    def remember(self, text: str, scrub: Callable[[str], str]) -> str | ToolError:
        """Store a note once, and return it as stored; `scrub` removes secrets. The oldest notes make room."""
        clean = " ".join(scrub(visible(text)).split())
        if not 0 < _size(clean) <= LONGEST_NOTE:
            return invalid(
                f"A note has 1 to {LONGEST_NOTE} bytes, and this one {_size(clean)}: say it in one sentence."
            )

        return self._with_store(partial(self._remember, clean))

    def forget(self, ids: Iterable[str]) -> ToolError | None:
        """Remove these notes."""
        return self._with_store(partial(self._forget, ids))

    def _notes(self, store: BaseStore) -> list[Note]:
        entries = store.search(self.namespace, limit=10 * MOST_NOTES)  # other processes may have added some
        notes = [Note(entry.key, str(entry.value.get("text", "")), str(entry.value.get("at", ""))) for entry in entries]
        return _newest(sorted(notes, key=lambda note: note.at))

    def _remember(self, text: str, store: BaseStore) -> str:
        note = Note(sha256(text.encode("utf-8", "replace")).hexdigest()[:8], text, datetime.now(UTC).isoformat())
        others = [other for other in self._notes(store) if other.id != note.id]
        newest = _newest([*others, note])
        store.put(self.namespace, note.id, {"text": note.text, "at": note.at}, index=False)
        self._forget([other.id for other in others if other not in newest], store)

        return text

    def _forget(self, ids: Iterable[str], store: BaseStore) -> None:
        for note_id in ids:
            store.delete(self.namespace, note_id)

    def _with_store(self, use: Callable[[BaseStore], Result]) -> Result | ToolError:
        if self._store is None:
            message = "The graph has no store for notes: pass one to build_graph, such as store=InMemoryStore()."
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

        try:
            return use(self._store)
        except Exception as error:  # noqa: BLE001 - stores of users may fail in any way
            message = f"The memory cannot be used ({type(error).__name__}: {error})."
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _newest(notes: list[Note]) -> list[Note]:
    """Return the newest notes within the limits; entries that are not our notes are left out."""
    space = MOST_BYTES
    newest = list[Note]()

    for note in reversed(notes[-MOST_NOTES:]):
        space -= _size(note.text)
        if space >= 0 and 0 < _size(note.text) <= LONGEST_NOTE:
            newest.insert(0, note)

    return newest


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
