"""What was made of tests, from their texts before and after: which changed, are gone, or check less. Pure."""

import ast
import configparser
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import Function, SyntaxProblem, parse
from mendgraph.nodes.language.display import count_of

_TEST_FILE: Final = re.compile(
    r"(?:\A|/)(?:test_[^/]*|[^/]*(?:_test\.(?:py|go|rb|cc|cpp)|_spec\.rb|Tests?\.(?:java|php)|\.(?:test|spec)\.[cm]?[jt]sx?)"
    r"|__tests__/[^/]+|tests/[^/]+\.rs)\Z"
)
_CHECK: Final = re.compile(r"(?m)^(?![ \t]*(?://|/?\*|#)).*(?:\bexpect\s*\(|\bassert|\bt\.(?:Error|Fatal)).*$")
_SKIP: Final = re.compile(r"\.skip\s*\(|\bx(?:it|test|describe)\s*\(|\bt\.Skip|#\[ignore|@(?:Ignore|Disabled)\b")
_PYTHON_SKIP: Final = re.compile(r"(?:pytest\.(?:mark\.)?|mark\.|unittest\.|self\.)(?:skip\w*|xfail|expectedFailure)\Z")
_BROAD: Final = frozenset({"Exception", "BaseException", "AssertionError"})
_SETTINGS: Final = re.compile(
    r"(?:\A|/)(?:pyproject\.toml|\.?pytest\.ini|tox\.ini|setup\.cfg|conftest\.py|(?:GNU)?[Mm]akefile|package\.json"
    r"|(?:jest|vitest|vite|playwright)\.config\.[cm]?[jt]s|\.mocharc\.\w+)\Z"
)
_SECTIONS: Final = ("pytest", "tool:pytest")
_FIELDS: Final = ("scripts", "type", "jest", "mocha", "vitest", "ava")
_IGNORED: Final = re.compile(r"""(?<![\w-])(?:--(?:ignore|ignore-glob|deselect)|-k)[=\s"',]+[^\s"',\]]+""")


def is_test(path: str) -> bool:
    """Whether the file is one of tests, as its name tells."""
    return _TEST_FILE.search(path) is not None


def has_settings(path: str) -> bool:
    """Whether a test runner takes settings from the file, or what it runs."""
    return _SETTINGS.search(path) is not None


def selects_otherwise(path: str, before: str, after: str) -> bool:
    """Whether the file selects or runs tests in another way than before."""
    return has_settings(path) and _selection(path, before) != _selection(path, after)


def _selection(path: str, text: str) -> object:
    """What a file with settings says of tests, the whole text where it is not known what of it does."""
    name = path.rpartition("/")[2]
    with suppress(ValueError, AttributeError, configparser.Error):  # it is not of its form
        if name == "pyproject.toml":
            return tomllib.loads(text).get("tool", {}).get("pytest")

        if name in {"tox.ini", "setup.cfg"}:
            sections = configparser.RawConfigParser(strict=False)
            sections.read_string(text)
            return [dict(sections[section]) if section in sections else None for section in _SECTIONS]

        if name == "package.json":
            package = json.loads(text or "{}")
            return [package.get(field_name) for field_name in _FIELDS]

    return text


def ignored_tests(before: str, after: str) -> str:
    """What these settings make pytest leave out that they did not before, such as `--ignore=tests`; "" for nothing."""
    old, new = (
        [
            *re.findall(r"(?m)^collect_ignore.*$", text),
            *_IGNORED.findall(text.partition("addopts")[2].partition("\n[")[0]),  # up to the next table
        ]
        for text in (before, after)
    )

    return ", ".join(value_name for value_name in new if value_name not in old)


