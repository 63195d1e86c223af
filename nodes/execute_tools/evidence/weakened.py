"""Changes of tests, from their texts before and after: which changed, were removed, or check less. Pure."""

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
    r"(?:\A|/)(?:test_[^/]*|tests\.py"
    r"|[^/]*(?:_test\.(?:py|go|rb|cc|cpp)|_spec\.rb|Tests?\.(?:java|php)|\.(?:test|spec)\.[cm]?[jt]sx?)"
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
    """Return whether a file has tests, by its name."""
    return _TEST_FILE.search(path) is not None


def has_settings(path: str) -> bool:
    """Return whether a test runner takes its settings or its commands from a file."""
    return _SETTINGS.search(path) is not None


def selects_otherwise(path: str, before: str, after: str) -> bool:
    """Return whether a file selects or runs tests in another way than before."""
    return has_settings(path) and _selection(path, before) != _selection(path, after)


def _selection(path: str, text: str) -> object:
    """Return the part of a settings file that is about tests, or the text if that part is not known."""
    name = path.rpartition("/")[2]
    with suppress(ValueError, AttributeError, configparser.Error):  # it cannot be parsed
        if name == "pyproject.toml":
            return tomllib.loads(text).get("tool", {}).get("pytest")

        if name in {"tox.ini", "setup.cfg"}:
            sections = configparser.RawConfigParser(strict=False)
            sections.read_string(text)
            return {section: dict(sections[section]) for section in _SECTIONS if section in sections}

        if name == "package.json":
            package = json.loads(text or "{}")
            return [package.get(key) for key in _FIELDS]

    return text


def ignored_tests(before: str, after: str) -> str:
    """Return the options of pytest that leave out tests only now, such as `--ignore=tests`, or ""."""
    old = _ignore_options(before)
    return ", ".join(option for option in _ignore_options(after) if option not in old)


def _ignore_options(text: str) -> list[str]:
    addopts = text.partition("addopts")[2].partition("\n[")[0]  # up to the next table
    return [*re.findall(r"(?m)^collect_ignore.*$", text), *_IGNORED.findall(addopts)]


