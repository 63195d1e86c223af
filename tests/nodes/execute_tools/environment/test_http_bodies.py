import gzip
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.http_bodies import Body, decode_text, is_text, media_type, read_body


def pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@given(st.binary(max_size=5000), st.integers(0, 6000), st.sampled_from(["", "gzip"]), st.integers(1, 400))
def test_the_first_bytes_are_kept_whatever_the_pieces(data: bytes, most: int, encoding: str, size: int) -> None:
    sent = gzip.compress(data, mtime=0) if encoding else data
    body = read_body(pieces(sent, size), encoding, most, int)
    assert body == Body(data[:most], cut=len(data) > most)


def test_a_zip_bomb_is_never_held() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 60_000
    tracemalloc.start()
    body = read_body([bomb], "gzip", 1_000_000, int)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(body.data), body.cut) == (1_000_000, True)
    assert peak < 5_000_000


def test_the_control_of_the_zip_bomb_holds_all_of_it() -> None:
    assert len(gzip.decompress(gzip.compress(bytes(50_000_000)))) == 50_000_000


def test_each_piece_may_end_it() -> None:
    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        read_body([b"a"], "", 10, stop)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"hello", mtime=0)[:-9], "its gzip data breaks off"),
        (gzip.compress(b"hello", mtime=0)[:4], "its gzip data breaks off"),
        (b"hello", "its gzip data is damaged"),
        (zlib.compress(b"hello"), "its gzip data is damaged"),
    ],
)
def test_damaged_data_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_body([data], "gzip", 100, int)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error_or_nothing(data: bytes) -> None:
    try:
        body = read_body([data], "gzip", 100, int)
    except ValueError:
        return
    assert len(body.data) <= 100


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("text/html", "text/html"),
        (" Text/HTML ; charset=utf-8", "text/html"),
        ("application/ld+json;a=b;c", "application/ld+json"),
        ("", "application/octet-stream"),
        ("text", "application/octet-stream"),
        ("text/html/x", "application/octet-stream"),
        ("text/html image/png", "application/octet-stream"),
        (f"text/{'a' * 200}", "application/octet-stream"),
    ],
)
def test_the_media_type(content_type: str, kind: str) -> None:
    assert media_type(content_type) == kind


@pytest.mark.parametrize(
    ("kind", "readable"),
    [
        ("text/plain", True),
        ("text/html", True),
        ("application/json", True),
        ("application/problem+json", True),
        ("application/xhtml+xml", True),
        ("image/svg+xml", True),
        ("application/xml", True),
        ("image/png", False),
        ("application/octet-stream", False),
        ("application/pdf", False),
        ("application/zip", False),
        ("video/text", False),
    ],
)
def test_which_types_are_read(kind: str, readable: bool) -> None:
    assert is_text(kind) is readable


@pytest.mark.parametrize(
    ("data", "content_type", "text"),
    [
        ("héllo".encode(), "text/plain", "héllo"),
        ("héllo".encode("latin-1"), "text/plain; charset=ISO-8859-1", "héllo"),
        ("héllo".encode("latin-1"), 'text/plain; Charset = "latin1"', "héllo"),
        ("日本".encode("shift_jis"), "text/plain; charset=Shift_JIS", "日本"),
        ("héllo".encode("utf-16"), "text/plain", "héllo"),
        ("héllo".encode("utf-16-le"), "text/plain; charset=utf-16le", "héllo"),
        ("héllo".encode("utf-8-sig"), "text/plain; charset=latin-1", "héllo"),
        (b"h\xe9llo", "text/plain", "h\ufffdllo"),
        (b"68656c6c6f", "text/plain; charset=hex", "68656c6c6f"),
        (b"a-b", "text/plain; charset=punycode", "a-b"),
        (b"+AGE-", "text/plain; charset=utf-7", "+AGE-"),
        (b"hello", "text/plain; charset=nonsense", "hello"),
        (b"hello", "text/plain; charset=../../x", "hello"),
        (b"", "text/plain", ""),
        (b"a\x00b", "text/plain", None),
    ],
)
def test_the_text_of_a_body(data: bytes, content_type: str, text: str | None) -> None:
    assert decode_text(Body(data, cut=False), content_type) == text


def test_a_character_that_was_cut_in_two_is_left_out() -> None:
    assert decode_text(Body("hé".encode()[:2], cut=True), "text/plain") == "h"
    assert decode_text(Body("hé".encode()[:2], cut=False), "text/plain") == "h\ufffd"


@given(
    st.binary(max_size=100), st.sampled_from(["utf-16", "utf-32", "gb18030", "big5", "euc-jp", "cp1252", "koi8-r", "x"])
)
def test_any_bytes_give_a_text_that_can_be_stored(data: bytes, charset: str) -> None:
    text = decode_text(Body(data, cut=False), f"text/plain; charset={charset}")
    assert text is None or text.encode("utf-8").decode() == text
