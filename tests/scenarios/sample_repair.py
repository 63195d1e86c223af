"""The repair that most tests make: a workspace with one bug, the request, and the calls that fix the bug."""

from tests.doubles.replies import Say
from tests.vocabulary import JsonMap

BROKEN = "def add(a, b):\n    return a - b\n"
MENDED = "def add(a, b):\n    return a + b\n"
CALC = {"calc.py": BROKEN}
TASK = "The add function in calc.py is wrong: it subtracts. Fix it."

READ: tuple[str, JsonMap] = ("read_file", {"path": "calc.py"})
EDIT: tuple[str, JsonMap] = ("edit_file", {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})
DONE = Say("add now adds.")

COUNT: JsonMap = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
"""A response format: the JSON schema of an object with a count."""


def plan(first: str, second: str) -> tuple[str, JsonMap]:
    """Call `update_plan` with two steps in these states."""
    steps = [{"title": "find the bug", "status": first}, {"title": "mend it", "status": second}]
    return ("update_plan", {"steps": steps})
