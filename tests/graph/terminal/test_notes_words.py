"""The lines about a project's notes."""

import pytest

from graph.terminal.notes_words import READ, UNREAD, notes_lines
from nodes.records import JsonMap

FILES = [{"path": "AGENTS.md", "lines": 34, "cut": False}, {"path": "a\x1b/AGENTS.md", "lines": 1, "cut": True}]


@pytest.mark.parametrize(
    ("name", "payload", "lines"),
    [
        (
            READ,
            {"files": FILES},
            ["→ AGENTS.md  34 lines of notes", "→ a\\x1b/AGENTS.md  1 line of notes, the rest left out"],
        ),
        (UNREAD, {"path": "AGENTS.md", "reason": "no\ntext"}, ["→ AGENTS.md  not read as notes: no text"]),
        ("tool.invoke.start", {"path": "AGENTS.md"}, []),
    ],
)
def test_each_file_has_a_line(name: str, payload: JsonMap, lines: list[str]) -> None:
    assert notes_lines(name, payload) == lines
