from mendgraph.nodes.guard.approvals import (
    NO_PREVIEW,
    UNANSWERED,
    UNREADABLE,
    Decision,
    Preview,
    ShownPreview,
    digest_of,
    read_decision,
)
from mendgraph.nodes.records import ToolCall
from tests.row_tables import rows

ARGUMENTS = {"path": "./a.py", "old_str": "a", "new_str": "b"}
CALL = ToolCall(call_id="1", tool="edit_file", arguments=ARGUMENTS, raw_arguments="")
DIFF = ShownPreview(kind="diff", text="-a\n+b", truncated=False)
SHOWN = Preview(DIFF, ("a.py",), (("a.py", "0" * 64, "mark"),))
REJECTED = Decision("reject")
NO_WORD, NO_ANSWER = Decision("reject", UNREADABLE), Decision("reject", UNANSWERED)


def test_digest_is_another_one_for_other_arguments_another_file_and_another_diff() -> None:
    other = CALL.model_copy(update={"arguments": {**ARGUMENTS, "new_str": "c"}})
    changed = SHOWN._replace(pins=(("a.py", "1" * 64, "mark"),))
    digests = [digest_of(CALL, SHOWN), digest_of(other, SHOWN), digest_of(CALL, changed), digest_of(CALL, NO_PREVIEW)]
    assert len(set(digests)) == 4
    assert digest_of(CALL, SHOWN) == digests[0]


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
def test_answer_is_read_or_counts_as_a_rejection(answer: object, decision: Decision) -> None:
    assert read_decision(answer, 0) == decision
