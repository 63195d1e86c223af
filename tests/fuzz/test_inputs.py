from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.inputs import (
    LONGEST,
    argument_texts,
    as_bytes,
    byte_text,
    cassettes,
    files,
    mutated,
    replies,
    reply_texts,
)

SEEDS = ["", "seed text", "x" * (LONGEST + 1)]


@settings(max_examples=300, suppress_health_check=[*HealthCheck])
@given(mutated(SEEDS, ["word"]))
def test_a_mutation_is_of_modest_length(text: str) -> None:
    assert len(text) <= 6 * LONGEST


def test_a_mutation_may_be_the_text_itself_and_may_hold_a_word() -> None:
    seen: list[str] = []

    @settings(max_examples=300, suppress_health_check=[*HealthCheck])
    @given(mutated(SEEDS, ["word"]))
    def collect(text: str) -> None:
        seen.append(text)

    collect()
    assert "seed text" in seen
    assert any("word" in text and text.startswith("seed") for text in seen)
    assert any(text not in SEEDS for text in seen)


def test_there_is_something_real_to_begin_with() -> None:
    assert len(replies()) > 100
    assert min(map(len, (reply_texts(), argument_texts(), files(), cassettes()))) >= 10
    assert all("recorded_from" in text for text in cassettes())


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    assert as_bytes(byte_text(data)) == data


def test_other_characters_are_some_byte() -> None:
    assert as_bytes("a漢\ud800") == b"a??"
