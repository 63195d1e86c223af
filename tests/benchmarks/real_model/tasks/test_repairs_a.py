import pytest

from tests.benchmarks.real_model.tasks.verdicts import after


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("stats_median", "stats.py", "[middle - 2]", "[middle + 1]"),
        ("stats_median", "stats.py", "(ordered[middle] + ordered[middle - 2]) / 2", "2.5"),
        ("add_months", "calendar_math.py", "(start.month + months)", "(start.month + months - 2)"),
        ("add_months", "calendar_math.py", "(start.month + months) // 12", "months // 12"),
        ("normalise_path", "paths.py", "elif absolute:", "else:"),
        ("normalise_path", "paths.py", 'if part in ("", "."):', 'if part in ("", ".", ".."):'),
        ("interval_merge", "intervals.py", "(merged[-1][0], end)", "(merged[-1][0], merged[-1][1])"),
    ],
)
def test_wrong_repairs_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None
