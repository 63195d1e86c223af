import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.processes import Ends, EndsOfOutput
from nodes.execute_tools.tools.command_output import LONGEST_LAST_WORDS, last_words, output_text


def ends_of(data: bytes, most: int) -> Ends:
    kept = EndsOfOutput(most)
    kept.take(data)
    return kept.ends()


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (Ends(), ""),
        (Ends(b"a\r\n\x1b[31m\t\xc3", b"\xa9", 11), "a\r\n\x1b[31m\té"),
        (Ends(b"a\0b\xffc", b"", 5), "ab\ufffdc"),
        (Ends(b"head", b"tail", 10), "head\n[... 2 of 10 bytes left out ...]\ntail"),
        (Ends("a€".encode()[:3], "€b".encode()[1:], 99), "a\n[... 93 of 99 bytes left out ...]\nb"),
        (Ends("a€".encode(), "€b".encode(), 99), "a€\n[... 91 of 99 bytes left out ...]\n€b"),
        (Ends("😀".encode()[:3], "😀".encode()[1:], 99), "\n[... 93 of 99 bytes left out ...]\n"),
        (Ends(b"\xff", b"\xff", 99), "\n[... 97 of 99 bytes left out ...]\n\ufffd"),
        (Ends(b"\x80" * 2, b"\x80" * 3, 99), "\ufffd\ufffd\n[... 94 of 99 bytes left out ...]\n"),
        (Ends(b"a", b"\x80" * 4, 99), "a\n[... 94 of 99 bytes left out ...]\n\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_text_of_an_output(ends: Ends, text: str) -> None:
    assert output_text(ends) == text


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")), st.integers(1, 40))
def test_no_character_is_torn_wherever_the_output_is_cut(text: str, most: int) -> None:
    whole = text.encode()
    ends = ends_of(whole, most)
    shown = output_text(ends)
    if not ends.left_out:
        assert shown == text
        return
    head, _, tail = shown.partition(f"\n[... {ends.left_out} of {len(whole)} bytes left out ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(ends.head) - len(head.encode()) < 4
    assert len(ends.tail) - len(tail.encode()) < 4


@given(st.binary(max_size=100), st.integers(1, 40))
def test_any_bytes_become_text_that_can_be_stored(data: bytes, most: int) -> None:
    shown = output_text(ends_of(data, most))
    assert "\0" not in shown
    assert shown.encode().decode() == shown


def test_last_words_are_the_ends_of_what_was_said() -> None:
    long = b"x" * 5_000
    assert last_words(Ends(), Ends(b"  \n", b"", 3)) == ""
    assert last_words(Ends(b"out\n", b"", 4), Ends(b"err", b"or\n", 6)) == "out\nerror"
    assert last_words(Ends(b"head", b"\x80tail", 100), Ends()) == "tail"
    assert last_words(Ends(long, long, 10_000)) == "x" * LONGEST_LAST_WORDS
