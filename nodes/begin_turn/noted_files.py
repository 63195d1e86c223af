"""Which files of a workspace tell agents how to work on it, and as much of them as a model is shown.

`AGENTS.md` counts, and `CLAUDE.md` in a folder that has none: many projects keep both with the same text. Besides
those of the workspace itself, those of the folders count that lie around a file which the request names. Pure: what
reads a file is handed in. Source of the order: agents.md, the nearest file is the last word.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from mendgraph.nodes.begin_turn.turn_start import Files, TurnResources
from mendgraph.nodes.language.names import named_paths
from mendgraph.nodes.language.project_notes import ProjectNotes, visible
from mendgraph.nodes.records import Profile, ToolError, ToolErrorCode

NAMES: Final = ("AGENTS.md", "CLAUDE.md")

MOST_BYTES: Final = 8_000
"""Of all notes together, about 2,000 tokens: each of a turn's ten calls pays for them."""

MOST_READ: Final = 64_000
"""Bytes of one file that are read at all: a secret is found whole before the text is cut."""

MOST_FILES: Final = 4
"""Those nearest to the workspace's own folder come first."""

Head = Callable[[str, int], "bytes | ToolError | None"]
"""(path, most) -> at most so many bytes of the file; None for no file, or why it is not read."""


def most_bytes(profile: Profile, window_tokens: int | None) -> int:
    """How much of all notes this model is shown, in bytes: an eighth of its window at most, at 3 bytes a token.

    A small model is shown none: what stands in its prompt comes back in its replies as content. Source: 551 logged
    replies of a 1.5B model.
    """
    share = MOST_BYTES if window_tokens is None else window_tokens * 3 // 8
    return 0 if profile.small else min(MOST_BYTES, share)


def read_notes(known: Sequence[ProjectNotes], request: str, files: Files, using: TurnResources) -> dict[str, Any]:
    """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
    notes, unread = find_notes(request, files.head, using.scrub, using.most_notes)
    for path, reason in unread:
        using.tell("notes.unread", {"path": path, "reason": reason})
    if notes == tuple(known):
        return {}
    if notes:
        using.tell("notes.read", {"files": [{"path": e.path, "lines": e.lines, "cut": e.cut} for e in notes]})
    return {"notes": notes}


def find_notes(
    request: str, head: Head, scrub: Callable[[str], str], most: int
) -> tuple[tuple[ProjectNotes, ...], list[tuple[str, str]]]:
    """Read the notes that this request is worked on with, those of the workspace's own folder first.

    Returns them, and the files that could not be read, each with the reason.
    """
    notes: list[ProjectNotes] = []
    unread: list[tuple[str, str]] = []
    for folder in _note_folders(request) if most else ():
        for name in NAMES:
            path = f"{folder}{name}"
            data = head(path, MOST_READ + 1)
            text = _note_text(path, data) if isinstance(data, bytes) else data
            if isinstance(text, ToolError):
                unread.append((path, text.message))
            elif text is not None and (shown := scrub(text).strip()):
                kept = _cut_at_line(shown, most)
                if kept:
                    notes.append(ProjectNotes(path=path, text=kept, cut=kept != shown))
                    most -= len(kept.encode("utf-8", "replace"))
                break
    return tuple(notes), unread


def _note_folders(request: str) -> Sequence[str]:
    """The workspace's own folder as "", and those around the named files, outermost first, each with "/" at its end."""
    folders = {"": None}
    for path in named_paths(request):
        parts = [part for part in path.split("/")[:-1] if part != "."]
        if not path.startswith("/") and ".." not in parts:
            folders |= {"".join(f"{part}/" for part in parts[:depth]): None for depth in range(1, len(parts) + 1)}
    return list(folders)[:MOST_FILES]


def _note_text(path: str, data: bytes) -> str | ToolError:
    """The text, as a person sees it, of a file of which at most `MOST_READ` bytes and one more were read."""
    if len(data) > MOST_READ:
        data = data[: data.rfind(b"\n", 0, MOST_READ) + 1]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return visible(text)  # before anyone looks for secrets in it, which could be hidden by what is not seen
    message = f"{path!r} is not read as notes: it is no UTF-8 text."
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def _cut_at_line(text: str, most: int) -> str:
    """The text, or as many of its whole lines as fit into `most` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return text
    head = data[: most + 1].decode("utf-8", "ignore")
    return head[: head.rfind("\n")].rstrip() if "\n" in head else ""
