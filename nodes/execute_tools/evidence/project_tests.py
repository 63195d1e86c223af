"""The program that runs one test file of a project inside the sandbox; it is never imported by the agent itself.

It is started in the workspace as `python -B project_tests.py FILE`, by whatever Python the workspace has (3.9 or
newer): with pytest where that is installed, else with unittest, which is given the functions `test_...` without
parameters as well. Exit code 0: all passed; 1: some failed, and the output says which; `NOTHING_RAN`: there was nothing
that can be run here.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import unittest

NOTHING_RAN = 97
_NOTHING_COLLECTED = 5
"""Source: pytest's exit codes."""


def main(file: str) -> int:
    """Run the tests in the file, which is named relative to the current folder; the exit code."""
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "src"), os.path.dirname(os.path.abspath(file))]
    return with_unittest(file) if importlib.util.find_spec("pytest") is None else with_pytest(file)


def with_pytest(file: str) -> int:
    """All its tests, up to the first that fails."""
    import pytest

    code = int(pytest.main(["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", file]))
    return NOTHING_RAN if code == _NOTHING_COLLECTED else min(code, 1)


def with_unittest(file: str) -> int:
    """The same."""
    spec = importlib.util.spec_from_file_location("checked_tests", file)
    if spec is None or spec.loader is None:
        return NOTHING_RAN
    module = importlib.util.module_from_spec(spec)
    sys.modules["checked_tests"] = module
    spec.loader.exec_module(module)
    found = unittest.defaultTestLoader.loadTestsFromModule(module)
    functions = [each for name, each in vars(module).items() if name.startswith("test") and inspect.isfunction(each)]
    found.addTests(unittest.FunctionTestCase(each) for each in functions if not inspect.signature(each).parameters)
    if not found.countTestCases():
        return NOTHING_RAN
    return 0 if unittest.TextTestRunner(stream=sys.stdout, failfast=True).run(found).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
