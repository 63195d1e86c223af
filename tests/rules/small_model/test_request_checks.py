from mendgraph.nodes.execute_tools.evidence.checks import RanTests
from mendgraph.nodes.small_model.request_checks import RequestChecks, files_to_change
from tests.row_tables import rows

APP = '''import json
from store import load


def use(path):
    """load is only a word here."""
    return load(path) + json.load(path) + other(load=1)


def own(load):
    return load()


class Box:
    def get(self):
        return self.load
'''


@rows(
    (
        {"app.py": APP, "store.py": "def load(x): ...\n"},
        [
            "load is still in app.py, line 2, 7, 16.",
            "load is still in store.py, line 1.",
            "read is not defined in app.py or store.py.",
        ],
    ),
    ({"store.py": "def read(x): ...\n", "app.py": "import store\nstore.read(1)\n"}, []),
    (
        {"store.py": "def read(x): ...\n", "app.py": "import store\nstore.load(1)\n"},
        ["load is still in app.py, line 2."],
    ),
    ({"store.py": "x = 1\n"}, ["read is not defined in store.py."]),
    ({"store.py": "read = 1\n"}, []),
    ({"store.py": "def f():\n    load = 1\n    return load\nread = 1\n"}, []),
    ({"store.py": "def f():\n    global load\n    load = 1\nread = 1\n"}, ["load is still in store.py, line 3."]),
    ({"store.py": "f = lambda load: load\nread = 1\n"}, []),
    ({"store.py": "def load(:\n"}, []),
    ({}, []),
)
def test_unfinished_rename_is_reported(texts: dict[str, str], expected: list[str]) -> None:
    assert RequestChecks("Rename load to read").unfinished_requests(texts) == expected


MOVED = {
    "app.py": "from money import total\n\n\ndef buy(x):\n    total = 1\n    return total\n",
    "money.py": "def total(x): ...\n",
    "api.py": "from money import total\nimport app\napp.buy(total)\n",
}
HELD = {**MOVED, "app.py": "def total(x): ...\n"}
TAKEN = {**MOVED, "api.py": "from shop.app import total\nimport app\napp.total(1)\n"}


@rows(
    (MOVED, []),
    ({**MOVED, "bill.py": "def f(app):\n    return app.total\n"}, []),
    (HELD, ["total is still defined in app.py."]),
    (TAKEN, ["total is to be imported from money in api.py, line 1, 3."]),
    ({**MOVED, "money.py": "x = 1\n"}, ["total is not defined in money.py."]),
    ({"app.py": "x = 1\n"}, ["total is not defined in money.py."]),
    ({}, []),
)
@rows("Move the function total from app.py to money.py.", "Move the function total to money.py.")
def test_unfinished_move_is_reported(task: str, texts: dict[str, str], expected: list[str]) -> None:
    assert RequestChecks(task).unfinished_requests(texts) == expected


def test_package_may_reexport_a_moved_name() -> None:
    texts = {"shop/money.py": HELD["app.py"], "shop/__init__.py": "from shop.money import total\n"}
    texts |= {"api.py": "from shop import total\n"}
    assert RequestChecks("Move the function total to money.py.").unfinished_requests(texts) == []


def test_source_file_of_a_move_is_not_guessed() -> None:
    moved = RequestChecks("Move total to money.py.")
    moved_from_app = RequestChecks("Move totals from app.py to money.py.")
    importing = {"app.py": "from money import totals\n"}
    assert moved.unfinished_requests({**HELD, "other.py": "def total(x): ...\n"}) == []
    assert moved_from_app.unfinished_requests({"app.py": "x = 1\n"}) == []
    assert moved_from_app.unfinished_requests(importing) == ["totals is not defined in money.py."]


@rows(
    ("Add an option --dry-run to tool.py.", "print(1)\n", ["--dry-run is not in tool.py."]),
    ("Please support `--dry-run` as well.", "print(1)\n", ["--dry-run is not in tool.py."]),
    ("Add an option --dry-run to tool.py.", "def main(dry_run):\n    return dry_run\n", []),
    ("Don't add --dry-run.", "print(1)\n", []),
    ("With --dry-run it prints too much, add a limit.", "print(1)\n", []),
    ("Add a message when --dry-run is given.", "print(1)\n", []),
)
def test_missing_option_is_reported(request_text: str, text: str, expected: list[str]) -> None:
    assert RequestChecks(request_text).unfinished_requests({"tool.py": text}) == expected
    assert RequestChecks(request_text).unfinished_requests({"tool.py": text, "Makefile": "\ttool --dry-run\n"}) == []


