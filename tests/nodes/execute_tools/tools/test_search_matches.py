import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.secrets.redact import MARK
from nodes.execute_tools.tools.search_matches import (
    LINE_CHARACTERS,
    MAX_SHOWN_BYTES,
    FileMatches,
    clip,
    file_masks,
    find_text,
    read_ripgrep,
    select,
)
from tests.nodes.execute_tools.secrets.samples import BASE64, BLOCKS, MIXED

TOKEN = "".join(("gh", "p_", MIXED[:36]))


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
    line = "é " * 500 + "X" + " é" * 500
    [found] = read_ripgrep(event("match", FOUR, 1, {"text": line}, len(("é " * 500).encode())), NAMES)
    assert found.matches == {1: "[...]" + "é " * 50 + "X" + " é" * 99 + " [...]"}


@pytest.mark.parametrize(
    ("line", "at", "clipped"),
    [
        ("a\r\n", 0, "a"),
        ("a" * 300, 299, "a" * 300),
        ("ab " * 101, 0, "ab " * 100 + "[...]"),
        ("ab " * 100 + "abc", 301, "[...]" + "ab " * 99 + "abc"),
        ("ab " * 99 + "a quokka-4471", 0, "ab " * 99 + "a [...]"),
        ("quokka-4471 b" + " ab" * 99, 300, "[...] b" + " ab" * 99),
        ("a" * 301, 0, "[...]"),
        (f"{'ab ' * 99}{TOKEN} {'ab ' * 99}", 300, f"[...] {'ab ' * 32}{MARK} {'ab ' * 54}[...]"),
        (f'{"ab " * 99}password = "x8K!qP2zzz", {"ab " * 99}', 411, f'[...]{MARK}", {"ab " * 96}[...]'),
    ],
)
def test_clip(line: str, at: int, clipped: str) -> None:
    assert clip(line, at) == clipped
    assert len(clipped) <= LINE_CHARACTERS + 10 + len(MARK)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 830))
def test_no_part_of_a_token_is_shown(before: int, after: int, at: int) -> None:
    line = "a " * before + TOKEN + " a" * after
    shown = clip(line, at)
    if len(line) > LINE_CHARACTERS:
        assert shown.replace(MARK, "").strip("[.] a") == ""


KEY_FILE = f'KEY = """{BLOCKS[0]}"""\nlimit = 10\n'
KEY_LINES = {1: f'KEY = """{MARK}', 2: MARK, 3: MARK, 4: MARK, 5: f'{MARK}"""'}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_the_lines_of_a_private_key_in_a_file(encoding: str) -> None:
    assert file_masks(("é\n" + KEY_FILE).encode(encoding)) == {number + 1: line for number, line in KEY_LINES.items()}


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"limit = 10\n", b"-----BEGIN CERTIFICATE-----\n\xff"])
def test_a_file_without_a_private_key_has_none(data: bytes) -> None:
    assert file_masks(data) == {}


def test_masked_lines_are_shown_in_place_of_what_ripgrep_says() -> None:
    lines = [event("match", FOUR, number, {"text": BASE64 + "\n"}, 60) for number in (1, 2)]
    lines.append(event("context", FOUR, 3, {"text": BASE64 + "\n"}))
    [found] = read_ripgrep(b"".join(lines), NAMES, {"a.py": {2: f"  {MARK}\r", 3: MARK}, "src/b.py": {1: "x"}})
    assert found == FileMatches("a.py", {1: BASE64, 2: f"  {MARK}"}, {3: MARK})


def test_find_text_shows_a_private_key_as_marks() -> None:
    found = find_text("f", KEY_FILE, BASE64[:8], ignore_case=False, context_lines=3)
    assert found == FileMatches("f", {2: MARK, 4: MARK}, KEY_LINES | {6: "limit = 10"})


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
