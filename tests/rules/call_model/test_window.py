import json
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.call_model.window import (
    LONGEST_ERROR,
    MOST_STAND_INS,
    WHOLE,
    StandIns,
    Window,
    shown,
    with_notes,
    without_results,
)
from mendgraph.nodes.documents.memory import Memory
from mendgraph.nodes.language.project_notes import ProjectNotes, notes_text
from mendgraph.nodes.language.text_protocol import parse_text_results
from mendgraph.nodes.records import JsonMap, Protocol, ToolResult
from tests.row_tables import rows
from tests.rules.call_model.window_histories import exchange, failed, read, with_ids

TASK = HumanMessage("Fix a.py")


def texts(messages: list[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


def test_head_before_a_request_is_merged_with_it() -> None:
    history = with_ids([TASK, AIMessage("Done."), HumanMessage("Now b.py")])
    assert texts(shown(history, Window(first="m2", head="HEAD"))) == ["HEAD\n\nNow b.py"]


@rows(WHOLE, Window(first="gone", head="HEAD", cleared=("gone",)), Window(first="m0"))
def test_unknown_ids_hide_nothing(window: Window) -> None:
    history = with_ids([TASK, *exchange(Protocol.NATIVE, read(900))])
    assert shown(history, window) == history
    assert shown([], window) == []


def test_old_stand_ins_are_evicted() -> None:
    stand_ins: StandIns = {str(number): (TASK, TASK) for number in range(MOST_STAND_INS + 1)}
    history = with_ids([TASK, *exchange(Protocol.NATIVE, read(900))])
    shown(history, Window(cleared=("m2",)), stand_ins)
    assert list(stand_ins) == ["m2"]


def test_memory_shows_a_bounded_view_and_keeps_all_messages() -> None:
    memory = Memory(2_000, reply_tokens=100)
    memory.add(TASK, *exchange(Protocol.TEXT, read(30)))
    assert memory.shown() == memory.messages
    for _ in range(40):
        memory.add(*exchange(Protocol.TEXT, read(900)))
    view = memory.shown()
    assert sum(len(text) for text in texts(view)) < 3 * 2_000
    assert "Fix a.py" in view[0].text
    assert texts(view)[-2:] == texts(memory.messages)[-2:]
    assert len(memory.messages) == 3 + 40 * 2
    assert memory.shown() == view
    unbounded = Memory()
    unbounded.add(TASK)
    assert unbounded.shown() == unbounded.messages


def test_memory_can_summarize_what_slides_out() -> None:
    requests: list[list[JsonMap]] = []

    def summarise(messages: list[JsonMap]) -> str:
        requests.append(messages)
        return '{"done": ["read it"], "findings": ["x is 42"], "left": [], "files": []}'

    memory = Memory(6_000, reply_tokens=100, summarise=summarise)
    memory.add(TASK)
    for number in range(80):
        memory.add(AIMessage(f"I think {number} " * 20), HumanMessage("tool_result({})", name="tool_result"))
    assert "x is 42" in memory.shown()[0].text
    assert [message["role"] for message in requests[0]] == ["system", "user"]


def cleared(protocol: Protocol, *given_back: ToolResult, tool: str = "read_file") -> list[JsonMap]:
    """The envelopes of the stand-ins for one exchange, without the tools' names."""
    messages = [without_results(message) for message in exchange(protocol, *given_back, tool=tool)[1:]]
    if protocol is Protocol.NATIVE:
        return [json.loads(message.text) for message in messages if message is not None]
    [message] = messages
    assert message is not None
    parsed = parse_text_results(message.text)
    assert [envelope.pop("tool") for envelope in parsed] == [tool] * len(parsed)
    return parsed


FEWER = "again if you need them, fewer at a time if they are many"
READ, EDITED = read(3_000, "src/a.py"), ToolResult.success(path="a.py", action="edited", diff="+x\n" * 200)
FOUND = ToolResult.success(matches=[{"path": "a.py", "line": 1}] * 20, has_more=False, more=None)


@rows(
    ("read_file", READ, {"path": "src/a.py", "total_lines": 3}, f"3000 {{}}; call read_file on src/a.py {FEWER}"),
    ("edit_file", EDITED, {"path": "a.py", "action": "edited"}, "600 {}; read a.py to see it as it is"),
    ("search_files", FOUND, {"has_more": False, "more": None}, f"501 {{}}; make the same call {FEWER}"),
)
def test_large_fields_are_replaced_by_a_note(tool: str, result: ToolResult, fields: JsonMap, note: str) -> None:
    data = {**fields, "left_out": note.format("characters, to save room")}
    for protocol in Protocol:
        assert cleared(protocol, result, tool=tool) == [{"ok": True, "data": data}]


@rows(*Protocol)
def test_error_is_kept_and_shortened(protocol: Protocol) -> None:
    long = failed("y" * (LONGEST_ERROR + 7))
    short, cut = cleared(protocol, failed("No a.py."), long)
    assert short == {"ok": False, "error": {"code": "not_found", "message": "No a.py.", "suggestions": []}}
    assert cut["error"]["message"] == "y" * LONGEST_ERROR + " [... 7 more characters]"


@rows("x" * 5_000, "[1, 2]" * 900, '{"data": 1}' + " " * 5_000, '{"a":' * 5_000)
@rows("success", "error")
def test_foreign_results_are_left_out_as_a_whole(status: Any, text: str) -> None:
    stand_in = without_results(ToolMessage(text, tool_call_id="c", name="look", status=status))
    assert stand_in is not None
    envelope = json.loads(stand_in.text)
    if status == "success":
        note = "make the same call again if you need them, fewer at a time if they are many"
        assert envelope == {"ok": True, "data": {"left_out": f"{len(text)} characters, to save room; {note}"}}
    else:
        assert envelope["error"]["message"].startswith(text[:LONGEST_ERROR])
        assert len(stand_in.text) < 2 * LONGEST_ERROR


NOTES = (ProjectNotes(path="AGENTS.md", text="Use tabs."),)
ASKED, REPLY = HumanMessage("Mend it.", id="1"), AIMessage("Done.", id="2")


def contents(messages: list[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


def test_notes_come_first_in_one_message_with_the_request() -> None:
    stand_ins: StandIns = {}
    view = with_notes([ASKED, REPLY], NOTES, stand_ins)
    assert contents(view) == [f"{notes_text(NOTES)}\n\nThe request:\nMend it.", "Done."]
    assert view[1] is REPLY
    again = with_notes([ASKED, REPLY, ASKED], NOTES, stand_ins)
    assert again[0] is view[0]
