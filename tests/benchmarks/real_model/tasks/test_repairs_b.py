import pytest

from tests.benchmarks.real_model.tasks.verdicts import after, after_more


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("lower_bound", "search.py", "    return low\n", "    return low + 1\n"),
        ("sales_totals", "sales.py", '"region"]] = amount', '"region"]] = totals[row["region"]] + row["price"]'),
        ("format_duration", "duration.py", "divmod(seconds, 60)", "divmod(seconds % 60, 60)"),
        ("roman_numerals", "roman.py", "-value if value <= following else value", "value"),
        ("text_wrap", "wrap.py", "len(current) + len(word) <= width", "len(current) + len(word) + 2 <= width"),
        ("text_wrap", "wrap.py", "len(current) + len(word) <= width", "len(word) <= width"),
    ],
)
def test_wrong_repairs_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None


def test_the_data_may_not_be_bent_to_the_program() -> None:
    assert after_more("sales_totals", "sales.csv", "east,,9.99\n", "") == "sales.csv is not as it was."
