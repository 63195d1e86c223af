"""The questions of guard to a person, their texts and choices, without a graph."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mendgraph.nodes.guard.approval_formats import ApprovalRequest, ShownPreview
from mendgraph.nodes.guard.approvals import NOBODY, ApprovalPorts, Preview, Settled, settle_with_person, stop_requested
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import denied
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolSpec, Verdict, VerdictKind
from tests.row_tables import rows

SPECS = {"write": ToolSpec(name="write", description="", parameters={}, effect=Effect.WRITE, path_fields=("path",))}
CALL = ToolCall(call_id="1", tool="write", arguments={"path": "a.py", "text": "x"}, raw_arguments="")
ASKED = Verdict(kind=VerdictKind.ASK, rule="ask_before_write", path="link.py")
ALLOWED = Verdict(kind=VerdictKind.ALLOW, path="c.py")
PINS = (("a.py", "old", "mark"),)
DIFF = ShownPreview(kind="diff", text="+x", truncated=False)
REMEDY = "Do something else, or explain in your answer what is needed."


class Desk:
    """A person who gives these answers; `asked` holds the approval requests."""

    def __init__(
        self, *answers: Any, names: tuple[str, ...] = ("a.py",), hashes: Mapping[str, str] | None = None
    ) -> None:
        self.answers, self.names = list(answers), names
        self.asked: list[ApprovalRequest] = []
        self.ports = ApprovalPorts(
            ask=self.ask,
            subject=lambda _: "",
            preview=lambda calls: {index: self.preview(call) for index, call in calls.items()},
            validate=lambda _, arguments: arguments,
            judge=lambda _: ASKED,
            thread="t",
            known_hashes=hashes or {},
        )

    def ask(self, request: ApprovalRequest) -> object:
        self.asked.append(request)
        answer = self.answers.pop(0)
        return answer(request) if callable(answer) else answer

    def preview(self, call: ToolCall) -> Preview:
        mark = "mark" if call == CALL else "edited"
        return Preview(DIFF, self.names, (("a.py", "old", mark),))

    def settle(self, *verdicts: Verdict) -> Settled:
        return settle_with_person([CALL] * len(verdicts), list(verdicts), SPECS, self.ports)


def test_approved_call_is_pinned_to_what_was_shown() -> None:
    desk = Desk("approve")
    expected = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py", pins=PINS)
    assert desk.settle(ALLOWED, ASKED).verdicts == [ALLOWED, expected]
    assert [(question["index"], question["path"], question["preview"]) for question in desk.asked[0]["calls"]] == [
        (1, "a.py", DIFF)
    ]


def test_link_to_project_configuration_asks_as_such_and_cannot_be_granted() -> None:
    desk = Desk("approve_for_run", names=("a.py", "pyproject.toml"))
    settled = desk.settle(ASKED)
    assert [(question["rule"], question["choices"]) for question in desk.asked[0]["calls"]] == [("project_config", {})]
    assert (settled.verdicts[0].kind, settled.granted) == (VerdictKind.ALLOW, [])


GRANTED = Permission(rule="ask_before_write", tool="write", place="t")


@rows(([GRANTED], PINS, None), ([GRANTED], None, None), ([GRANTED], (), ()), ([], (), ()))
def test_granted_or_harmless_call_is_not_asked_about_but_pinned(
    permissions: list[Permission], seen: tuple[tuple[str, str, str], ...] | None, pins: tuple[()] | None
) -> None:
    """Without pins it could change project configuration unseen, through links that earlier calls create."""
    desk = Desk()
    ports = replace(
        desk.ports, permissions=permissions, preview=lambda calls: dict.fromkeys(calls, Preview(DIFF, ("a.py",), seen))
    )
    settled = settle_with_person([CALL], [ASKED], SPECS, ports)
    expected = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py", pins=pins)
    assert (settled.verdicts, desk.asked) == ([expected], [])


def test_call_that_would_be_refused_anyway_is_not_asked_about() -> None:
    desk, error = Desk(), ToolError(code=ToolErrorCode.NOT_FOUND, message="There is no such program.")
    settled = settle_with_person([CALL], [ASKED], SPECS, replace(desk.ports, subject=lambda _: error))
    assert (settled.verdicts[0].kind, settled.verdicts[0].error, desk.asked) == (VerdictKind.DENY, error, [])


APPROVED = "A person did not approve this call"
REFUSED, REQUIRED = ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.APPROVAL_REQUIRED


@rows(
    ("reject", REFUSED, f"{APPROVED}. {REMEDY}", "you refused"),
    ({"action": "reject", "reason": "a\nb\u202e"}, REFUSED, f"{APPROVED}: a\\nb\\u202e. {REMEDY}", "you refused"),
    (None, REFUSED, f"{APPROVED}: there was no answer for this call. {REMEDY}", "no readable answer came for"),
    ("nobody", REQUIRED, NOBODY, "nobody could be asked to approve"),
)
def test_unapproved_call_says_why(decision: Any, code: ToolErrorCode, message: str, refused: str) -> None:
    settled = Desk({"decisions": {"0": decision}}).settle(ASKED)
    expected = denied("ask_before_write", code, message, path="a.py")
    assert settled.verdicts == [expected.model_copy(update={"refused": refused})]


def test_call_on_a_file_changed_since_it_was_shown_is_refused() -> None:
    for answer in ("approve", {"decisions": {"0": {"action": "edit", "arguments": {"path": "b"}}}}):
        verdict = Desk(answer, hashes={"a.py": "older"}).settle(ASKED).verdicts[0]
        assert (verdict.kind, verdict.error and verdict.error.code) == (VerdictKind.DENY, ToolErrorCode.CONFLICT)


def test_answer_with_the_digest_approves_exactly_what_was_shown() -> None:
    def approve_digest(request: ApprovalRequest) -> JsonMap:
        return {"decisions": {"0": {"action": "approve", "digest": request["calls"][0]["digest"]}}}

    assert Desk(approve_digest, hashes={"a.py": "older"}).settle(ASKED).verdicts[0].kind is VerdictKind.ALLOW
    stale = Desk({"decisions": {"0": {"action": "approve", "digest": "0" * 16}}}).settle(ASKED).verdicts[0]
    assert (stale.kind, stale.error and stale.error.code) == (VerdictKind.DENY, ToolErrorCode.CONFLICT)


def test_edited_call_is_pinned_to_its_own_effect() -> None:
    settled = Desk({"decisions": {"0": {"action": "edit", "arguments": {"path": "a.py", "text": "y"}}}}).settle(ASKED)
    assert settled.items == [CALL.model_copy(update={"arguments": {"path": "a.py", "text": "y"}})]
    assert (settled.verdicts[0].edited, settled.verdicts[0].pins) == (("text",), (("a.py", "old", "edited"),))
    # An edit that changes nothing is an approval.
    settled = Desk({"decisions": {"0": {"action": "edit", "arguments": CALL.arguments}}}).settle(ASKED)
    assert (settled.items, settled.verdicts[0].edited, settled.verdicts[0].pins) == ([CALL], (), PINS)


def test_stop_runs_no_call_of_the_reply() -> None:
    settled = Desk({"decisions": {"1": "approve", "2": "stop"}}).settle(ALLOWED, ASKED, ASKED)
    assert [verdict.kind for verdict in settled.verdicts] == [VerdictKind.DENY] * 3
    assert stop_requested(settled.verdicts) is not None
    assert stop_requested([ALLOWED, ASKED]) is None
