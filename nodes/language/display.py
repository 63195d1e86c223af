"""Text for people: untrusted text made safe for a terminal, and short descriptions of amounts, calls and results."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from unicodedata import category

from mendgraph.nodes.records import ExtractionError, JsonMap, ToolResult

LEAST_USD: Final = 0.0001
"""The smallest amount that four decimals can show."""

NO_FILE_CHANGED: Final = "No file was changed."
"""The first line of an outcome without changed files."""

_OUR_ID = re.compile(r"[0-9a-f]{32}")
_SHORT = 8
"""Characters of a generated run id that are shown."""

_KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the two joiners that some scripts and emojis need."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9./-]+")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and format characters (including bidi), surrogates and line separators."""


def plain(text: str) -> str:
    """Return the text with control, bidi and format characters escaped; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def described_type(value: object) -> str:
    """Return what kind of value this is, such as "a str" or "the class Path"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def one_line(text: str, limit: int = 200) -> str:
    """Return the text on one line: white space is collapsed, and text beyond `limit` is cut and ends in "...".

    It is cut between words if the last word is shorter than half of the limit.
    """
    words = plain(" ".join(text.split()))
    if len(words) <= limit:
        return words

    end = words.rfind(" ", limit // 2, limit - 2)
    return words[: end if end > 0 else limit - 3].rstrip(",;:") + "..."


def without_middle(text: str, limit: int) -> str:
    """Return the text on one line; if it is longer than `limit`, the middle is replaced by "..."."""
    words = plain(" ".join(text.split()))
    if len(words) <= limit:
        return words

    tail = (limit - 3) // 2
    head = limit - 3 - tail
    return f"{words[:head]}...{words[-tail:]}"


def fenced(text: str, language: str = "text") -> str:
    """Return a fenced code block of Markdown, with a fence longer than any run of backticks in the text."""
    one_line_text = plain("\n".join(text.splitlines()))
    runs = re.findall("`+", one_line_text)
    fence = "`" * max(3, *(len(run) + 1 for run in runs), 0)

    return f"{fence}{language}\n{one_line_text}\n{fence}"


def inline_code(text: str) -> str:
    """Return a code span of Markdown; a name of letters, digits, `.`, `/` and `-` stays as it is."""
    if _PLAIN_NAME.fullmatch(text):
        return text

    line = " ".join(text.splitlines())
    ticks = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if "`" in line else ""

    return f"{ticks}{space}{line}{space}{ticks}"


def short_id(run_id: str) -> str:
    """Return the first characters of a generated id; an id that the user chose stays whole."""
    if _OUR_ID.fullmatch(run_id):
        return run_id[:_SHORT]
    return run_id


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun: `1 line`, `2 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first names, each once and on one line, and the number of others: `a.py, b.py and 2 more`."""
    unique = list(dict.fromkeys(names))
    listing = ", ".join(one_line(name) for name in unique[:most])
    more = len(unique) - most

    if more > 0:
        return f"{listing} and {more:,} more"

    return listing


def usd(amount: float) -> str:
    """Return the amount in USD with four decimals."""
    if 0 < amount < LEAST_USD:
        return f"less than {LEAST_USD} USD"
    return f"{amount:.4f} USD"


def output_words(tokens: int, reasoning: int) -> str:
    """Return the number of output tokens and, if there are any, of reasoning tokens."""
    return f"{tokens:,} out" + (f" ({reasoning:,} reasoning)" if reasoning else "")


# --- Calls and their results in a few words


_LONGEST_TARGET = 80
_LONGEST_FOLDER = 40
"""Characters of the folder of a command."""

_LISTED_FILES = 5
_RULED = re.compile(r"(?m)^[^\S\n]*+([=\-_*#~])\1{4,}+[^\S\n]*+$")
"""A horizontal line in the output of a test runner."""

_FOR_THE_MODEL = re.compile(r"\A[A-Z]+(?:_[A-Z]+)+: | Available: \[.*\]\Z")
"""Parts of a message that only the model needs: the name of the error, and the list of all tools."""


def target_of(arguments: Mapping[str, Any]) -> str:
    """Return the target of a call (command, URL, pattern, path or name) on one line; "" if it has none.

    A long text loses its middle; of a command line its length is then named.
    """
    return _command(arguments) or without_middle(_place(arguments), _LONGEST_TARGET)


def result_words(result: ToolResult) -> str:
    """Return a short description of a result: `35 lines`, `1 replacement`, `not found: ...`; "ok" without a number."""
    if result.error is not None:
        message = one_line(_RULED.sub("", _FOR_THE_MODEL.sub("", result.error.message)))
        return f"{result.error.code.value.replace('_', ' ')}: {message}"

    data = result.data
    words = next((one_line(words_of(data)) for key, words_of in _WORDS.items() if key in data), "ok")
    if part := data.get("approved_in_part"):
        noun = "hunks" if "," in part["hunks"] else "hunk"
        words += f" ({noun} {part['hunks']})"

    return words + _diagnostics_words(data)


def _diagnostics_words(data: JsonMap) -> str:
    """Return how many new diagnostics an edit has, and why a linter has none; "" if neither is known."""
    words = ""
    lines = data.get("new_diagnostics", ())
    if lines and lines[-1].startswith("... and "):
        words = f": more than {count_of(len(lines) - 1, 'new diagnostic')}"
    elif lines:
        words = f": {count_of(len(lines), 'new diagnostic')}"

    return words + "".join(f"; {one_line(reason)}" for reason in data.get("not_diagnosed", ()))


def error_words(errors: tuple[ExtractionError, ...]) -> str:
    """Return the first error of a reply and the number of others."""
    if not errors:
        return "it could not be read"

    first = errors[0]
    place = f" in line {first.line_number}" if first.line_number else ""
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""

    return f"{first.error_type.name}{place}{more}"


def _command(arguments: Mapping[str, Any]) -> str:
    argv = arguments.get("argv")
    folder = arguments.get("cwd")
    shell_line = arguments.get("command")
    if isinstance(shell_line, str) and shell_line.strip():
        line = plain(" ".join(shell_line.split()))
    elif isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        line = plain(" ".join(shlex.join(argv).split()))
    else:
        return ""

    if len(line) > _LONGEST_TARGET:
        line = f"{without_middle(line, _LONGEST_TARGET)} ({len(line):,} characters)"

    where = ""
    if isinstance(folder, str) and folder != ".":
        where = f" in {without_middle(folder, _LONGEST_FOLDER)}"

    return line + where


def _place(arguments: Mapping[str, Any]) -> str:
    named = {key: value for key, value in arguments.items() if isinstance(value, str)}
    if "job" in named:
        return named["job"]
    if "url" in named:
        return named["url"]
    if "query" in named:
        return repr(named["query"])
    if "pattern" in named:
        return repr(named["pattern"]) + (f" in {named['path']}" if named.get("path", ".") != "." else "")
    if "path" in named:
        return _moved(named)

    return named.get("name", "")


def _moved(names: Mapping[str, str]) -> str:
    if "target" in names:
        return f"{names['path']} → {names['target']}"
    return names["path"]


def _page(data: Mapping[str, Any]) -> str:
    count_shown = data["lines_shown"]
    remaining = data.get("lines_remaining", 0)
    return count_of(count_shown, "line") + (f", {remaining:,} more" if remaining else "")


def _edit(data: Mapping[str, Any]) -> str:
    if not data["replacements"]:
        return "created"

    if "edits" in data:
        edits = f"{count_of(data['edits'], 'edit')}, "
    else:
        edits = ""

    return edits + count_of(data["replacements"], "replacement")


def _ended(data: Mapping[str, Any]) -> str:
    if "signal" in data:
        return f"killed by signal {data['signal']}"
    return f"exit {data['exit_code']}"


def _patched(data: Mapping[str, Any]) -> str:
    files = data["files"]
    if len(files) > _LISTED_FILES:
        more = f" and {len(files) - _LISTED_FILES} more"
    else:
        more = ""

    return ", ".join(f"{file['action']} {_moved(file)}" for file in files[:_LISTED_FILES]) + more


def _checked(data: Mapping[str, Any]) -> str:
    tests_run = ", ".join(data.get("ran", ()))
    reason = data.get("reason", "")
    return ". ".join(filter(None, (f"{tests_run} passed" if tests_run else "not checked", reason)))


def _more(data: Mapping[str, Any]) -> str:
    return " and more" if data.get("has_more") else ""


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "checks": _checked,
    "exit_code": _ended,
    "status": lambda data: f"{data['status']}, {count_of(data['size'], 'byte')}{_more(data)}",
    "lines_shown": _page,
    "replacements": _edit,
    "changed": lambda data: f"{data.get('action', 'changed')} {', '.join(map(str, data['changed']))}".strip(),
    "lines": lambda data: f"{data.get('action', 'written')}, {count_of(data['lines'], 'line')}",
    "directories": lambda data: (
        f"{count_of(data['files'], 'file')}, {count_of(data['directories'], 'directory', 'directories')}"
    ),
    "paths": lambda data: count_of(len(data["paths"]), "file") + _more(data),
    "matches": lambda data: count_of(len(data["matches"]), "match", "matches") + _more(data),
    "in_progress": lambda data: f"{data['done']} done, {data['in_progress']} in progress, {data['pending']} pending",
    "files": _patched,
    "action": lambda data: str(data["action"]),
    "noted": lambda data: str(data["noted"]),
}
"""The descriptions of results by the key of their data that identifies them; the first key in this order counts."""
