import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.files.text_files import (
    BOM,
    TextFile,
    TextForm,
    count_lines,
    decode_text,
    encode_text,
    unstorable,
    why_not_text,
)


@pytest.mark.parametrize(
    ("data", "decoded"),
    [
        (b"", TextFile("", TextForm())),
        (b"a\nb", TextFile("a\nb", TextForm())),
        (b"a\r\nb\r\n", TextFile("a\r\nb\r\n", TextForm(newline="\r\n"))),
        (b"\xef\xbb\xbfa\n", TextFile("a\n", TextForm(has_bom=True))),
        (b"a\x00", None),
        (b"\xff\xfea", None),
        (b"a" * 9000 + b"\x00", TextFile("a" * 9000 + "\x00", TextForm())),
    ],
)
def test_decode(data: bytes, decoded: TextFile | None) -> None:
    assert decode_text(data) == decoded


@given(st.text(alphabet="a\r\n\x0b\u2028é" + BOM))
def test_what_was_decoded_is_encoded_to_the_same_bytes(text: str) -> None:
    decoded = decode_text(text.encode())
    assert decoded is not None
    if not text.startswith(BOM + BOM):
        assert encode_text(decoded.text, decoded.form) == text.encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00", "a binary file of 1 byte"),
        (b"a\x00\xe9", "a binary file of 3 bytes"),
        (b"\xff\xfea\x00", "a UTF-16 text of 4 bytes"),
        (b"\xfe\xff", "a UTF-16 text of 2 bytes"),
        (b"a\nb\r\n\xe9\n", "a file of 7 bytes that is not UTF-8 (line 3 has the byte 0xE9)"),
        (b"a" * 9000 + b"\x00\x80", "a file of 9002 bytes that is not UTF-8 (line 1 has the byte 0x80)"),
    ],
)
def test_why_not_text(data: bytes, words: str) -> None:
    assert decode_text(data) is None
    assert why_not_text(data) == words


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("a\u2028b", 1)])
def test_count_lines(text: str, lines: int) -> None:
    assert count_lines(text) == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine \U0001f600\r\n", ""),
        ("a\nb\x00", "content holds the character U+0000 in line 2, which no text file can hold; leave it out."),
        ("\ud83d", "content holds the character U+D83D in line 1, which no text file can hold; leave it out."),
    ],
)
def test_unstorable(text: str, message: str) -> None:
    assert unstorable(text, "content") == message
