import json

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AnyMessage, HumanMessage

from nodes.call_model.compaction import (
    LONGEST_ITEM,
    MOST_ITEMS,
    SUMMARY_SYSTEM,
    Summary,
    helps,
    read_summary,
    summary_request,
    summary_text,
)
from nodes.records import Protocol
from tests.nodes.call_model.window_histories import exchange, histories, read, size_of, with_ids

GOOD = '{"done": ["read a.py"], "findings": ["add() subtracts"], "left": [], "files": ["a.py"]}'
READ_GOOD = Summary(done=("read a.py",), findings=("add() subtracts",), files=("a.py",))


@pytest.mark.parametrize(
    "reply", [GOOD, f"```json\n{GOOD}\n```", f"```\n{GOOD}\n```\n", f"Here it is:\n{GOOD}\nI hope it helps."]
)
def test_a_summary_is_read_with_or_without_a_fence(reply: str) -> None:
    assert read_summary(reply) == READ_GOOD


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I read a.py.",
        "{",
        "}{",
        "[]",
        "{}",
        '{"done": [], "left": [" "]}',
        '{"done": "read a.py"}',
        '{"done": [1]}',
        '{"done": ["a"], "mood": ["good"]}',
        '{"done": ["\\ud800"]}',
        json.dumps({"done": ["x" * (LONGEST_ITEM + 1)]}),
        json.dumps({"done": ["x"] * (MOST_ITEMS + 1)}),
        '{"done": ' + "[" * 5_000 + "}",
    ],
)
def test_what_fits_no_schema_is_no_summary(reply: str) -> None:
    assert read_summary(reply) is None


def test_a_summary_is_shown_in_sections_one_line_an_item() -> None:
    assert summary_text(Summary(done=("a\n b", "c"), left=("d",))) == "Done so far:\n- a b\n- c\nLeft to do:\n- d"
    assert summary_text(READ_GOOD) == (
        "Done so far:\n- read a.py\nFound out:\n- add() subtracts\nFiles that matter:\n- a.py"
    )


@pytest.mark.parametrize(("before", "after", "expected"), [(1_000, 700, True), (1_000, 701, False), (0, 1, False)])
def test_a_summary_has_to_save_three_tenths(before: int, after: int, expected: bool) -> None:
    assert helps(before, after) is expected


@pytest.mark.parametrize("protocol", list(Protocol))
def test_the_request_tells_what_happened(protocol: Protocol) -> None:
    old = with_ids([HumanMessage("Fix a.py"), *exchange(protocol, read(3), said="I look.")])
    messages = summary_request(old, "Fix a.py", "Done so far:\n- b", size_of, 10_000, 301)
    call = {Protocol.NATIVE: 'read_file({"path": "a.py"})', Protocol.TEXT: 'tool: read_file({"path":"a.py"})'}[protocol]
    assert messages == (
        {"role": "system", "content": SUMMARY_SYSTEM},
        {
            "role": "user",
            "content": "The request of the person:\n\nFix a.py\n\nThe summary of what was before that:\n\n"
            "Done so far:\n- b\n\nWhat happened:\n\nPERSON: Fix a.py\n\n"
            f"AGENT: I look.\n{call}\n\nRESULT: {old[2].text}\n\nNow answer with the JSON object: 150 words at most.",
        },
    )


def test_what_does_not_fit_is_clipped_and_then_left_out_from_the_oldest() -> None:
    old = with_ids([message for at in range(40) for message in exchange(Protocol.NATIVE, read(5_000, f"f{at}.py"))])
    whole, clipped, half = (summary_request(old, "R", "", size_of, most, 800) for most in (40_000, 10_000, 3_000))
    assert whole is not None
    assert clipped is not None
    assert half is not None
    assert "f0.py" in clipped[1]["content"]
    assert "f0.py" not in half[1]["content"]
    assert "f39.py" in half[1]["content"]
    assert len(whole[1]["content"]) > len(clipped[1]["content"]) > len(half[1]["content"])
    assert summary_request(old, "R", "", size_of, 100, 800) is None


@given(histories(), st.integers(0, 8_000))
def test_a_summary_request_never_passes_its_bound(history: list[AnyMessage], most: int) -> None:
    messages = summary_request(history, history[0].text, "", size_of, most, 800)
    assert messages is None or sum(size_of(HumanMessage(each["content"])) for each in messages) <= most


@given(
    st.builds(Summary, **{name: st.lists(st.text(max_size=30), max_size=4).map(tuple) for name in Summary.model_fields})
)
def test_what_is_a_summary_is_read_as_it_is(summary: Summary) -> None:
    items = [item for field in summary.model_dump().values() for item in field]
    expected = summary if any(item.strip() for item in items) else None
    assert read_summary(f"```json\n{summary.model_dump_json()}\n```") == expected
