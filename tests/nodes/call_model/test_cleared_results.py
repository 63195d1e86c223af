import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from nodes.call_model.window import LONGEST_ERROR, is_result, without_results
from nodes.language.history import RESULT_MESSAGE_NAME
from nodes.language.tool_results import parse_text_results, render_text_results
from nodes.records import CallResult, JsonMap, Protocol, ToolErrorCode, ToolResult
from tests.nodes.call_model.window_histories import exchange, failed, read, results, with_ids


def cleared(protocol: Protocol, *given_back: ToolResult, tool: str = "read_file") -> list[JsonMap]:
    """The envelopes of the stand-ins for one exchange, without the tools' names."""
    messages = [without_results(message) for message in exchange(protocol, *given_back, tool=tool)[1:]]
    if protocol is Protocol.NATIVE:
        return [json.loads(message.text) for message in messages if message is not None]
    [message] = messages
    assert message is not None
    parsed = parse_text_results(message.text)
    assert [each.pop("tool") for each in parsed] == [tool] * len(parsed)
    return parsed


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(
    ("tool", "result", "data"),
    [
        (
            "read_file",
            read(3_000, "src/a.py"),
            {
                "path": "src/a.py",
                "total_lines": 3,
                "left_out": "3000 characters, to save room; call read_file on src/a.py again if you need them, fewer "
                "at a time if they are many",
            },
        ),
        (
            "edit_file",
            ToolResult.success(path="a.py", action="edited", diff="+x\n" * 200),
            {
                "path": "a.py",
                "action": "edited",
                "left_out": "600 characters, to save room; read a.py to see it as it is",
            },
        ),
        (
            "search_files",
            ToolResult.success(matches=[{"path": "a.py", "line": 1}] * 20, has_more=False, more=None),
            {
                "has_more": False,
                "more": None,
                "left_out": "501 characters, to save room; make the same call again if you need them, fewer at a "
                "time if they are many",
            },
        ),
        (
            "run_command",
            ToolResult.success(exit_code=1, stdout="x" * 500, clipped=['stdout: read_file path="kept:1"']),
            {
                "exit_code": 1,
                "clipped": ['stdout: read_file path="kept:1"'],
                "left_out": "500 characters, to save room; make the same call again if you need them, fewer at a "
                "time if they are many",
            },
        ),
        ("write_file", ToolResult.success(path="a.py", action="created"), {"path": "a.py", "action": "created"}),
    ],
)
def test_large_fields_give_way_to_a_note(protocol: Protocol, tool: str, result: ToolResult, data: JsonMap) -> None:
    assert cleared(protocol, result, tool=tool) == [{"ok": True, "data": data}]


@pytest.mark.parametrize("protocol", list(Protocol))
def test_what_an_error_says_stays_and_is_kept_short(protocol: Protocol) -> None:
    long = failed("y" * (LONGEST_ERROR + 7))
    short, cut = cleared(protocol, failed("No a.py."), long)
    assert short == {"ok": False, "error": {"code": "not_found", "message": "No a.py.", "suggestions": []}}
    assert cut["error"]["message"] == "y" * LONGEST_ERROR + " [... 7 more characters]"


def test_a_stand_in_answers_the_same_call_under_an_id_of_its_own() -> None:
    [_, result] = with_ids(exchange(Protocol.NATIVE, read(900)))
    assert isinstance(result, ToolMessage)
    stand_in = without_results(result)
    assert isinstance(stand_in, ToolMessage)
    assert stand_in == result.model_copy(update={"content": stand_in.content, "id": "m1-cleared"})
    assert len(stand_in.text) < len(result.text) / 3


@pytest.mark.parametrize(
    "message",
    [HumanMessage("Fix it"), AIMessage("tool_result({})"), ToolMessage([{"type": "text"}], tool_call_id="c")],
)
def test_what_carries_no_results_has_no_stand_in(message: AnyMessage) -> None:
    assert without_results(message) is None


@pytest.mark.parametrize("text", ["x" * 5_000, "[1, 2]" * 900, '{"data": 1}' + " " * 5_000, '{"a":' * 5_000])
@pytest.mark.parametrize("status", ["success", "error"])
def test_results_of_other_origin_are_left_out_as_a_whole(text: str, status: Any) -> None:
    stand_in = without_results(ToolMessage(text, tool_call_id="c", name="look", status=status))
    assert stand_in is not None
    envelope = json.loads(stand_in.text)
    if status == "success":
        note = "make the same call again if you need them, fewer at a time if they are many"
        assert envelope == {"ok": True, "data": {"left_out": f"{len(text)} characters, to save room; {note}"}}
    else:
        assert envelope["error"]["message"].startswith(text[:LONGEST_ERROR])
        assert len(stand_in.text) < 2 * LONGEST_ERROR


def test_lines_that_are_no_results_are_kept_short() -> None:
    line = render_text_results([CallResult(call_id="", tool="t", result=read(900))])
    message = HumanMessage("\n".join(["before", line, "z" * 9_000]), name=RESULT_MESSAGE_NAME)
    stand_in = without_results(message)
    assert stand_in is not None
    before, result, after = stand_in.text.split("\n")
    assert (before, len(parse_text_results(result))) == ("before", 1)
    assert after == "z" * LONGEST_ERROR + f" [... {9_000 - LONGEST_ERROR} more characters]"


def test_a_line_that_only_looks_like_a_result_of_ours_is_kept_short() -> None:
    line = f"tool_result({json.dumps({'tool': 't', 'data': 'z' * 900})})"
    stand_in = without_results(HumanMessage(line, name=RESULT_MESSAGE_NAME))
    assert stand_in is not None
    assert stand_in.text == f"{line[:LONGEST_ERROR]} [... {len(line) - LONGEST_ERROR} more characters]"


@given(st.sampled_from(list(Protocol)), st.lists(results, min_size=1, max_size=4))
def test_stand_ins_are_results_one_for_each_and_stay_as_they_are(
    protocol: Protocol, given_back: list[ToolResult]
) -> None:
    before = [each.as_map() for each in given_back]
    after = cleared(protocol, *given_back)
    assert [each["ok"] for each in after] == [each["ok"] for each in before]
    for message in exchange(protocol, *given_back)[1:]:
        once = without_results(message)
        assert once is not None
        assert is_result(once)
        again = without_results(once)
        assert again is not None
        assert len(again.text) <= max(len(once.text), 700)
    assert {each["error"]["code"] for each in after if not each["ok"]} <= {ToolErrorCode.NOT_FOUND.value}
