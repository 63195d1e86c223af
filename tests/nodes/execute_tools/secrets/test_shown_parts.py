from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.secrets.redact import (
    MARK,
    RedactedStream,
    Redactor,
    first_words,
    masked_blocks,
    masked_lines,
    whole_words,
)
from mendgraph.nodes.execute_tools.secrets.shapes import key_block_spans, open_block
from tests.nodes.execute_tools.secrets.samples import BASE64, BENIGN, BLOCKS, KEYS, MIXED, PARTS

HEADER = "-----BEGIN PRIVATE KEY-----"
FOOTER = "-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"a\n{BLOCKS[0]}\nb\n", f"a\n{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}\nb\n"),
        (f"a = '{BLOCKS[1]}'\n", f"a = '{MARK}'\n"),
        (f"a{BLOCKS[2]}b\r\n", f"a{MARK}\r\n{MARK}\r\n{MARK}b\r\n"),
        (f"{BLOCKS[4]}\n", f"{MARK}\n{MARK}\n\n{MARK}\n{MARK}\n{MARK}\n"),
        (f"  # {HEADER}\n  #\n  # {BASE64}\n  # {FOOTER}", f"  # {MARK}\n  #\n  {MARK}\n  {MARK}"),
        (f"{BLOCKS[8]}\nb c", f"{MARK}\n{MARK}\n{MARK}\nb c"),
        (BLOCKS[0] + BLOCKS[0], f"{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}"),
        (f"{BLOCKS[2]}x{BLOCKS[7]}", f"{MARK}\r\n{MARK}\r\n{MARK}x{MARK}\n{MARK}\n{MARK}"),
    ],
)
def test_each_line_of_a_block_is_a_mark(text: str, masked: str) -> None:
    assert masked_blocks(text) == masked


@pytest.mark.parametrize(
    "text", [*BENIGN, f"{HEADER} is how a key begins.\n", "-----BEGIN CERTIFICATE-----\n" + BASE64]
)
def test_text_without_a_block_is_the_same_object(text: str) -> None:
    assert masked_blocks(text) is text
    assert masked_lines(text) == {}


@pytest.mark.parametrize("block", BLOCKS)
def test_the_lines_of_a_block_are_told_by_number(block: str) -> None:
    text = f"one\nKEY = {block}"
    masked = masked_blocks(text).split("\n")
    changed = [number for number, line in enumerate(text.split("\n"), start=1) if masked[number - 1] != line]
    assert masked_lines(text) == {number: masked[number - 1] for number in changed}
    assert masked_lines(text)[2].rstrip("\r") == f"KEY = {MARK}"


PIECES = st.lists(
    st.sampled_from(
        [*BLOCKS, HEADER, FOOTER, BASE64, "\n", "\r\n", "\\n", "-", "----", '"', " ", "# ", "a" * 15, "word "]
    )
)


@given(PIECES)
def test_the_number_of_lines_stays_and_nothing_of_a_block(pieces: list[str]) -> None:
    text = "".join(pieces)
    masked = masked_blocks(text)
    assert masked.count("\n") == text.count("\n")
    assert masked.endswith("\n") == text.endswith("\n")
    assert list(key_block_spans(masked)) == []
    assert (masked is text) is (not list(key_block_spans(text)))