def weakened(texts: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return what each test file has lost ("2 assertions fewer"), from its texts before and after ("" for no file).

    A Python test that is renamed or moved to another of the files is not lost.
    """
    old: dict[str, dict[str, _Part]] = {}
    new: dict[str, dict[str, _Part]] = {}
    added_by_name: dict[str, _Part] = {}
    added_by_key: dict[str, _Part] = {}

    for path, (before, after) in texts.items():
        old[path] = _parts(path, before)
        new[path] = _parts(path, after)
        for name, part in new[path].items():
            if name not in old[path]:
                added_by_name[name] = part
                added_by_key[part.key] = part

    marks: dict[str, str] = {}

    for path, parts in old.items():
        counts: Counter[tuple[str, str]] = Counter()
        for name, part in parts.items():
            now = new[path].get(name) or added_by_key.get(part.key) or added_by_name.get(name)
            if now is None:
                counts["test", "gone"] += 1
            else:
                counts.update(_lost(part, now))

        words = [f"{count_of(number, noun)} {how}" for (noun, how), number in counts.items() if number > 0]
        if words:
            marks[path] = ", ".join(words)

    return marks


def changed_tests(before: str, after: str) -> frozenset[str]:
    """Return the changed and new tests of a Python file: `Case.test_a`, or `test_a` for a function.

    A class has the tests that it inherits from another class of the file.
    """
    old = _test_texts(before)
    new = _test_texts(after)
    return frozenset(name for name, text in new.items() if old.get(name) != text)


def _test_texts(text: str) -> dict[str, str]:
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return {}

    tests: dict[str, str] = {}
    for name, test in _tests(tree).items():
        tests[name.removeprefix(".")] = ast.dump(test)

    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue

        for base in node.bases:
            if not isinstance(base, ast.Name):
                continue

            prefix = f"{base.id}."
            for name, dump in list(tests.items()):
                if name.startswith(prefix):
                    tests.setdefault(f"{node.name}.{name.removeprefix(prefix)}", dump)

    return tests


class _Assertion(NamedTuple):
    """An assertion. `subject` is its text without expected constants; a `strict` one says what a value is."""

    text: str
    subject: str = ""
    strict: bool = False


class _Part(NamedTuple):
    """A test, or the code outside of tests. Tests that differ only in names have the same `key`."""

    assertions: Counter[_Assertion]
    skips: int
    swallowed: int = 0
    key: str = ""


def _lost(was: _Part, now: _Part) -> dict[tuple[str, str], int]:
    lost = list((was.assertions - now.assertions).elements())
    gained = list((now.assertions - was.assertions).elements())
    fewer = max(0, len(lost) - len(gained))
    weaker = _count_strict(lost) - _count_strict(gained) - fewer
    changed = Counter(assertion.subject for assertion in lost if assertion.subject)
    changed &= Counter(assertion.subject for assertion in gained)

    return {
        ("assertion", "fewer"): fewer,
        ("assertion", "weaker"): max(0, weaker),
        ("expectation", "changed"): changed.total(),
        ("assertion", "below a broad except"): max(0, now.swallowed - was.swallowed),
        ("skip", "more"): max(0, now.skips - was.skips),
    }


def _count_strict(assertions: Iterable[_Assertion]) -> int:
    return sum(assertion.strict for assertion in assertions)


def _parts(path: str, text: str) -> dict[str, _Part]:
    """Return the tests of a Python file by name, and the code outside of tests, or another file, as ""."""
    if not path.endswith(".py"):
        assertions = Counter(_Assertion(check.strip()) for check in _CHECK.findall(text))
        return {"": _Part(assertions, len(_SKIP.findall(text)))}

    try:
        tree = parse(text)
        if not isinstance(tree, SyntaxProblem):
            return _python_parts(tree)
    except RecursionError:
        pass

    return {"": _Part(Counter(), 0)}


def _python_parts(tree: ast.Module) -> dict[str, _Part]:
    swallowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_catches_all, node.handlers)):
            for statement in node.body:
                swallowed.update(ast.walk(statement))

    parts: dict[str, _Part] = {}
    inside: set[ast.AST] = set()
    for name, test in _tests(tree).items():
        nodes = list(ast.walk(test))
        inside.update(nodes)
        parts[name] = _part(nodes, swallowed, test.body)

    parts[""] = _part([node for node in ast.walk(tree) if node not in inside], swallowed, [])
    return parts


def _tests(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the tests of a file by name: the class or "", a dot, and the function."""
    tests: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    for holder in ast.walk(tree):
        if isinstance(holder, ast.Module | ast.ClassDef):
            for test in holder.body:
                if isinstance(test, Function) and test.name.startswith("test"):
                    tests[f"{getattr(holder, 'name', '')}.{test.name}"] = test

    return tests


def _part(nodes: Iterable[ast.AST], swallowed: set[ast.AST], body: list[ast.stmt]) -> _Part:
    """Return the part with these nodes; `swallowed` are the nodes whose errors a broad except catches."""
    assertions: Counter[_Assertion] = Counter()
    below_except = 0
    skips = 0

    for node in nodes:
        assertion = _assertion(node)
        if assertion is not None:
            assertions[assertion] += 1
            below_except += node in swallowed

        if isinstance(node, ast.Attribute) and _PYTHON_SKIP.match(ast.unparse(node)):
            skips += 1

    numbers: dict[str, int] = {}

    def numbered(word: re.Match[str]) -> str:
        return f"n{numbers.setdefault(word[0], len(numbers))}"

    key = re.sub(r"\b[^\W\d]\w*", numbered, "\n".join(map(ast.unparse, body)))
    return _Part(assertions, skips, below_except, key)


def _catches_all(handler: ast.ExceptHandler) -> bool:
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return False

    return handler.type is None or not _BROAD.isdisjoint(_names(handler.type))


def _names(*trees: ast.AST) -> set[str]:
    names: set[str] = set()
    for tree in trees:
        names.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))

    return names


def _assertion(node: ast.AST) -> _Assertion | None:
    values: list[ast.expr]
    if isinstance(node, ast.Assert):
        name = "assert"
        values = [node.test]
    elif isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        values = node.args
    else:
        return None

    if not re.match(r"assert|(?:raises|warns)\Z", name):
        return None

    strict = not name.startswith(("assertNot", "assertIsNot")) and _BROAD.isdisjoint(_names(*values))

    if name in {"assert", "assertTrue", "assertFalse"}:
        strict = False
        test = values[0] if values else None
        values = []
        if isinstance(test, ast.Compare):
            strict = not all(isinstance(operator, ast.NotEq | ast.IsNot) for operator in test.ops)
            values = [test.left, *test.comparators]

    subjects = [ast.unparse(value) if _names(value) else "_" for value in values]
    subject = f"{name} {strict} {' '.join(subjects)}" if values else ""
    return _Assertion(ast.unparse(node), subject, strict and set(subjects) != {"_"})
