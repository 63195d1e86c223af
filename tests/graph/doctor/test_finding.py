import pytest

from graph.doctor.finding import Finding, Status, broken, cleaned, is_fine, report, summary

GOOD, OFF = Finding("a", Status.OK, "there"), Finding("d", Status.OFF, "not there")
WARN, BAD = Finding("b", Status.WARNING, "odd", "look"), Finding("c", Status.PROBLEM, "gone", "fetch it")


@pytest.mark.parametrize(
    ("found", "fine", "said"),
    [
        ([], True, "all is well"),
        ([GOOD, OFF], True, "all is well"),
        ([GOOD, WARN], True, "1 warning"),
        ([BAD, WARN, WARN], False, "1 problem, 2 warnings"),
        ([BAD, BAD], False, "2 problems"),
    ],
)
def test_only_a_problem_is_bad(found: list[Finding], fine: bool, said: str) -> None:
    assert (is_fine(found), summary(found), report(found)["ok"]) == (fine, said, fine)


def test_programs_get_the_whole_record() -> None:
    assert report([BAD])["checks"] == [{"name": "c", "status": "problem", "found": "gone", "remedy": "fetch it"}]


def test_both_texts_are_cleaned() -> None:
    assert cleaned(WARN, str.upper) == Finding("b", Status.WARNING, "ODD", "LOOK")


def test_a_check_that_broke_is_a_problem_with_a_remedy() -> None:
    late, raised = broken("x", TimeoutError(), 2.0), broken("x", ValueError("why"), 2.0)
    assert (late.status, late.found) == (Status.PROBLEM, "no answer within 2 s")
    assert (raised.status, raised.found) == (Status.PROBLEM, "this could not be checked (ValueError: why)")
    assert late.remedy
    assert raised.remedy
