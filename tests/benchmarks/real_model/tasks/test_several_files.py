import pytest

from tests.benchmarks.real_model.tasks.verdicts import TASKS, after_more, verdict


@pytest.mark.parametrize(
    "name", [name for name, task in TASKS.items() if task.kind == "several_files" and len(task.solution) > 1]
)
def test_half_of_the_files_is_not_enough(name: str) -> None:
    task = TASKS[name]
    for path in task.solution:
        assert verdict(task, {each: text for each, text in task.solution.items() if each != path}) is not None


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("rename_fetch_user", "store.py", "def fetch_all", "def load_all"),
        ("move_timeout", "settings.py", "RETRIES = 3\n", ""),
        ("order_discount", "order.py", "discount: float = 0", "discount: float = 5"),
        ("order_discount", "summary.py", ".2f", ".1f"),
        ("shared_format_money", "money.py", "EUR", "USD"),
        ("reply_to_argument", "mailer.py", "reply_to):", "reply_to=None):"),
    ],
)
def test_what_was_not_asked_for_is_not_accepted(name: str, path: str, old: str, new: str) -> None:
    task = TASKS[name]
    text = task.solution.get(path) or task.files[path]
    assert verdict(task, {**task.solution, path: text.replace(old, new)}) is not None


def test_a_function_that_stays_beside_the_imported_one_is_not_accepted() -> None:
    own = "def format_money(cents):\n    return str(cents)\n\n\ndef report"
    assert after_more("shared_format_money", "report.py", "def report", own) is not None