@rows(
    ("Rename load to fetch in store.py and wherever it is used (api.py and report.py).", "store api report", ""),
    ("Please add type hints to `a.py`, b.py and c.py.", "a b c", ""),
    ("Remove the import of os from a.py and b.py.", "", ""),
    ("Remove TIMEOUT from a.py and b.py.", "a b", ""),
    ("Update a.py and b.py", "a b", ""),
    ("Set the limit in both a.py and b.py from 3 to 5.", "a b", ""),
    ("Please write a module words.py with a function word_count.", "", "words"),
    ("Write a class Average in average.py. See stack.py.", "", "average"),
    ("Create a.py and b.py with a function each.", "", "a b"),
    ("Write a function load in io.py that reads b.py", "", "io"),
    ("Move the constant PAUSE from a.py into b.py.", "a", ""),
    ("Make net ignore debts, and cover that in test_a.py.", "test_a", ""),
    ("Add a test for it to test_a.py too.", "test_a", ""),
    *(
        (context, "", "")
        for context in (
            "Fix the total in a.py.",
            "Fix the bug in a.py and b.py.",
            "a.py and b.py are wrong.",
            "Add a function to a.py that merges what is in b.py and c.py.",
            "Add the constants in a.py and b.py to settings.py.",
            "Update a.py to the formats in b.py and c.py.",
            "Update a.py and b.py if needed.",
            "Add logging to a.py and b.py. Do not touch b.py.",
            "Add logging to a.py and b.py. In b.py the first line stays.",
            "Update a.py and b.py. Do not change any file yet.",
            "Remove the duplicate function in a.py and b.py.",
            "Make a.py and b.py consistent.",
            "Change a.py so that it imports from b.py and c.py.",
            "Update the tests in test_a.py and test_b.py.",
            "Use the helpers in a.py and b.py.",
            "Append the last line of a.txt to b.txt.",
            "Write a summary of a.py and b.py.",
            "Add data.json to .gitignore.",
            "How do I rename x in a.py and b.py?",
            "I had to move code from a.py. Fix b.py.",
            "Fix the crash when files move from a.txt to b.txt.",
            "Write tests for the functions in a.py.",
            "Add a test for load in a.py.",
        )
    ),
)
def test_only_files_that_an_order_certainly_changes_are_required(
    request_text: str, changed: str, optional: str
) -> None:
    files = files_to_change(request_text)
    assert files == {f"{name}.py": name in changed.split() for name in f"{changed} {optional}".split()}


TESTS = ("tests/test_shop.py::test_total", "tests/test_shop.py::test_free")


@rows(
    ("Add hints.", ""),
    ("Add hints, the tests must pass.", "test_total test_free"),
    ("Add hints, test_free may need them.", "test_free"),
    ("Fix total in shop.py.", "test_free test_total"),
    ("Fix the bug.", "test_total test_free"),
    ("Write a function for refunds.", "test_free"),
)
def test_already_failing_test_counts_if_the_request_is_about_it(request_text: str, expected: str) -> None:
    now = RanTests("pytest tests/test_shop.py", failed=dict.fromkeys(TESTS, ""), near=TESTS[1:])
    counted = RequestChecks(request_text).tests_of_request(TESTS, now, now, {"total"})
    assert sorted(counted) == sorted(f"tests/test_shop.py::{name}" for name in expected.split())


@rows(
    ("Update a.py and b.py.", ["a.py"], "The request names b.py, which was not changed."),
    ("Update a.py and b.py.", [], "The request names a.py, b.py, which were not changed."),
    ("Update a.py and b.py.", ["src/a.py", "b.py"], ""),
    ("Fix the total.", [], "All files are as they were before."),
    ("Is the total right?", [], ""),
    ("Fix the total.", ["a.py"], ""),
)
def test_unchanged_file_that_the_order_names_is_reported(request_text: str, changed: list[str], expected: str) -> None:
    assert RequestChecks(request_text).left_undone(changed, lambda _: True) == expected
