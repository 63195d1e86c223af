"""Reports about changed tests."""

from mendgraph.nodes.execute_tools.evidence.weakened import (
    changed_tests,
    has_settings,
    ignored_tests,
    is_test,
    selects_otherwise,
    weakened,
)
from tests.row_tables import rows

ASSERTION = "self.assertEqual(gross(100), 119.0)"
TEST = (
    "import unittest\n\nfrom prices import gross\n\n\nclass TestPrices(unittest.TestCase):\n"
    f"    def test_gross(self):\n        {ASSERTION}\n"
)
PLAIN = (
    "import pytest\n\n\ndef test_one():\n    assert one(2) == 3\n    with pytest.raises(ValueError):\n        one(0)\n"
)
SCRIPT = (
    "it('adds', () => {\n  expect(add(1, 2)).toBe(3);\n});\nit('subtracts', () => {\n  expect(sub(2)).toBe(1);\n});\n"
)


TRY = f"try:\n            {ASSERTION}\n        except Exception"
XFAIL = PLAIN.replace("== 3", "== 4").replace("def", "@pytest.mark.xfail\ndef")


@rows(
    (TEST, TEST.replace(ASSERTION, "pass"), "1 assertion fewer"),
    (TEST, TEST.replace(ASSERTION, f"pass  # {ASSERTION}"), "1 assertion fewer"),
    (TEST, TEST.replace(ASSERTION, "self.assertTrue(gross(100) or True)"), "1 assertion weaker"),
    (TEST, TEST.replace(ASSERTION, "self.assertEqual(1, 1)"), "1 assertion weaker"),
    (TEST, TEST.replace("119.0", "-1"), "1 expectation changed"),
    (TEST, TEST.replace("def test_gross", "def check_gross"), "1 test gone"),
    (TEST, TEST.replace("    def", "    @unittest.skip('flaky')\n    def"), "1 skip more"),
    (TEST, f"import pytest\npytestmark = pytest.mark.skip\n{TEST}", "1 skip more"),
    (TEST, TEST.replace(ASSERTION, f"{TRY}:\n            pass"), "1 assertion below a broad except"),
    (TEST, "", "1 test gone"),
    (TEST, "class (", "1 test gone"),
    (PLAIN, PLAIN.replace("ValueError", "Exception"), "1 assertion weaker"),
    (PLAIN, PLAIN.replace("== 3", "!= 3"), "1 assertion weaker"),
    (PLAIN, XFAIL, "1 expectation changed, 1 skip more"),
    # what is no loss
    (TEST, TEST, ""),
    (TEST, f"{TEST}\n    def test_more(self):\n        {ASSERTION}\n", ""),
    (TEST, TEST.replace("test_gross", "test_brutto").replace("gross(", "brutto("), ""),
    (TEST, TEST.replace("gross(100), 119.0", "gross(200), 238.0"), ""),
    (TEST, TEST.replace(ASSERTION, f"{TRY}: raise"), ""),
    ("class (", PLAIN, ""),
    (SCRIPT, SCRIPT.replace("it('adds'", "it.skip('adds'"), "1 skip more"),
    (SCRIPT, SCRIPT.replace("  expect(add", "  // expect(add"), "1 assertion fewer"),
    (SCRIPT, "", "2 assertions fewer"),
    (SCRIPT, SCRIPT.replace("'adds'", "'adds up'"), ""),
)
def test_weakened_test_is_reported(old: str, new: str, words: str) -> None:
    path = "a.test.ts" if old == SCRIPT else "tests/test_a.py"
    assert weakened({path: (old, new)}) == ({path: words} if words else {})


def test_test_moved_to_another_file_is_not_lost() -> None:
    assert weakened({"tests/test_a.py": (TEST, "import unittest\n"), "tests/test_b.py": (PLAIN, PLAIN + TEST)}) == {}
    lost = weakened({"tests/test_a.py": (TEST, ""), "tests/test_b.py": ("", PLAIN)})
    assert lost == {"tests/test_a.py": "1 test gone"}


def test_deeply_nested_test_reports_nothing() -> None:
    deep = f"def test_a():\n    assert a == {'+'.join(['1'] * 1_500)}\n"
    assert weakened({"test_a.py": (deep, deep)}) == {}


def test_tests_and_settings_are_recognized_by_file_name() -> None:
    tests = ["test_a.py", "b_test.py", "a.spec.tsx", "b_test.go", "ATest.java"]
    settings = ["pyproject.toml", "sub/tox.ini", "tests/conftest.py"]
    paths = [*tests, *settings, "latest.py", "tests/data.json", "src/a.rs", "contest.py"]
    assert [path for path in paths if is_test(path)] == tests
    assert [path for path in paths if has_settings(path)] == settings


@rows(
    ("", '[tool.pytest.ini_options]\naddopts = "--ignore=tests"\n', "--ignore=tests"),
    ("", "[pytest]\naddopts =\n    -q\n    --deselect tests/test_a.py\n", "--deselect tests/test_a.py"),
    ('addopts = "-k fast"', 'addopts = ["-k fast", "--ignore-glob=*x*"]', "--ignore-glob=*x*"),
    ("", "collect_ignore = ['test_a.py']\n", "collect_ignore = ['test_a.py']"),
    ("", "[pytest]\naddopts = -q\n[flake8]\ncommand = flake8 --ignore=E501\n", ""),
    ("", "[testenv]\ncommands = flake8 --ignore=E501\n", ""),
)
def test_settings_that_skip_tests_are_reported(before: str, after: str, report: str) -> None:
    assert ignored_tests(before, after) == report


CLASS = "class T(Base):\n    def test_a(self):\n        assert 1\n"


BASE = "class Base:\n    def test_b(self): 1\n"


@rows(
    ("", "def test_a():\n    assert 1\n", {"test_a"}),
    ("def test_a():\n    assert 1\n", "x = 1\n\n\ndef test_a(): assert 1  # one\n", set()),
    (CLASS, CLASS.replace("1", "2"), {"T.test_a"}),
    (BASE + CLASS, BASE.replace("1", "2") + CLASS, {"Base.test_b", "T.test_b"}),
    (CLASS, "def (", set()),
)
def test_changed_tests_have_different_code(before: str, after: str, names: set[str]) -> None:
    assert changed_tests(before, after) == names


@rows(
    ("pyproject.toml", "[project]\nversion = '1'\n", "[project]\nversion = '2'\n", False),
    ("pyproject.toml", "", "[tool.pytest.ini_options]\naddopts = '-x'\n", True),
    ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = b\n", False),
    ("tox.ini", "[pytest]\naddopts =\n", "[pytest]\naddopts = -x\n", True),
    ("package.json", '{"version": "1"}', '{"version": "2"}', False),
    ("package.json", '{"scripts": {"test": "jest"}}', '{"scripts": {"test": "true"}}', True),
    ("package.json", '{"scripts": {}}', "{", True),
    ("tests/conftest.py", "", "x = 1\n", True),
    ("Makefile", "test:\n\tfalse\n", "test:\n\ttrue\n", True),
    ("app.py", "", "x = 1\n", False),
)
def test_settings_that_change_test_selection_are_recognized(
    path: str, before: str, after: str, otherwise: bool
) -> None:
    assert selects_otherwise(path, before, after) is otherwise
