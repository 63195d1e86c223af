import pytest

from tests.benchmarks.real_model.tasks.verdicts import TASKS, after_more, verdict


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("new_word_count", "words.py", "text.lower()", "text"),
        ("new_word_count", "README.md", "Text tools", "Words"),
        ("new_stack_tests", "test_stack.py", "(2, 1, 0)", "(1, 2, 0)"),
        ("new_stack_tests", "test_stack.py", "IndexError", "LookupError"),
        ("new_stack_tests", "stack.py", "push", "add"),
        ("new_luhn", "luhn.py", "value - 9 if value > 9 else value", "value"),
        ("new_luhn", "luhn.py", " or not digits.isdigit()", ""),
        ("new_requirements", "requirements.txt", "==8.1.7", ">=8.1.7"),
        ("new_requirements", "app.py", "timeout=10", "timeout=9"),
        ("new_running_average", "average.py", "else None", "else 0"),
    ],
)
def test_files_that_miss_the_point_are_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after_more(name, path, old, new) is not None


def test_tests_that_test_nothing_are_not_accepted() -> None:
    empty = "import unittest\n\n\nclass StackTest(unittest.TestCase):\n"
    hollow = empty + "".join(f"    def test_{name}(self):\n        pass\n" for name in ("order", "empty"))
    assert verdict(TASKS["new_stack_tests"], {"test_stack.py": hollow}) is not None
