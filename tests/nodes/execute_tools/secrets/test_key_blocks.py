import re

import pytest

from nodes.execute_tools.secrets import key_blocks
from nodes.execute_tools.secrets.key_blocks import GAP, key_block_spans, open_block
from tests.nodes.execute_tools.secrets.samples import BASE64, BENIGN, BLOCKS


def taken(text: str) -> list[str]:
    return [text[start:end] for start, end in key_block_spans(text)]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_found_as_a_whole(block: str) -> None:
    assert taken(f"before {block}") == [block]


@pytest.mark.parametrize("block", BLOCKS[:-1])
def test_what_follows_a_block_stays(block: str) -> None:
    assert taken(f"{block}\n# the end\n") == [block]


def test_each_of_several_blocks_is_found() -> None:
    assert taken("\n".join(BLOCKS[:5])) == BLOCKS[:5]


@pytest.mark.parametrize("text", BENIGN)
def test_words_about_keys_are_no_block(text: str) -> None:
    assert taken(text) == []


def test_a_list_of_lines_in_json_stays_json() -> None:
    assert taken(f'["-----BEGIN PRIVATE KEY-----"], {{"a": "{BASE64}"}}') == []


@pytest.mark.parametrize("block", BLOCKS[:5])
def test_a_block_is_open_until_its_last_line(block: str) -> None:
    for length in range(len(block)):
        assert open_block("a " + block[:length]) == (2 if length else None)
    assert open_block("a " + block) is None
    assert open_block(f"a {block} b") is None


def test_a_block_that_is_none_is_open_no_longer_than_its_gap() -> None:
    text = "-----BEGIN PRIVATE KEY-----" + " word" * (GAP // 5)
    assert open_block(text[: GAP // 2]) == 0
    assert open_block(text + " and") is None


@pytest.mark.parametrize("text", ["", "a", "-----\n", "a -----END", "-----BEGIN CERTIFICATE-----\nabc", "--- a"])
def test_other_text_is_open_for_none(text: str) -> None:
    assert open_block(text) is None


@pytest.mark.parametrize(
    "piece", ["-", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n" + BASE64]
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """What is quadratic would take minutes here."""
    text = piece * (400_000 // len(piece))
    list(key_block_spans(text))
    list(key_block_spans(piece + (BASE64 + "\n") * 6_000))
    open_block(text)


@pytest.mark.parametrize("pattern", [each for each in vars(key_blocks).values() if isinstance(each, re.Pattern)])
def test_no_group_repeats_possessively(pattern: re.Pattern[str]) -> None:
    """Python before 3.11.5 is wrong about such groups (gh-106052), which no later one shows."""
    assert re.search(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>", pattern.pattern) is None
