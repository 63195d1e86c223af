import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.redact import MARK
from nodes.execute_tools.secrets import masked_blocks as module
from nodes.execute_tools.secrets.key_blocks import key_block_spans
from nodes.execute_tools.secrets.masked_blocks import LONGEST_HELD, MaskedStream, masked_blocks, masked_lines
from tests.nodes.execute_tools.secrets.samples import BASE64, BENIGN, BLOCKS

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


def streamed(text: str, size: int) -> str:
    stream = MaskedStream()
    pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join([*pieces, stream.close()])


@given(PIECES, st.integers(1, 200))
def test_a_stream_shows_what_the_whole_does(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    assert streamed(text, size) == masked_blocks(text)


@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20])
def test_a_block_that_is_too_long_to_hold_is_masked_to_its_end(size: int) -> None:
    body = f"{BASE64}\n" * (LONGEST_HELD // 32)
    for end in (f"{FOOTER}\nb\n{BLOCKS[0]}\nc\n", "- --\nb", "--"):
        shown = streamed(f"a\n{HEADER}\n{body}{end}", size)
        assert BASE64[:14] not in shown
        assert BASE64[-14:] not in shown
        assert shown.count("\n") == body.count("\n") + end.count("\n") + 2
    assert streamed(f"a\n{HEADER}\n{body}{FOOTER}\nb\n{BLOCKS[7]}\nc\n", size).endswith(
        f"\nb\n{MARK}\n{MARK}\n{MARK}\nc\n"
    )


def test_a_stream_holds_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is shown at once where the stream ends."""
    monkeypatch.setattr(module, "LONGEST_HELD", 1_000)
    stream = MaskedStream()
    stream.feed(HEADER + "\n")
    for _ in range(100):
        stream.feed(BASE64 + "\n")
    assert stream.close() == ""


def test_what_follows_a_piece_is_waited_for_only_where_it_matters() -> None:
    stream = MaskedStream()
    assert [stream.feed(piece) for piece in ("a\n--", "- b\n", "c -----BEGIN ", "CERTIFICATE-----\nd")] == [
        "a\n",
        "--- b\n",
        "c ",
        "-----BEGIN CERTIFICATE-----\nd",
    ]
    assert stream.close() == ""


@pytest.mark.parametrize("piece", ["-", "-----BEGIN ", HEADER, HEADER + "\n" + BASE64, "a\n"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """What is quadratic would take minutes here."""
    text = piece * (400_000 // len(piece))
    masked_lines(text)
    assert streamed(text, 4_096).count("\n") == text.count("\n")
