from nodes.call_model.compaction import LONGEST_EARLIER, MOST_EARLIER, Hidden, barest, head_text, quote_bounded
from nodes.records import Plan, PlanStatus, PlanStep

PLAN = Plan(
    steps=(
        PlanStep(title="Read", status=PlanStatus.DONE),
        PlanStep(title="Write", status=PlanStatus.IN_PROGRESS),
        PlanStep(title="Test"),
    )
)


def test_a_head_tells_everything_and_ends_with_the_request() -> None:
    hidden = Hidden(
        request="Fix a.py,\n  as it was.",
        earlier=("Look around",),
        plan=PLAN,
        changed=("a.py", "b.py"),
        summary="Done so far:\n- read a.py",
        left_out=2,
    )
    assert head_text(hidden) == (
        "The beginning of this conversation is not shown any more, to save room.\n\n"
        "2 exchanges were left out without a summary; files can be read again.\n\n"
        "Earlier requests:\n- Look around\n\n"
        "From an automatic summary of what was before, not the person's words:\nDone so far:\n- read a.py\n\n"
        "Changed files: a.py, b.py\n\n"
        "The plan:\n[x] Read\n[>] Write\n[ ] Test\n\n"
        "The request, which you are working on:\nFix a.py,\n  as it was."
    )


def test_a_head_with_nothing_to_tell_says_that_something_is_missing() -> None:
    assert head_text(Hidden(plan=Plan())) == "The beginning of this conversation is not shown any more, to save room."
    assert "\n\n1 exchange was left out without" in head_text(Hidden(left_out=1))


def test_the_barest_head_is_the_request() -> None:
    hidden = Hidden(request="R" * 5_000, earlier=("E",), plan=PLAN, changed=("a.py",), summary="S", left_out=3)
    assert barest(hidden) == Hidden(request="R" * 5_000, left_out=3)


def test_earlier_requests_are_quoted_bounded_and_the_latest_only() -> None:
    text = head_text(Hidden(earlier=tuple(f"{number} {'x' * 9_000}" for number in range(9))))
    assert [number for number in range(9) if f"\n- {number} xx" in text] == list(range(9 - MOST_EARLIER, 9))
    assert len(text) < MOST_EARLIER * (LONGEST_EARLIER + 50)


def test_a_bounded_quote_keeps_both_ends() -> None:
    assert quote_bounded("abcdefghi", 9) == "abcdefghi"
    assert quote_bounded("abcdefghij", 9) == "abcdef [... 1 characters ...] hij"
