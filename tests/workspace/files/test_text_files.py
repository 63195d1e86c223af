from hypothesis import given, strategies as st

from mendgraph.nodes.workspace.files.text_files import (
    BOM,
    TextFile,
    TextForm,
    count_lines,
    decode_text,
    encode_text,
    unstorable,
    why_not_text,
)

TEXTS: list[tuple[bytes, TextFile]] = [
    (b"", TextFile("", TextForm())),
    (b"a\nb", TextFile("a\nb", TextForm())),
    (b"a\r\nb\r\n", TextFile("a\r\nb\r\n", TextForm(newline="\r\n"))),
    (b"\xef\xbb\xbfa\n", TextFile("a\n", TextForm(has_bom=True))),
    (b"a" * 9000 + b"\x00", TextFile("a" * 9000 + "\x00", TextForm())),
]
NO_TEXTS: list[tuple[bytes, str]] = [
    (b"\x00", "a binary file of 1 byte"),
    (b"a\x00\xe9", "a binary file of 3 bytes"),
    (b"\xff\xfea\x00", "a UTF-16 text of 4 bytes"),
    (b"\xfe\xff", "a UTF-16 text of 2 bytes"),
    (b"a\nb\r\n\xe9\n", "a file of 7 bytes that is not UTF-8 (line 3 has the byte 0xE9)"),
    (b"a" * 9000 + b"\x00\x80", "a file of 9002 bytes that is not UTF-8 (line 1 has the byte 0x80)"),
]


def test_text_and_binary_data_are_distinguished() -> None:
    for data, decoded in TEXTS:
        assert decode_text(data) == decoded
    for data, words in NO_TEXTS:
        assert (decode_text(data), why_not_text(data)) == (None, words)


@given(st.text(alphabet="a\r\n\x0b\u2028é" + BOM))
def test_decoded_text_is_encoded_to_the_same_bytes(text: str) -> None:
    decoded = decode_text(text.encode())
    assert decoded is not None
    if not text.startswith(BOM + BOM):
        assert encode_text(decoded.text, decoded.form) == text.encode()


def test_lines_are_counted_as_in_an_editor() -> None:
    texts = {"": 0, "a": 1, "a\n": 1, "a\nb": 2, "\n": 1, "a\u2028b": 1}
    assert {text: count_lines(text) for text in texts} == texts


def test_unstorable_character_is_named_with_its_line() -> None:
    message = "content holds the character {} in line {}, which no text file can hold; leave it out."
    assert unstorable("fine \U0001f600\r\n", "content") == ""
    assert unstorable("a\nb\x00", "content") == message.format("U+0000", 2)
    assert unstorable("\ud83d", "content") == message.format("U+D83D", 1)
