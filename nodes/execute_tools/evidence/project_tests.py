"""The program that runs one test file of a project inside the sandbox; it is never imported by the agent itself.

It is started in the workspace as `python -B project_tests.py FILE`, by whatever Python the workspace has (3.9 or
newer): with pytest where that is installed, else with unittest where the file uses it, else the functions `test_...`
without parameters are called. Exit code 0: all passed; 1: some failed, and the output says which; `NOTHING_RAN`: there
was nothing that can be run here.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
import traceback
import unittest
from typing import Any

NOTHING_RAN = 97
_NOTHING_COLLECTED = 5
"""Source: pytest's exit codes, and unittest's from Python 3.12 on."""


def main(file: str) -> int:
    """Run the tests in the file, which is named relative to the current folder; the exit code."""
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "src"), os.path.dirname(os.path.abspath(file))]
    if importlib.util.find_spec("pytest") is not None:
        return with_pytest(file)
    with open(file, encoding="utf-8-sig") as stream:
        imported = set(imports(ast.parse(stream.read())))
    if "pytest" in imported:
        sys.stdout.write("pytest is not installed here.\n")
        return NOTHING_RAN
    spec = importlib.util.spec_from_file_location("checked_tests", file)
    if spec is None or spec.loader is None:
        return NOTHING_RAN
    module = importlib.util.module_from_spec(spec)
    sys.modules["checked_tests"] = module
    spec.loader.exec_module(module)
    return with_unittest(module) if "unittest" in imported else by_hand(module)


def imports(tree: ast.AST) -> list[str]:
    """The top-level names of all modules that are imported."""
    whole = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    parts = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [name.partition(".")[0] for name in (*whole, *parts)]


def with_pytest(file: str) -> int:
    """Source: pytest's exit codes; 5 says that no test was found."""
    import pytest

    code = int(pytest.main(["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", file]))
    return NOTHING_RAN if code == _NOTHING_COLLECTED else min(code, 1)


def with_unittest(module: Any) -> int:
    """All its test cases."""
    found = unittest.defaultTestLoader.loadTestsFromModule(module)
    if not found.countTestCases():
        return NOTHING_RAN
    return 0 if unittest.TextTestRunner(stream=sys.stdout, failfast=True).run(found).wasSuccessful() else 1


def by_hand(module: Any) -> int:
    """All its test functions that need nothing."""
    tests = [each for name, each in vars(module).items() if name.startswith("test") and inspect.isfunction(each)]
    ready = [each for each in tests if not inspect.signature(each).parameters]
    for test in ready:
        try:
            test()
        except Exception as error:  # noqa: BLE001 - whatever a test raises is its result
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = "".join(traceback.format_exception_only(type(error), error)).strip()
            sys.stdout.write(f"{test.__name__} failed at line {where.lineno}: {where.line}\n{reason}\n")
            return 1
    return 0 if ready else NOTHING_RAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
