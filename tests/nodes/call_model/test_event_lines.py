import pytest
from hypothesis import given, strategies as st

from nodes.call_model.event_lines import EventLines


def fed(*parts: bytes) -> list[bytes]:
    lines = EventLines()
    return [event for part in parts for event in lines.feed(part)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'data: {"a": 1}\n\ndata: [DONE]\n\n', [b'{"a": 1}', b"[DONE]"]),
        (b"data:x\r\n\r\ndata:  y\r\n\r\n", [b"x", b" y"]),
        (b"data: x\r\rdata: y\r\r", [b"x", b"y"]),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b": ping\n\nevent: a\nid: 7\nretry: 3\ndata: x\n\n: pong\n\n", [b"x"]),
        (b"data: x\ndata: y\ndata\ndata:\n\n", [b"x\ny\n\n"]),
        (b"data: not yet\n", []),
        (b"data: nor this", []),
        (b"database: x\nDATA: y\n\n", []),
        (b'{"error": {"message": "no stream"}}', []),
        (b"<html>\n\n</html>\n\n", []),
        ("data: ü\u2028\x0b\x0c\x85😀\n\n".encode(), ["ü\u2028\x0b\x0c\x85😀".encode()]),
    ],
)
def test_the_data_of_events(stream: bytes, events: list[bytes]) -> None:
    assert fed(stream) == events
    assert fed(*(stream[at : at + 1] for at in range(len(stream)))) == events


pieces = st.sampled_from(
    [b"data: x", b"data:", b"\n", b"\r", b"\r\n", b"\n\n", b": c", "ü😀".encode(), b"data: y\n\n", b""]
)


@given(st.lists(pieces, max_size=20), st.lists(st.integers(0, 150), max_size=8))
def test_where_a_stream_is_cut_makes_no_difference(whole: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(whole)
    at = sorted(min(cut, len(stream)) for cut in cuts)
    parts = [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True)]
    assert fed(*parts) == fed(stream)


def test_a_long_line_in_single_bytes_is_linear() -> None:
    """A million parts of one line are joined once."""
    lines = EventLines()
    for _ in range(1_000_000):
        assert lines.feed(b"x") == []
    assert lines.feed(b"\n\ndata: y\n\n") == [b"y"]
