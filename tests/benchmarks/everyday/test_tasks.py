"""Right and wrong work on the thirteen requests, and what the checks say of it."""

import shutil

import pytest

from benchmarks.everyday import tasks
from benchmarks.everyday.tasks import EVERYDAY
from benchmarks.real_model.task import Task, replace_once
from tests.benchmarks.real_model.tasks.verdicts import verdict

TASKS = {task.name: task for task in EVERYDAY}
RIGHT = {
    "py_explain": "It defines a shopping cart: products are added and removed, and calc gives the total.",
    "py_summarise": "shop adds up a shopping list in a CSV file. It prints the total.\nA discount is a percentage.",
    "py_question": "No: add raises a ValueError where the quantity is less than 1.",
}
WRONG = {
    "py_explain": "It defines a cart whose items and totals are kept in a database.",
    "py_summarise": "shop adds up a shopping list in a CSV file and prints the total.",
    "py_question": "Yes, a negative quantity raises the total.",
}


def with_node(task: Task) -> object:
    missing = task.name.startswith("js_") and shutil.which("node") is None
    return pytest.param(task, id=task.name, marks=pytest.mark.skipif(missing, reason="there is no node"))


def test_there_are_thirteen() -> None:
    assert (len(TASKS), len([task for task in EVERYDAY if not task.changes])) == (13, len(RIGHT))


@pytest.mark.parametrize("task", [with_node(task) for task in EVERYDAY])
def test_right_work_is_accepted_and_none_is_not(task: Task) -> None:
    assert verdict(task, task.solution, RIGHT.get(task.name, "")) is None
    assert verdict(task, answer=WRONG.get(task.name, "I have done what you asked for.")) is not None


@pytest.mark.parametrize("name", list(RIGHT))
def test_question_changes_nothing(name: str) -> None:
    assert verdict(TASKS[name], {"new.py": ""}, RIGHT[name]) == "Nothing was to be changed, but new.py did."


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("py_write", "src/shop/text.py", "[a-z0-9]+", "[a-z0-9,!]+"),
        ("py_fix", "src/shop/cart.py", "(100 - cart.discount) / 100", "(1 - cart.discount)"),
        ("py_rename", "README.md", "Cart, compute_total", "Cart, calc"),
        ("py_flag", "src/shop/cli.py", "print(each.quantity, each.name)", "print(each.name)"),
        ("py_test", "tests/test_prices.py", 'parse_price("12.50") == 1250', 'parse_price("0") == 0'),
        ("py_failing_test", "src/shop/text.py", "width - 3", "9 - 3"),
        ("js_fix", "src/format.js", '"0"', '" "'),
        ("js_write", "src/todo.js", "openTodos(todos).reduce", "todos.reduce"),
        ("js_rename", "test/todo.test.js", "import { addTask", "import { addTodo"),
        ("js_message", "src/cli.js", '"Nothing to do."', '"Nothing to do"'),
    ],
)
def test_half_done_and_wrong_work_is_not_accepted(name: str, path: str, old: str, new: str) -> None:
    task = TASKS[name]
    wrong = replace_once(task.solution[path] or "", old, new)
    problem = verdict(task, {**task.solution, path: wrong})
    assert problem is not None
    assert problem.partition(" ")[0] != "SyntaxError:"


def test_javascript_is_not_checked_without_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert verdict(TASKS["js_fix"], TASKS["js_fix"].solution) == tasks.NOT_CHECKED
