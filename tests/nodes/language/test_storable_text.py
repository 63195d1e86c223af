import pytest
from hypothesis import given, strategies as st

from nodes.language.documents import storable

HALVES = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF))


@pytest.mark.parametrize(
    ("text", "stored"),
    [("plain 😀", "plain 😀"), ("\ud83d\ude00", "😀"), ("a\ud83d", "a\ufffd"), ("\ude00\ud83d", "\ufffd\ufffd")],
)
def test_what_is_stored_has_no_half_characters(text: str, stored: str) -> None:
    assert storable(text) == stored


@given(HALVES)
def test_it_can_be_encoded_and_nothing_else_changes(text: str) -> None:
    assert storable(storable(text)) == storable(text)
    assert storable(text).encode().decode() == storable(text)
    if text.isascii():
        assert storable(text) == text
