from hypothesis import given, strategies as st

from tests.fuzz.inputs import argument_texts, as_bytes, byte_text, cassettes, files, replies, reply_texts


def test_there_is_something_real_to_begin_with() -> None:
    assert len(replies()) > 100
    assert min(map(len, (reply_texts(), argument_texts(), files(), cassettes()))) >= 10
    assert all("recorded_from" in text for text in cassettes())


@given(st.binary() | st.just("a漢\ud800".encode("utf-8", "replace")))
def test_bytes_come_back(data: bytes) -> None:
    assert as_bytes(byte_text(data)) == data
