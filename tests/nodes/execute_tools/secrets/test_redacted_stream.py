from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.redact import MARK, Redactor
from nodes.execute_tools.secrets.key_blocks import open_block
from nodes.execute_tools.secrets.redacted_stream import RedactedStream
from tests.nodes.execute_tools.secrets.samples import BASE64, BENIGN, BLOCKS, KEYS, PARTS

KNOWN = "my own secret 42"
REDACTOR = Redactor([KNOWN, "line-1-of-the-value\nline-2-of-the-value"])
TEXTS = [
    text for text in [*KEYS, *("".join(part) for part in PARTS), *BLOCKS, *BENIGN, KNOWN] if not text.startswith("{")
]


def shown(text: str, cuts: list[int], redactor: Redactor = REDACTOR) -> list[str]:
    stream = RedactedStream(redactor)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [*(stream.feed(text[a:b]) for a, b in pairwise(bounds)), stream.close()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_single_characters_is_shown_like_the_whole(text: str) -> None:
    for whole in (f"Look: {text} and so on.\nEnd", text, f"{text}\n{text}"):
        assert "".join(shown(whole, list(range(len(whole))))) == REDACTOR.text(whole)


@given(texts=st.lists(st.sampled_from(TEXTS), max_size=5), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_a_text_is_shown_like_the_whole_however_it_is_cut(texts: list[str], cuts: list[int]) -> None:
    whole = "\n".join(texts)
    assert "".join(shown(whole, cuts)) == REDACTOR.text(whole)


@given(text=st.text(alphabet="ab1=:'\"- \n密", max_size=60), cuts=st.lists(st.integers(0, 60), max_size=10))
def test_any_text_is_shown_like_the_whole(text: str, cuts: list[int]) -> None:
    assert "".join(shown(text, cuts)) == REDACTOR.text(text)


def test_ordinary_text_waits_for_the_end_of_its_word_only() -> None:
    stream = RedactedStream(REDACTOR)
    pieces = ["The ", "pass", "word is", " wrong: ", "fix it", ".", "\n", "密码", "x"]
    assert [stream.feed(piece) for piece in pieces] == [
        "The ",
        "",
        "password ",
        "is wrong: ",
        "fix ",
        "",
        "it.\n",
        "密码",
        "",
    ]
    assert stream.close() == "x"
    assert stream.close() == ""


def test_a_known_value_of_several_words_waits_for_its_last_one() -> None:
    stream = RedactedStream(REDACTOR)
    assert [stream.feed(piece) for piece in ["a my ", "own ", "secret ", "42", " b "]] == [
        "a ",
        "",
        "",
        "",
        f"{MARK} b ",
    ]


def test_what_only_begins_like_a_known_value_is_shown() -> None:
    stream = RedactedStream(REDACTOR)
    assert [stream.feed(piece) for piece in ["a my ", "own ", "goal "]] == ["a ", "", "my own goal "]


def test_a_key_waits_for_its_last_line() -> None:
    stream = RedactedStream(REDACTOR)
    lines = f"key:\n{BLOCKS[0]}\ndone\n".splitlines(keepends=True)
    assert [stream.feed(line) for line in lines] == ["key:\n", "", "", "", "", f"{MARK}\n", "done\n"]


def test_a_name_is_remembered_until_its_value_comes() -> None:
    stream = RedactedStream(REDACTOR)
    assert [stream.feed(piece) for piece in ["password", " = ", '"hunter2', "hunter2", '"\n']] == [
        "",
        "password = ",
        "",
        "",
        f'"{MARK}"\n',
    ]


def test_a_stream_that_cannot_be_looked_through_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    stream = RedactedStream(REDACTOR)
    monkeypatch.setattr(Redactor, "spans", broken)
    assert stream.feed("secret words ") == MARK
    assert stream.feed("end") == ""
    assert stream.close() == MARK


def test_a_key_without_an_end_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counting(text: str) -> int | None:
        looked_at.append(len(text))
        return open_block(text)

    monkeypatch.setattr("nodes.execute_tools.secrets.redacted_stream.open_block", counting)
    stream = RedactedStream(REDACTOR)
    stream.feed("-----BEGIN PRIVATE KEY-----\n")
    for _ in range(1_000):
        assert stream.feed(f"{BASE64}\n") == ""
    assert stream.close() == MARK
    assert len(looked_at) < 100
