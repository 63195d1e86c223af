import hashlib
import io
import json

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools import text_pages
from nodes.execute_tools.tools.text_pages import MAX_PAGE_BYTES, TextPage, read_page


def page(data: bytes, start_line: int = 1, limit: int = 500, piece: int = 1 << 20) -> TextPage | None:
    stream = io.BytesIO(data)
    return read_page(lambda size: stream.read(min(size, piece)), start_line, limit)


def shown(data: bytes, start_line: int = 1, limit: int = 500, piece: int = 1 << 20) -> tuple[str, int, int, int]:
    found = page(data, start_line, limit, piece)
    assert found is not None
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    return found.content, found.lines_shown, found.lines_remaining, found.next_start_line


@pytest.mark.parametrize(
    ("data", "start_line", "limit", "expected"),
    [
        (b"", 1, 5, ("", 0, 0, 0)),
        (b"a", 1, 5, ("a", 1, 0, 0)),
        (b"a\nb\nc\n", 1, 2, ("a\nb\n", 2, 1, 3)),
        (b"a\nb\nc\n", 3, 2, ("c\n", 1, 0, 0)),
        (b"a\nb\nc", 2, 1, ("b\n", 1, 1, 3)),
        (b"a\nb\nc", 3, 1, ("c", 1, 0, 0)),
        (b"a\nb", 9, 1, ("", 0, 0, 0)),
        (b"a\r\nb\rc\r\n", 1, 5, ("a\nb\rc\n", 2, 0, 0)),
        (b"a\r", 1, 5, ("a\r", 1, 0, 0)),
        (b"\xef\xbb\xbfa\n", 1, 5, ("a\n", 1, 0, 0)),
        ("é\u2028\n".encode(), 1, 5, ("é\u2028\n", 1, 0, 0)),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 1 << 20])
def test_pages(data: bytes, start_line: int, limit: int, expected: tuple[str, int, int, int], piece: int) -> None:
    assert shown(data, start_line, limit, piece) == expected


@pytest.mark.parametrize("data", [b"a\x00b", b"\xff", b"a" * 3_000_000 + b"\xff", "é".encode()[:1]])
def test_binary(data: bytes) -> None:
    assert page(data) is None


@given(st.text(alphabet="ab\r\né", max_size=60), st.integers(1, 4), st.integers(1, 7))
def test_all_pages_together_are_the_text(text: str, limit: int, piece: int) -> None:
    contents, start = [], 1
    while start:
        content, lines, _remaining, start = shown(text.encode(), start, limit, piece)
        assert lines <= limit
        contents.append(content)
    assert "".join(contents) == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("length", "end", "line", "cut"),
    [
        (2000, b"\n", "x" * 2000 + "\n", 0),
        (2000, b"\r\n", "x" * 2000 + "\n", 0),
        (2005, b"\n", "x" * 2000 + " [... 5 more characters]\n", 1),
        (2001, b"", "x" * 2000 + " [... 1 more characters]", 1),
        (2000, b"", "x" * 2000, 0),
        (3_000_000, b"\n", "x" * 2000 + " [... 2998000 more characters]\n", 1),
    ],
)
def test_long_lines_are_cut(length: int, end: bytes, line: str, cut: int) -> None:
    found = page(b"x" * length + end)
    assert found is not None
    assert (found.content, found.long_lines_cut) == (line, cut)


def test_a_page_ends_before_its_json_gets_too_large() -> None:
    many = page(b'"' * 1000 + b"\n" + (b'"' * 1000 + b"\n") * 100)
    assert many is not None
    assert (many.lines_shown, many.lines_remaining, many.next_start_line) == (24, 77, 25)
    assert MAX_PAGE_BYTES <= len(json.dumps(many.content)) < MAX_PAGE_BYTES + 2100


def test_a_large_file_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_pages, "CHUNK_BYTES", 1000)
    sizes = []

    def read(size: int) -> bytes:
        sizes.append(size)
        return b"line\n" * 200 if len(sizes) < 1000 else b""

    found = read_page(read, 100_000, 2)
    assert found is not None
    assert (found.content, found.total_lines, set(sizes)) == ("line\n" * 2, 999 * 200, {1000})
