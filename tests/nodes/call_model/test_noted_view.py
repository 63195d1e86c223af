"""Where in a request a project's notes stand."""

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from nodes.call_model.window import StandIns, noted_request, notes_before, notes_tokens, with_notes
from nodes.language.history import RESULT_MESSAGE_NAME
from nodes.language.project_notes import ProjectNotes, notes_text

NOTES = (ProjectNotes(path="AGENTS.md", text="Use tabs."),)
TASK, REPLY = HumanMessage("Mend it.", id="1"), AIMessage("Done.", id="2")


def contents(messages: list[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


def test_notes_come_first_in_one_message_with_the_request() -> None:
    made: StandIns = {}
    view = with_notes([TASK, REPLY], NOTES, made)
    assert contents(view) == [f"{notes_text(NOTES)}\n\nThe request:\nMend it.", "Done."]
    assert view[1] is REPLY
    again = with_notes([TASK, REPLY, TASK], NOTES, made)
    assert again[0] is view[0]


def test_without_notes_the_messages_are_the_same() -> None:
    view = with_notes([TASK, REPLY], (), {})
    assert all(new is old for new, old in zip(view, [TASK, REPLY], strict=True))
    assert noted_request([{"role": "user", "content": "x"}], ()) == ({"role": "user", "content": "x"},)
    assert notes_tokens(()) == 0


def test_what_is_no_request_keeps_its_own_message() -> None:
    pictures = HumanMessage([{"type": "text", "text": "Look."}])
    results = HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME)
    for first in (REPLY, pictures, results):
        assert contents(with_notes([first], NOTES, {})) == [notes_text(NOTES), first.text]
    assert contents(with_notes([], NOTES, {})) == [notes_text(NOTES)]


def test_other_notes_are_another_message() -> None:
    made: StandIns = {}
    other = (ProjectNotes(path="AGENTS.md", text="Use spaces."),)
    assert with_notes([TASK], NOTES, made)[0].id != with_notes([TASK], other, made)[0].id


def test_a_request_in_block_form_ends_with_notes_and_request() -> None:
    said = noted_request([{"role": "system", "content": "s"}, {"role": "user", "content": "Mend it."}], NOTES)
    assert said == ({"role": "system", "content": "s"}, {"role": "user", "content": notes_before(NOTES, "Mend it.")})
    assert notes_tokens(NOTES) > len(notes_text(NOTES)) // 5
