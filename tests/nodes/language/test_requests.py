import pytest

from mendgraph.nodes.language.names import claims_a_change, orders_a_change, reports_a_problem


@pytest.mark.parametrize(
    ("request_text", "orders"),
    [
        ("The add function in calc.py is wrong: it subtracts. Fix it.", True),
        ("Rename load to read in app.py and main.py", True),
        ("Please add type hints to mean.", True),
        ("Could you please rename `load` to `read`?", True),
        ("I want you to remove the dead function.", True),
        ("median([1, 2]) gives 2.\nFix that.", True),
        ("Set depth to 3 in limits.json.", True),
        ("Append a line to notes.txt.", True),
        ("Raise the limit to 20.", True),
        ("Make a plan.", False),
        ("Write me a short summary of calc.py.", False),
        ("Make the summary function faster.", True),
        ("Add a list of names to names.json.", True),
        ("In limits.json, depth is 2.", False),
        ("How do I fix the add function?", False),
        ("What does add return for 2 and 3?", False),
        ("Explain how to add a column.", False),
        ("Why was this changed?", False),
        ("Look at calc.py, but do not change anything. Fix ideas are welcome.", False),
        ("Fix ideas welcome, without editing any file.", False),
        ("`fix` is a command of ours.", False),
        ("Hello.", False),
        ("", False),
    ],
)
def test_an_order_begins_with_its_verb(request_text: str, orders: bool) -> None:
    assert orders_a_change(request_text) is orders


@pytest.mark.parametrize(
    ("request_text", "reports"),
    [
        ("The tests fail because totals are rounded wrong.", True),
        ("median([1, 2, 3, 4]) gives 3, expected 2.5", True),
        ("total([]) raises ZeroDivisionError.", True),
        ("Why does total([]) raise ZeroDivisionError?", False),
        ("What should add return?", False),
        ("What is wrong with add? Fix it.", True),
        ("The sum is wrong. Do not change any file.", False),
        ("Hello.", False),
    ],
)
def test_a_problem_is_reported_and_not_asked_about(request_text: str, reports: bool) -> None:
    assert reports_a_problem(request_text) is reports


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        ("I have fixed the add function.", True),
        ("I've updated `calc.py`.", True),
        ("I changed add.", True),
        ("Fixed: add now adds.", True),
        ("The function has been successfully renamed.", True),
        ("The bug is now fixed.", True),
        ("Changed calc.py.", True),
        ("Done.", True),
        ("All done!", True),
        ("It is now finished.", True),
        ("add is implemented with a minus.", False),
        ("The done flag is never set.", False),
        ("I have not changed anything.", False),
        ("No file was changed.", False),
        ("Nothing has been changed so far.", False),
        ("add returns the sum.", False),
        ("The file holds two functions.", False),
        ("Use `it was changed` as the message.", False),
        ("", False),
    ],
)
def test_a_claim_says_that_something_was_done(answer: str, claims: bool) -> None:
    assert claims_a_change(answer) is claims