def weakened(texts: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """In words what each test file has lost ("2 assertions fewer"), from its texts before and after; "" is no file.

    A Python test that is now called otherwise, or stands in another of the files, is not lost.
    """
    old, new = ({path: _parts(path, pair[at]) for path, pair in texts.items()} for at in (0, 1))
    moved = [(name, part) for path in new for name, part in new[path].items() if name not in old[path]]
    names = dict(moved)
    keys = {part.key: part for _, part in moved}
    marks: dict[str, str] = {}

    for path, parts in old.items():
        counts: Counter[tuple[str, str]] = Counter()
        for name, part in parts.items():
            now = new[path].get(name) or keys.get(part.key) or names.get(name)
            counts.update(_lost(part, now) if now else {("test", "gone"): 1})

        if words := [f"{count_of(number, noun)} {how}" for (noun, how), number in counts.items() if number > 0]:
            marks[path] = ", ".join(words)

    return marks


def changed_tests(before: str, after: str) -> frozenset[str]:
    """The tests of a Python file that are not as they were: `Case.test_a`, or `test_a` for a function.

    A class has the tests that it inherits from another class of the file.
    """
    old = _test_texts(before)
    new = _test_texts(after)
    return frozenset(name for name, text in new.items() if old.get(name) != text)


def _test_texts(text: str) -> dict[str, str]:
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return {}

    tests = {name.removeprefix("."): ast.dump(test) for name, test in _tests(tree).items()}

    for node in (statement for statement in tree.body if isinstance(statement, ast.ClassDef)):
        for base in (base_name.id for base_name in node.bases if isinstance(base_name, ast.Name)):
            inherited = {name.partition(".")[2]: dump for name, dump in tests.items() if name.startswith(f"{base}.")}
            tests = {f"{node.name}.{name}": dump for name, dump in inherited.items()} | tests

    return tests


class _Assertion(NamedTuple):
    """`kept` is what it asserts without the constants that are expected; a `strict` one says what a value is."""

    text: str
    kept: str = ""
    strict: bool = False


class _Part(NamedTuple):
    """A test, or what stands outside of tests; its `key` is the same for one that only calls things otherwise."""

    assertions: Counter[_Assertion]
    skips: int
    swallowed: int = 0
    key: str = ""


def _lost(was: _Part, now: _Part) -> dict[tuple[str, str], int]:
    lost, gained = ([*some.elements()] for some in (was.assertions - now.assertions, now.assertions - was.assertions))
    moved = Counter(assertion.kept for assertion in lost if assertion.kept) & Counter(
        assertion.kept for assertion in gained
    )
    fewer = max(0, len(lost) - len(gained))

    return {
        ("assertion", "fewer"): fewer,
        ("assertion", "weaker"): max(
            0, sum(assertion.strict for assertion in lost) - sum(assertion.strict for assertion in gained) - fewer
        ),
        ("expectation", "changed"): moved.total(),
        ("assertion", "below a broad except"): max(0, now.swallowed - was.swallowed),
        ("skip", "more"): max(0, now.skips - was.skips),
    }


def _parts(path: str, text: str) -> dict[str, _Part]:
    """The tests of a Python file by their names, and under "" what stands outside of them; that is all of others."""
    if not path.endswith(".py"):
        return {
            "": _Part(Counter(_Assertion(check.strip()) for check in _CHECK.findall(text)), len(_SKIP.findall(text)))
        }

    try:
        tree = parse(text)
        if isinstance(tree, SyntaxProblem):
            return {"": _Part(Counter(), 0)}
        return _python_parts(tree)
    except RecursionError:  # of what is written out again
        return {"": _Part(Counter(), 0)}


def _python_parts(tree: ast.Module) -> dict[str, _Part]:
    every = [*ast.walk(tree)]
    silent = (
        statement for statement in every if isinstance(statement, ast.Try) and any(map(_takes_all, statement.handlers))
    )
    nodes_taken = {below for try_node in silent for step in try_node.body for below in ast.walk(step)}
    tests = _tests(tree)
    inside = {below for test in tests.values() for below in ast.walk(test)}
    parts = {name: _part(ast.walk(test), nodes_taken, test.body) for name, test in tests.items()}

    return {**parts, "": _part((node_outside for node_outside in every if node_outside not in inside), nodes_taken, [])}


def _tests(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tests of a file by the name of their class, "" for none, a dot, and their own."""
    holders = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef))
    functions = ((getattr(holder, "name", ""), test) for holder in holders for test in holder.body)

    return {
        f"{holder}.{test.name}": test
        for holder, test in functions
        if isinstance(test, Function) and test.name.startswith("test")
    }


def _part(nodes: Iterable[ast.AST], taken: set[ast.AST], body: list[ast.stmt]) -> _Part:
    constants = dict[str, int]()
    every = [*nodes]
    assertions = [(node in taken, assertion) for node in every if (assertion := _assertion(node))]
    skips = sum(isinstance(node, ast.Attribute) and bool(_PYTHON_SKIP.match(ast.unparse(node))) for node in every)
    written = "\n".join(map(ast.unparse, body))
    key = re.sub(r"\b[^\W\d]\w*", lambda word: f"n{constants.setdefault(word[0], len(constants))}", written)

    return _Part(
        Counter(assertion for _, assertion in assertions), skips, sum(swallowed for swallowed, _ in assertions), key
    )


def _takes_all(handler: ast.ExceptHandler) -> bool:
    raises = any(isinstance(node_below, ast.Raise) for node_below in ast.walk(handler))
    return not raises and (handler.type is None or not _BROAD.isdisjoint(_names(handler.type)))


def _names(*nodes: ast.AST) -> set[str]:
    return {node_below.id for node in nodes for node_below in ast.walk(node) if isinstance(node_below, ast.Name)}


def _assertion(node: ast.AST) -> _Assertion | None:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
    else:
        name = "assert"

    if not isinstance(node, ast.Assert | ast.Call) or not re.match(r"assert|(?:raises|warns)\Z", name):
        return None

    values = [node.test] if isinstance(node, ast.Assert) else node.args
    strict = not name.startswith(("assertNot", "assertIsNot")) and _BROAD.isdisjoint(_names(*values))

    if name in {"assert", "assertTrue", "assertFalse"}:
        compared = [value for value in values[:1] if isinstance(value, ast.Compare)]
        strict = any(not isinstance(op, ast.NotEq | ast.IsNot) for test in compared for op in test.ops)
        values = [value for test in compared for value in (test.left, *test.comparators)]

    values_shown = [ast.unparse(value) if _names(value) else "_" for value in values]
    return _Assertion(
        ast.unparse(node),
        f"{name} {strict} {' '.join(values_shown)}" * bool(values),
        strict and {*values_shown} != {"_"},
    )
