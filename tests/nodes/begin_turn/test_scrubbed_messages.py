from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from nodes.begin_turn.scrubbed_messages import scrubbed


def text(given: str) -> str:
    return given.replace("swordfish", "***")


def test_nothing_secret_is_no_change() -> None:
    assert scrubbed([HumanMessage("hello"), AIMessage("hi")], text) is None
    assert scrubbed([], text) is None


@pytest.mark.parametrize(
    ("content", "clean"),
    [
        ("it is swordfish", "it is ***"),
        (["it is swordfish"], ["it is ***"]),
        (
            [{"type": "text", "text": "swordfish"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
            [{"type": "text", "text": "***"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        ),
    ],
)
def test_a_persons_words_are_freed_and_keep_their_id(content: Any, clean: Any) -> None:
    before: list[AnyMessage] = [HumanMessage("first", id="1"), HumanMessage(content, id="2")]
    assert scrubbed(before, text) == [HumanMessage("first", id="1"), HumanMessage(clean, id="2")]
    assert before[1].content == content


@pytest.mark.parametrize("said", ["a\ud800", ["a\ud800"], [{"type": "text", "text": "a\ud800"}]])
def test_half_characters_are_replaced_as_no_checkpoint_holds_them(said: Any) -> None:
    clean = scrubbed([HumanMessage(said)], text)
    assert clean is not None
    assert clean[0].text == "a\ufffd"


def test_what_models_and_tools_said_was_scrubbed_before() -> None:
    assert scrubbed([AIMessage("swordfish"), ToolMessage("swordfish", tool_call_id="1")], text) is None
