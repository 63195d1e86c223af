import json
from typing import Any

import pytest

from nodes.execute_tools.tools.search_matches import (
    LINE_CHARACTERS,
    MAX_SHOWN_BYTES,
    FileMatches,
    clip,
    find_text,
    read_ripgrep,
    select,
)


def event(
    kind: str, path: dict[str, str], line: int, lines: dict[str, str], start: int | None = None, offset: int = 0
) -> bytes:
    submatches: list[dict[str, Any]] = [] if start is None else [{"start": start, "end": start + 1}]
    data = {"path": path, "lines": lines, "line_number": line, "absolute_offset": offset, "submatches": submatches}
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


def end(path: str, binary_offset: int | None) -> bytes:
    return (
        json.dumps({"type": "end", "data": {"path": {"text": path}, "binary_offset": binary_offset}}).encode() + b"\n"
    )


NAMES = {"/dev/fd/4": "a.py", "/dev/fd/7": "src/b.py"}
FOUR, SEVEN = {"text": "/dev/fd/4"}, {"text": "/dev/fd/7"}


def test_ripgrep_is_read_file_by_file_under_the_real_names() -> None:
    output = b"".join(
        [
            b'{"type":"begin","data":{"path":{"text":"/dev/fd/4"}}}\n',
            event("context", FOUR, 1, {"text": "before\r\n"}),
            event("match", FOUR, 2, {"text": "hit\n"}, 0),
            end("/dev/fd/4", None),
            event("match", SEVEN, 5, {"bytes": "/yBhbHBoYQo="}, 2),
            event("match", SEVEN, 6, {"text": "empty\n"}),
            event("match", {"bytes": "Li9i/w=="}, 1, {"text": "no name\n"}, 0),
            event("match", {"text": "/dev/fd/5"}, 1, {"text": "not given\n"}, 0),
            event("match", {"text": "a.py"}, 1, {"text": "not asked for by this name\n"}, 0),
            b'{"type":"summary","data":{}}\n',
            event("match", SEVEN, 7, {"text": "cut off"}, 0)[:50],
        ]
    )
    assert read_ripgrep(output, NAMES) == [
        FileMatches("a.py", {2: "hit"}, {1: "before"}),
        FileMatches("src/b.py", {5: "\ufffd alpha", 6: "empty"}),
    ]


@pytest.mark.parametrize(
    ("first_nul", "lines"),
    [(None, [1, 2]), (0, []), (65_535, []), (65_536, [1]), (131_071, [1]), (131_072, [1, 2])],
)
def test_what_is_binary_is_left_out(first_nul: int | None, lines: list[int]) -> None:
    output = b"".join(
        [
            event("match", FOUR, 1, {"text": "one\n"}, 0, offset=10),
            event("match", FOUR, 2, {"text": "two\n"}, 0, offset=65_536),
            end("/dev/fd/4", first_nul),
        ]
    )
    assert [number for file in read_ripgrep(output, NAMES) for number in file.matches] == lines


def test_a_long_line_is_cut_around_its_match() -> None:
    line = "é" * 1000 + "X" + "é" * 1000
    [found] = read_ripgrep(event("match", FOUR, 1, {"text": line}, len(("é" * 1000).encode())), NAMES)
    assert found.matches == {1: "[...]" + "é" * 100 + "X" + "é" * 199 + "[...]"}


@pytest.mark.parametrize(
    ("line", "at", "clipped"),
    [
        ("a\r\n", 0, "a"),
        ("a" * 300, 299, "a" * 300),
        ("a" * 301, 0, "a" * 300 + "[...]"),
        ("a" * 301, 300, "[...]" + "a" * 300),
    ],
)
def test_clip(line: str, at: int, clipped: str) -> None:
    assert clip(line, at) == clipped
    assert len(clipped) <= LINE_CHARACTERS + 10


@pytest.mark.parametrize(
    ("wanted", "ignore_case", "matches", "context"),
    [
        ("b.", False, {2: "b.b"}, {1: "a", 2: "b.b", 3: "C"}),
        ("B", True, {2: "b.b"}, {1: "a", 2: "b.b", 3: "C"}),
        ("B", False, {}, {}),
        ("c", True, {3: "C"}, {2: "b.b", 3: "C"}),
    ],
)
def test_find_text(wanted: str, ignore_case: bool, matches: dict[int, str], context: dict[int, str]) -> None:
    found = find_text("f", "a\r\nb.b\r\nC", wanted, ignore_case=ignore_case, context_lines=1)
    assert found == FileMatches("f", matches, context)


FILES = [
    FileMatches("a", {2: "two", 9: "nine"}, {1: "one", 3: "three"}),
    FileMatches(".env", {1: "secret"}),
    FileMatches("b", {1: "x"}),
]


def may_show(path: str) -> bool:
    return path != ".env"


def test_selection_without_context() -> None:
    assert select(FILES, may_show, context_lines=0, limit=9) == (
        [
            {"path": "a", "line": 2, "text": "two"},
            {"path": "a", "line": 9, "text": "nine"},
            {"path": "b", "line": 1, "text": "x"},
        ],
        False,
    )


def test_selection_with_context() -> None:
    selection = select(FILES[:1], may_show, context_lines=2, limit=1)
    assert selection == ([{"path": "a", "line": 2, "text": "two", "before": ["one"], "after": ["three"]}], True)


@pytest.mark.parametrize(("limit", "has_more"), [(2, True), (3, False)])
def test_a_selection_knows_whether_there_is_more(limit: int, has_more: bool) -> None:
    assert select(FILES, may_show, context_lines=0, limit=limit).has_more is has_more


def test_a_selection_has_a_bounded_size() -> None:
    file = FileMatches("a", dict.fromkeys(range(1, 101), "é" * 300))
    selection = select([file], may_show, context_lines=0, limit=100)
    assert selection.has_more
    assert (
        MAX_SHOWN_BYTES - 700 < len(json.dumps(selection.matches, ensure_ascii=False).encode()) < MAX_SHOWN_BYTES + 200
    )
