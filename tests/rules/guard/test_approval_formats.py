"""Requests for approval and their answers, in our own form and in those of chat pages."""

import json
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.nodes.guard.approval_formats import UNANSWERED, UNREADABLE, Decision, page_fields, read_answer
from tests.row_tables import rows

EDIT = {"path": "a.py", "old_str": "1", "new_str": "2", "replace_all": False}
DIFF = {"kind": "diff", "text": "-1\n+2", "truncated": False}
ONE: Any = {"index": 0, "tool": "edit_file", "path": "a.py", "rule": "ask", "arguments": EDIT, "preview": DIFF}
RUN = {"command": "pytest"}
NOTHING = {"kind": "arguments", "text": "", "truncated": False}
TWO: Any = {"index": 2, "tool": "run_command", "path": "", "rule": "ask", "arguments": RUN, "preview": NOTHING}
APPROVED, REJECTED = Decision("approve"), Decision("reject")
NO_WORD, NO_ANSWER = Decision("reject", UNREADABLE), Decision("reject", UNANSWERED)


def test_single_call_is_a_form_of_its_arguments() -> None:
    described = "edit_file a.py (ask)\n\n```diff\n-1\n+2\n```"
    assert page_fields([ONE]) == {
        "action_request": {"action": "edit_file", "args": EDIT},
        "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
        "description": described,
        "action_requests": [{"name": "edit_file", "args": EDIT, "description": described}],
        "review_configs": [{"action_name": "edit_file", "allowed_decisions": ["approve", "edit", "reject"]}],
    }


def test_file_cannot_close_the_fence_that_shows_it() -> None:
    escaping: Any = {**ONE, "preview": {"kind": "arguments", "text": "````\n# Approved\n```", "truncated": False}}
    assert page_fields([escaping])["description"] == "edit_file a.py (ask)\n\n`````text\n````\n# Approved\n```\n`````"


@rows(
    ([{"type": "accept", "args": None}], {0: APPROVED, 2: APPROVED}),
    ([{"type": "ignore", "args": None}], {0: REJECTED, 2: REJECTED}),
    ([{"type": "response", "args": "No."}], {0: Decision("reject", "No."), 2: Decision("reject", "No.")}),
    ([{"type": "edit", "args": {"action": "2 calls", "args": {}}}], {0: NO_ANSWER, 2: NO_ANSWER}),
    ([{"type": "accept"}, {"type": "accept"}], {0: NO_WORD, 2: NO_WORD}),
    ([{"args": None}], {0: NO_WORD, 2: NO_WORD}),
    (
        {"decisions": [{"type": "approve"}, {"type": "reject", "message": "No."}]},
        {0: APPROVED, 2: Decision("reject", "No.")},
    ),
    ({"decisions": [{"type": "respond", "message": "Later."}]}, {0: Decision("reject", "Later."), 2: NO_ANSWER}),
    (
        {"decisions": [{"type": "edit", "edited_action": {"name": "edit_file", "args": {"path": "b.py"}}}]},
        {0: Decision("edit", arguments={"path": "b.py"}), 2: NO_ANSWER},
    ),
    ({"decisions": [{"type": "edit"}]}, {0: NO_WORD, 2: NO_ANSWER}),
    ({"decisions": [{"type": "explode"}]}, {0: NO_WORD, 2: NO_ANSWER}),
    ({"decisions": [{"type": "approve"}] * 3}, {0: NO_ANSWER, 2: NO_ANSWER}),
)
def test_answer_of_a_chat_page_is_read(answer: Any, decisions: Any) -> None:
    assert read_answer(answer, [ONE, TWO]) == decisions


@rows(("true", True), ("perhaps", "perhaps"))
def test_text_for_a_non_text_argument_is_parsed_as_json(text: str, value: object) -> None:
    edited = {**EDIT, "new_str": "3", "replace_all": text, "extra": "1"}
    decision = read_answer([{"type": "edit", "args": {"action": "edit_file", "args": edited}}], [ONE])[0]
    assert decision == Decision("edit", arguments={**edited, "replace_all": value})


words = st.sampled_from(["accept", "approve", "edit", "ignore", "reject", "respond", "response", "stop", "", "x"])
values = st.one_of(st.none(), st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.none(), max_size=2))
decisions = st.lists(
    st.fixed_dictionaries({"type": words | st.none()}, optional={"args": values, "edited_action": values})
)


@given(st.one_of(decisions, st.fixed_dictionaries({"decisions": decisions}), values))
def test_only_an_explicit_yes_approves_a_call_unchanged(answer: Any) -> None:
    given_words = json.dumps(answer)
    for decision in read_answer(answer, [ONE, TWO]).values():
        assert decision.action != "approve" or '"accept"' in given_words or '"approve"' in given_words


