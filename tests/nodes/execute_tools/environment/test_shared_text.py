"""Texts that PostgreSQL refuses are stored in another form, and come back to the letter."""

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.shared_text import held_text, plain_text


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("plain é 😀", "plain é 😀"),
        ("a\0b", "a\ue0000b"),
        ("\ud800\udfff", "\ue000d800\ue000dfff"),
        ("\ue0000", "\ue000e0"),
    ],
)
def test_what_is_refused_has_a_form_of_its_own(text: str, held: str) -> None:
    assert (held_text(text), plain_text(held)) == (held, text)


@given(st.text(st.characters() | st.sampled_from("\0\ue000\ud800\udfffde0f")))
def test_every_text_comes_back_and_its_form_can_be_stored(text: str) -> None:
    held = held_text(text)
    assert plain_text(held) == text
    assert "\0" not in held
    assert held.encode().decode() == held