TOKEN = "".join(("gh", "p_", MIXED[:36]))
NAMED = 'password = "x8K!qP2zzz"'
ONE_LINE_KEY = BLOCKS[0].replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "start", "end", "piece"),
    [
        ("one two three", 0, 13, ("one two three", 0, 13)), ("one two three", 0, 3, ("one", 0, 3)),
        ("one two three", 0, 6, ("one ", 0, 4)), ("one two three", 4, 7, ("two", 4, 7)),
        ("one two three", 5, 13, (" three", 7, 13)), ("one two three", 5, 6, ("", 7, 7)),
        ("f(one,two;[x])", 3, 12, (",two;[x", 5, 12)), ('a="one two" b', 3, 9, (" ", 6, 7)),
        ("三个字和一个字", 2, 4, ("字和", 2, 4)), ("x" * 50, 0, 40, ("", 0, 0)), ("x" * 50, 10, 50, ("", 50, 50)),
        (f"a {TOKEN} b", 0, 10, (f"a {MARK}", 0, 42)), (f"a {TOKEN} b", 10, 44, (f"{MARK} b", 2, 44)),
        (f"a {TOKEN} b", 10, 20, (MARK, 2, 42)), (f"a {TOKEN} b", 0, 2, ("a ", 0, 2)),
        (f"a {TOKEN} b", 42, 44, (" b", 42, 44)), (f"{NAMED} b", 3, 25, (' = "' + MARK + '" b', 8, 25)),
        (f"{NAMED} b", 12, 25, (f'{MARK}" b', 12, 25)), (f"{NAMED} b", 15, 25, (f'{MARK}" b', 12, 25)),
        (f"a {ONE_LINE_KEY} b", 60, 120, (MARK, 2, 2 + len(ONE_LINE_KEY))),
    ],
)  # fmt: skip
def test_pieces(text: str, start: int, end: int, piece: tuple[str, int, int]) -> None:
    assert whole_words(text, start, end) == piece


def test_a_short_text_is_the_same_object() -> None:
    text = f"{TOKEN} b"
    assert first_words(text, len(text)) is text


def test_a_piece_that_cannot_be_looked_through_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(Redactor, "spans", fail)
    assert whole_words("one two three", 4, 7) == (MARK, 4, 7)


@given(
    st.lists(
        st.sampled_from(["a", " ", "bc ", ", ", "(", ")", '"', TOKEN, f" {TOKEN} ", NAMED, f" {NAMED} "]), max_size=30
    ),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_no_part_of_a_secret_is_shown(parts: list[str], start: int, length: int) -> None:
    text = "".join(parts)
    start = min(start, len(text))
    piece, begins, ends = whole_words(text, start, min(len(text), start + length))
    assert 0 <= begins <= ends <= len(text)
    bare = piece.replace(MARK, "")
    assert TOKEN[4:10] not in bare or TOKEN[4:10] in Redactor().text(text)
    assert "8K!qP2" not in bare or "8K!qP2" in Redactor().text(text)


KNOWN_VALUE = "my own secret 42"
REDACTOR = Redactor([KNOWN_VALUE, "line-1-of-the-value\nline-2-of-the-value"])
TEXTS = [
    text
    for text in [*KEYS, *("".join(part) for part in PARTS), *BLOCKS, *BENIGN, KNOWN_VALUE]
    if not text.startswith("{")
]


def shown(text: str, cuts: list[int], redactor: Redactor = REDACTOR) -> list[str]:
    stream = RedactedStream(redactor)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [*(stream.feed(text[a:b]) for a, b in pairwise(bounds)), stream.close()]


@given(texts=st.lists(st.sampled_from(TEXTS), max_size=5), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_a_text_is_shown_like_the_whole_however_it_is_cut(texts: list[str], cuts: list[int]) -> None:
    whole = "\n".join(texts)
    assert "".join(shown(whole, cuts)) == REDACTOR.text(whole)


def test_a_stream_that_cannot_be_looked_through_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    stream = RedactedStream(REDACTOR)
    monkeypatch.setattr(Redactor, "spans", broken)
    assert stream.feed("secret words ") == MARK
    assert stream.feed("end") == ""
    assert stream.close() == MARK


def test_a_key_without_an_end_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counting(text: str) -> int | None:
        looked_at.append(len(text))
        return open_block(text)

    monkeypatch.setattr("mendgraph.nodes.execute_tools.secrets.redact.open_block", counting)
    stream = RedactedStream(REDACTOR)
    stream.feed("-----BEGIN PRIVATE KEY-----\n")
    for _ in range(1_000):
        assert stream.feed(f"{BASE64}\n") == ""
    assert stream.close() == MARK
    assert len(looked_at) < 100
