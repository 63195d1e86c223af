"""Approvals as chat pages for LangGraph ask and answer them."""

import json
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.nodes.guard.approvals import read_decision
from mendgraph.nodes.guard.chat_pages import page_answer, page_fields
from tests.row_tables import rows

EDIT = {"path": "a.py", "old_str": "1", "new_str": "2", "replace_all": False}
DIFF = {"kind": "diff", "text": "-1\n+2", "truncated": False}
ONE: Any = {"index": 0, "tool": "edit_file", "path": "a.py", "rule": "ask", "arguments": EDIT, "preview": DIFF}
RUN = {"command": "pytest"}
TWO: Any = {"index": 2, "tool": "run_command", "path": "", "rule": "ask", "arguments": RUN}
APPROVE = {"action": "approve"}


def test_single_call_is_a_form_of_its_arguments() -> None:
    described = "edit_file a.py (ask)\n\n```diff\n-1\n+2\n```"
    assert page_fields([ONE]) == {
        "action_request": {"action": "edit_file", "args": EDIT},
        "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
        "description": described,
        "action_requests": [{"name": "edit_file", "args": EDIT, "description": described}],
        "review_configs": [{"action_name": "edit_file", "allowed_decisions": ["approve", "edit", "reject"]}],
    }


def test_file_cannot_end_the_block_in_which_it_is_shown() -> None:
    escaping = {**ONE, "preview": {"kind": "arguments", "text": "````\n# Approved\n```", "truncated": False}}
    assert page_fields([escaping])["description"] == "edit_file a.py (ask)\n\n`````text\n````\n# Approved\n```\n`````"


@rows(
    ([{"type": "accept", "args": None}], {"0": APPROVE, "2": APPROVE}),
    ([{"type": "ignore", "args": None}], {"0": {"action": "reject"}, "2": {"action": "reject"}}),
    ([{"type": "response", "args": "No."}], {key: {"action": "reject", "reason": "No."} for key in ("0", "2")}),
    ([{"type": "edit", "args": {"action": "2 calls", "args": {}}}], {}),
    ([{"type": "accept"}, {"type": "accept"}], None),
    ([{"args": None}], None),
    (
        {"decisions": [{"type": "approve"}, {"type": "reject", "message": "No."}]},
        {"0": APPROVE, "2": {"action": "reject", "reason": "No."}},
    ),
    ({"decisions": [{"type": "respond", "message": "Later."}]}, {"0": {"action": "reject", "reason": "Later."}}),
    (
        {"decisions": [{"type": "edit", "edited_action": {"name": "edit_file", "args": {"path": "b.py"}}}]},
        {"0": {"action": "edit", "arguments": {"path": "b.py"}}},
    ),
    ({"decisions": [{"type": "edit"}]}, {"0": {"action": "edit"}}),
    ({"decisions": [{"type": "explode"}]}, {"0": {"action": "explode"}}),
    ({"decisions": [{"type": "approve"}] * 3}, {}),
)
def test_answer_of_a_page_is_one_of_ours(answer: Any, decisions: Any) -> None:
    expected = answer if decisions is None else {"decisions": decisions}
    assert page_answer(answer, [ONE, TWO]) == expected


def test_field_that_held_no_text_is_read_as_json() -> None:
    edited = {**EDIT, "new_str": "3", "replace_all": "true", "extra": "1"}
    answer = [{"type": "edit", "args": {"action": "edit_file", "args": edited}}]
    read = page_answer(answer, [ONE])
    assert read == {"decisions": {"0": {"action": "edit", "arguments": {**edited, "replace_all": True}}}}
    answer[0]["args"]["args"] = {"replace_all": "perhaps"}  # type: ignore[index]
    assert page_answer(answer, [ONE]) == {
        "decisions": {"0": {"action": "edit", "arguments": {"replace_all": "perhaps"}}}
    }


words = st.sampled_from(["accept", "approve", "edit", "ignore", "reject", "respond", "response", "stop", "", "x"])
values = st.one_of(st.none(), st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.none(), max_size=2))
decisions = st.lists(
    st.fixed_dictionaries({"type": words | st.none()}, optional={"args": values, "edited_action": values})
)


@given(st.one_of(decisions, st.fixed_dictionaries({"decisions": decisions}), values))
def test_nothing_but_a_word_for_yes_lets_a_call_run_as_it_is(answer: Any) -> None:
    given_words = json.dumps(answer)
    for index in (0, 2):
        action = read_decision(page_answer(answer, [ONE, TWO]), index).action
        assert action != "approve" or '"accept"' in given_words or '"approve"' in given_words


@rows(
    ("nodes/a-b.py", "nodes/a-b.py"),
    ("![x](https:/evil.test/a.png)", "`![x](https:/evil.test/a.png)`"),
    ("a`](b)``.py", "``` a`](b)``.py ```"),
    ("a\n\n# Approved\n.py", "`a  # Approved .py`"),
)
def test_file_name_is_no_markup_on_a_page(path: str, said: str) -> None:
    assert page_fields([{**TWO, "path": path}])["description"] == f"run_command {said} (ask)"


@rows(
    [{"type": "edit", "args": {"action": "read_file", "args": {"path": "a.py"}}}],
    {"decisions": [{"type": "edit", "edited_action": {"name": "read_file", "args": {"path": "a.py"}}}]},
)
def test_edit_cannot_exchange_the_tool(answer: object) -> None:
    asked: Any = {**ONE, "arguments": {"path": "a.py"}, "tool": "delete_file"}
    other = read_decision(page_answer(answer, [asked]), 0)
    assert other.action == "reject"
    assert other.reason == "the call was changed to another tool, read_file, which cannot be done here"
    asked["tool"] = "read_file"
    same = read_decision(page_answer(answer, [asked]), 0)
    assert (same.action, same.arguments) == ("edit", {"path": "a.py"})
