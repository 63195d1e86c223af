import pytest

from nodes.execute_tools.tools.task_expectations import Expectation, expectations, unmet

RENAMES = [
    "Rename the function load to read_config in app.py and main.py.",
    "rename `load` to `read_config`",
    "Please rename load() to read_config().",
    "rename load into read_config everywhere",
    "Rename the constant load to read_config",
    "rename the load function to read_config",
]
DELETIONS = [
    "Remove the unused function load from report.py",
    "delete the dead helper `load`",
    "Drop the load function.",
    "Delete the function load() and everything that only it uses.",
    "remove the old, unused class load",
]
NOTHING = [
    "Do not remove the function load",
    "Don't rename load to read_config",
    "Remove the parameter load from f",
    "Remove load from the list",
    "Rename the parameter a to b in f",
    "Rename the variable x in the function g to y",
    "rename x to y in g",
    "rename x to y inside the function g",
    "rename the file a.py to b.py",
    "rename the column name to title",
    "Rename Order.total to amount",
    "Remove the unused import os",
    "Rename load to read_config, and keep load as an alias",
    "Rename load to load",
    "How to rename load to read_config",
    "Add a function load",
    "remove the function call load",
    "",
]


@pytest.mark.parametrize("text", RENAMES)
def test_a_rename(text: str) -> None:
    assert expectations(text) == (Expectation("load", "read_config"),)


@pytest.mark.parametrize("text", DELETIONS)
def test_a_deletion(text: str) -> None:
    assert expectations(text) == (Expectation("load"),)


@pytest.mark.parametrize("text", NOTHING)
def test_in_doubt_nothing(text: str) -> None:
    assert expectations(text) == ()


def test_several() -> None:
    text = "Delete the function old. Rename load to read and rename save to write."
    assert expectations(text) == (Expectation("old"), Expectation("load", "read"), Expectation("save", "write"))


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


@pytest.mark.parametrize(
    ("texts", "told"),
    [
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
        ({"store.py": "from json import dump\nread = 1\n"}, []),
        ({"store.py": "def f():\n    load = 1\n    return load\nread = 1\n"}, []),
        (
            {"store.py": "def f():\n    global load\n    load = 1\nread = 1\n"},
            ["load is still in store.py, line 3."],
        ),
        ({"store.py": "f = lambda load: load\nread = 1\n"}, []),
        ({"store.py": "def load(:\n"}, []),
        ({}, []),
    ],
)
def test_what_is_not_as_asked(texts: dict[str, str], told: list[str]) -> None:
    assert unmet("Rename load to read", texts) == told


def test_no_more_lines_than_the_bound() -> None:
    assert unmet("Delete the function load.", {"a.py": "load()\n" * 20}) == [
        "load is still in a.py, line 1, 2, 3, 4, 5."
    ]
