"""Requests that ask a small model to rewrite a function whose body it does not see.

A small model repeats a body that it sees. So after a failure the function is shown without its body: a documented one
alone, any other in its file. If the request is an order, the unchanged file is shown alone.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mendgraph.nodes.language.chat_messages import message_of
from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.names import TEXT_SUFFIXES, named_paths
from mendgraph.nodes.records import JsonMap
from mendgraph.nodes.small_model.blocks import render_file
from mendgraph.nodes.small_model.examples import REWRITE_SYSTEM
from mendgraph.nodes.small_model.turn_view import TurnView
from mendgraph.nodes.small_model.wording import asks_for_a_change, is_question, reports_a_problem

LAST_TRY = 3
"""The maximum number of requests for a failed task, each with another wording.

Source: 43 replies to a request that was sent before, none of which solved anything.
"""

_WORD = re.compile(r"\w+")
_CALL = re.compile(r"\w+\(")
_EXAMPLE_RESULT = re.compile(r"^(?>(.*?) (?:gives|raises) ).*, but must (give|raise) (.*)$", re.MULTILINE)
_ELISION = "..."

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Focus(NamedTuple):
    """The definition that the work is about, and its file."""

    path: str
    name: str


class Rewrite(NamedTuple):
    """A function to rewrite, and its file without its body; `alone` if nothing else is shown.

    With "" for `name` it is the whole file, unchanged.
    """

    path: str
    name: str
    text: str
    alone: bool


def find_rewrite(task: str, view: TurnView, failures: int) -> Rewrite | None:
    """Return what the next request asks to rewrite; None if it shows the current state."""
    if not 0 < failures < LAST_TRY or missing_files(task, view) or is_question(task):
        return None

    focus = None
    text = None
    is_repair = reports_a_problem(task) or any(_CALL.match(line) for line in view.evidence)
    if is_repair:
        focus = find_focus(task, view)
    if focus:
        text = without_body(view.files[focus.path], focus.name)

    if focus and text:
        is_documented = any(ast.get_docstring(node) for node in _functions(text) if node.name == focus.name)
        return Rewrite(focus.path, focus.name, text, alone=(failures > 1) is not is_documented)

    if failures == 1 or asks_for_a_change(task):
        return _unchanged_file(view)

    return None


def _unchanged_file(view: TurnView) -> Rewrite | None:
    """Return the first Python file that the last step returned unchanged."""
    if not view.unchanged:
        return None

    paths = [path for path in view.files if path.endswith((".py", ".pyi"))]
    if len(view.files) > 1:
        failure_text = " ".join(view.failures)
        paths = [path for path in paths if path in failure_text]
        paths.sort(key=failure_text.index)

    if not paths:
        return None

    return Rewrite(paths[0], "", view.files[paths[0]], alone=True)


def rewrite_request(rewrite: Rewrite, task: str, view: TurnView, since: str, failures: int) -> list[JsonMap]:
    """Return a request without examples of edits: the purpose, the start of the code, and the expected result."""
    expected = expected_results(view)
    file = render_file(rewrite.path, rewrite.text)

    if rewrite.name:
        purpose = [] if expected else [task.strip()]
        parts = [since, *purpose, file, *expected, f"Write the function {rewrite.name}."]
    else:
        parts = [since, file, task.strip()]
        if failures > 1:
            parts += [*expected, f"Write all of {rewrite.path}."]

    request = "\n\n".join(part for part in parts if part)
    return [message_of("system", REWRITE_SYSTEM), message_of("user", request)]


def expected_results(view: TurnView) -> list[str]:
    """Return the findings of checks with only the expected values, without those of the old body."""
    return [_EXAMPLE_RESULT.sub(r"\1 must \2 \3", line) for line in view.evidence]


def missing_files(task: str, view: TurnView) -> list[str]:
    """Return the text files that an order names and that are not known; absolute paths do not count."""
    if is_question(task):
        return []

    named = named_paths(task)
    known = {*view.files, *view.changed}
    known_suffixes = [f"/{path}" for path in known if path not in named]
    missing: list[str] = []

    for path in named:
        is_known = path in known or any(suffix.endswith(f"/{path}") for suffix in known_suffixes)
        is_known |= any(f"'{path}'" in reason for reason in view.unreadable)
        is_text = path.rpartition(".")[2] in TEXT_SUFFIXES
        if not is_known and is_text and not path.startswith("/"):
            missing.append(path)

    return missing


def find_focus(task: str, view: TurnView) -> Focus | None:
    """Return the definition that evidence, task or failures are about, in this order; None if it is not unique.

    A text that starts with a call is about the called function.
    """
    paths_of = _definitions(view.files)

    for text in (*view.evidence, task, *view.failures):
        names = [name for name in dict.fromkeys(_WORD.findall(text)) if name in paths_of]
        if not names:
            continue

        paths = paths_of[names[0]]
        is_certain = len(names) == 1 or text.startswith(f"{names[0]}(")
        if is_certain and len(paths) == 1:
            return Focus(paths[0], names[0])

        return None

    return None


def _definitions(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files that define each function."""
    paths_of: dict[str, list[str]] = {}
    for path, text in files.items():
        if path.endswith((".py", ".pyi")):
            for function in _functions(text):
                paths_of.setdefault(function.name, []).append(path)

    return paths_of


def without_body(text: str, name: str) -> str | None:
    """Return the file with `...` as the function's body, keeping its docstring; None if it has no single body."""
    functions = [function for function in _functions(text) if function.name == name]
    if len(functions) != 1:
        return None

    function = functions[0]
    body: Sequence[ast.stmt] = function.body
    docstring_end = 0
    if ast.get_docstring(function) is not None:
        docstring_end = body[0].end_lineno or 0
        body = body[1:]

    if not body:
        return None

    decorators = getattr(body[0], "decorator_list", ())
    start = min([body[0].lineno, *(decorator.lineno for decorator in decorators)])
    last_kept = docstring_end or start - 1
    end = function.end_lineno or start
    lines = text.split("\n")
    if not function.lineno <= last_kept < start or end > len(lines):
        return None

    code = lines[start - 1]
    indent = code[: len(code) - len(code.lstrip())]
    hidden = "\n".join([*lines[:last_kept], f"{indent}{_ELISION}", *lines[end:]])
    if any(function.name == name for function in _functions(hidden)):
        return hidden

    return None


def _functions(text: str) -> list[_Function]:
    try:
        tree = parse_quietly(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []

    return [node for node in ast.walk(tree) if isinstance(node, _Function)]
