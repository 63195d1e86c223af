import pytest

from tests.benchmarks.real_model.tasks.verdicts import after, after_more


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("totals_rounded", "tax.py", "RATES[kind] / 100)", "RATES[kind] / 100) + 1"),
        ("totals_rounded", "test_till.py", "1176", "1175"),
        ("search_case", "finder.py", 'product["name"]', 'product["name"].lower()'),
        ("search_case", "catalog.py", '"Apple juice"', '"apple juice"'),
        ("empty_log", "figures.py", "/ sum(found.values())", "/ (sum(found.values()) + 1)"),
        ("weekday_names", "days.py", "isoweekday() % 7", "isoweekday() - 2"),
        ("weekday_names", "days.py", '"Monday", "Tuesday"', '"Tuesday", "Monday"'),
    ],
)
def test_wrong_repairs_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None


def test_the_tests_may_not_be_bent_to_the_program() -> None:
    assert after_more("totals_rounded", "test_till.py", "1176", "1176 + 0") == "test_till.py is not as it was."