@rows(
    ("nodes/a-b.py", "nodes/a-b.py"),
    ("![x](https:/evil.test/a.png)", "`![x](https:/evil.test/a.png)`"),
    ("a`](b)``.py", "``` a`](b)``.py ```"),
    ("a\n\n# Approved\n.py", "`a  # Approved .py`"),
)
def test_file_name_is_not_rendered_as_markup(path: str, rendered: str) -> None:
    assert page_fields([TWO | {"path": path}])["description"] == f"run_command {rendered} (ask)"


@rows(
    [{"type": "edit", "args": {"action": "read_file", "args": {"path": "a.py"}}}],
    {"decisions": [{"type": "edit", "edited_action": {"name": "read_file", "args": {"path": "a.py"}}}]},
)
def test_edited_answer_cannot_change_the_tool(answer: object) -> None:
    question: Any = {**ONE, "arguments": {"path": "a.py"}, "tool": "delete_file"}
    other = read_answer(answer, [question])[0]
    assert other.action == "reject"
    assert other.reason == "the call was changed to another tool, read_file, which cannot be done here"
    question["tool"] = "read_file"
    same = read_answer(answer, [question])[0]
    assert (same.action, same.arguments) == ("edit", {"path": "a.py"})


@rows(
    ("approve", Decision("approve")),
    ("approve_for_run", Decision("approve_for_run")),
    ("reject", REJECTED),
    ("nobody", Decision("nobody")),
    ("edit", NO_WORD),
    ({"decisions": {0: {"action": "approve", "reason": ""}}}, Decision("approve")),
    ({"decisions": {"0": {"action": "approve", "digest": "abc"}}}, Decision("approve", digest="abc")),
    ({"decisions": {"0": "approve"}}, Decision("approve")),
    ({"decisions": {"0": {"action": "reject", "reason": "use b.py"}}}, Decision("reject", "use b.py")),
    ({"decisions": {"0": {"action": "edit", "arguments": {"a": 1}}}}, Decision("edit", arguments={"a": 1})),
    ({"decisions": {"0": {"action": "edit"}}}, NO_WORD),
    ({"decisions": {"0": {"action": "edit", "arguments": [1]}}}, NO_WORD),
    ({"decisions": {"0": {"action": "approve", "digest": 7}}}, NO_WORD),
    ({"decisions": {"0": {}}}, NO_WORD),
    ({"decisions": {"1": {"action": "approve"}}}, NO_ANSWER),
    ({"decisions": {}}, NO_ANSWER),
    ({"decisions": ["approve"]}, NO_WORD),
    ({"action": "approve"}, NO_WORD),
    ("yes", NO_WORD),
    (True, NO_WORD),
    (None, NO_WORD),
)
def test_unreadable_answer_counts_as_a_rejection(answer: object, decision: Decision) -> None:
    assert read_answer(answer, [ONE]) == {0: decision}


HUNKS: Any = {**ONE, "hunks": 3}


@rows(
    ({"action": "approve", "hunks": [3, 1, 1]}, Decision("approve", hunks=(1, 3))),
    ({"action": "approve", "hunks": (2,)}, Decision("approve", hunks=(2,))),
    ({"action": "approve", "hunks": [1, 2, 3]}, APPROVED),
    ({"action": "approve", "hunks": None}, NO_WORD),
    ({"action": "reject", "hunks": [9]}, REJECTED),
    ({"action": "approve", "hunks": []}, NO_WORD),
    ({"action": "approve", "hunks": [0]}, NO_WORD),
    ({"action": "approve", "hunks": [1, 4]}, NO_WORD),
    ({"action": "approve", "hunks": [True]}, NO_WORD),
    ({"action": "approve", "hunks": ["1"]}, NO_WORD),
    ({"action": "approve", "hunks": "1"}, NO_WORD),
    ({"action": "approve_for_run", "hunks": [1]}, NO_WORD),
    ({"action": "edit", "arguments": EDIT, "hunks": [1]}, NO_WORD),
)
def test_hunks_are_numbers_of_the_shown_diff(fields: object, decision: Decision) -> None:
    assert read_answer({"decisions": {"0": fields}}, [HUNKS]) == {0: decision}


@rows(([2], Decision("approve", hunks=(2,))), ([], NO_WORD), ([4], NO_WORD), (None, NO_WORD))
def test_hunks_in_the_answer_of_a_chat_page_limit_its_approval(hunks: object, decision: Decision) -> None:
    fields = {"type": "approve", "hunks": hunks}
    assert read_answer({"decisions": [fields]}, [HUNKS]) == read_answer([fields], [HUNKS]) == {0: decision}


def test_hunks_of_a_call_that_offers_none_cannot_be_approved() -> None:
    assert read_answer({"decisions": {"0": {"action": "approve", "hunks": [1]}}}, [ONE]) == {0: NO_WORD}
