"""Asking a person at the terminal whether calls may run: what each would do, then one question for each. Pure.

The lines are read by a function that is handed in; where there is nobody to ask, every call is rejected.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graph.terminal.call_words import target_of
from graph.terminal.ending import Line, diff_lines
from graph.terminal.plain_text import one_line
from graph.terminal.screen import Screen
from nodes.execute_tools.tools.definitions import Merged, replace_definitions
from nodes.execute_tools.tools.diffs import unified_diff

ReadLine = Callable[[str], str]
"""Asks with a prompt and returns the line; raises EOFError at the end of the input."""

ReadFile = Callable[[str], bytes | None]
"""The bytes that a path of the workspace has now, or None."""

NOBODY = "nobody can be asked in this run, and only --mode auto would allow it"
_YES, _STOP = frozenset({"y", "yes"}), frozenset({"s", "stop"})
_NEW_TEXT = {"edit_file": "new_str", "write_file": "content", "edit_blocks": "content"}
"""The argument of a writing tool that holds the new text."""

_LONGEST_ARGUMENT = 2_000


def ask_person(
    request: Mapping[str, Any],
    screen: Screen,
    read_line: ReadLine | None,
    read_file: ReadFile,
    scrub: Callable[[str], str] = str,
) -> Mapping[str, Any]:
    """The decisions on an approval request, call by call, for `Session.answer`.

    "y" approves and "s" stops the run; anything else and the end of the input reject, and so does a missing
    `read_line`: there is nobody to ask.
    """
    decisions: dict[str, Mapping[str, str]] = {}
    for call in request["calls"]:
        what = one_line(f"{call['tool']} {call['path'] or target_of(call['arguments'])}")
        if read_line is None:
            decisions[str(call["index"])] = {"action": "reject", "reason": NOBODY}
            continue
        for line in preview(call, read_file, scrub):
            screen.line(*line)
        decisions[str(call["index"])] = {"action": _answer(f"Allow {what}? [y/N, s to stop] ", read_line)}
    return {"decisions": decisions}


def preview(call: Mapping[str, Any], read_file: ReadFile, scrub: Callable[[str], str] = str) -> Iterator[Line]:
    """What a call would do: the diff of an edit, the arguments of any other call; `scrub` takes secrets out."""
    tool, path, arguments = call["tool"], str(call["path"]), call["arguments"]
    yield Line(one_line(f"? {tool} {path}"), "bold yellow")
    if tool in _NEW_TEXT:
        after = str(arguments.get(_NEW_TEXT[tool], ""))
        before = arguments.get("old_str") if tool == "edit_file" else _text(read_file(path))
        if tool == "edit_blocks" and before is not None and path.endswith((".py", ".pyi")):
            merged = replace_definitions(before, after, path)
            after = merged.text if isinstance(merged, Merged) else after
        diff = unified_diff(path, _ended(before) if before else None, _ended(after))
        yield from diff_lines([scrub(diff)])
        return
    for name, value in arguments.items():
        yield Line(f"  {name}: {one_line(str(value), _LONGEST_ARGUMENT)}")


def _ended(text: str) -> str:
    """With a line end, without which a diff would speak of that alone: what is replaced is often a part of a line."""
    return text if text.endswith("\n") else f"{text}\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _answer(prompt: str, read_line: ReadLine) -> str:
    try:
        answer = read_line(prompt).strip().lower()
    except EOFError:
        return "reject"
    return "approve" if answer in _YES else "stop" if answer in _STOP else "reject"
