"""File names and identifiers in a request, similar names, references to stored results, and pasted test output."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode

TEXT_SUFFIXES = frozenset(
    {
        *("c", "cfg", "cpp", "css", "go", "h", "html", "ini", "java", "js", "json", "md", "py", "pyi"),
        *("rb", "rs", "sh", "sql", "toml", "ts", "txt", "xml", "yaml", "yml"),
    }
)
"""Suffixes of text files that people edit."""

IS_TEST = re.compile(r"(?:\A|/)(?:tests?/|test_|tests\.py\Z)|[._](?:test|spec)\.\w+\Z")
"""Matches the path of a test file."""

_QUOTED = re.compile(r"([`'\"])(?P<path>[^`'\"\n]{1,200})\1")
_PATH = re.compile(
    r"(?<![\w@+/.\\-])(?:\./)?[\w@+-][\w@.+-]*(?:/[\w@.+$()\[\]-]+)*(?:\.[A-Za-z]\w*)"
    r"|(?<![\w@+/.\\-])(?:\./)?\.[\w-][\w.-]*(?:/[\w@.+$()\[\]-]+)*"
    r"|(?<![\w@+/.\\:~<>-])/(?:[\w@.+-]+/)*[\w@.+-]*\.[A-Za-z]\w*"
)
_ESCAPED = re.compile(r"\\([\[\]()$_*])")
_IDENTIFIER = re.compile(
    r"`(?P<quoted>[A-Za-z_]\w{2,60})(?:\(\))?`"
    r"|(?<![\w./-])(?P<plain>[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Za-z_]\w+(?=\())(?![\w/-]|\.\w)"
)

_ELSEWHERE = re.compile(r"~(?:[\w.-]*/|\Z)|[A-Za-z]:[\\/]|\\\\|[A-Za-z][\w+.-]+:/")
"""Matches a path that cannot be inside of a workspace."""


def named_paths(request: str) -> list[str]:
    r"""Return possible paths in a request, each once, in order.

    They may be absolute, and any quoted text with a space or "./" counts. Markdown escapes are removed:
    `app/\[slug\]/page.tsx`.
    """
    request = _ESCAPED.sub(r"\1", request)
    candidates: list[str] = []

    for match in _QUOTED.finditer(request):
        if " " in match["path"] or match["path"].startswith("./"):
            candidates.append(match["path"])
    for match in _PATH.finditer(request):
        candidates.append(match[0])

    paths: dict[str, None] = {}
    for candidate in candidates:
        path = candidate.removeprefix("./").rstrip(".")
        if path:
            paths[path] = None

    return list(paths)


def named_identifiers(request: str) -> list[str]:
    """Return identifiers in a request, each once, in order: in backquotes, with `_` or inner capitals, or called."""
    identifiers = (match["quoted"] or match["plain"] for match in _IDENTIFIER.finditer(request))
    return list(dict.fromkeys(identifiers))


def names_elsewhere(path: str) -> bool:
    r"""Return whether POSIX would read the path as relative though it is not: `~/a`, `C:\a`, `\\host\a`, `file:///a`.

    A file or folder that exists under such a name takes precedence.
    """
    return _ELSEWHERE.match(path) is not None


SUGGESTIONS = 3
"""The number of suggested names. Source: spec 2 section 5."""

LEAST_LIKENESS = 50.0
"""The minimum similarity (of 100) of a misspelling."""

_LONGEST_NAME = 100
_SHORTEST = 3
"""Shorter names do not count as part of another name."""

_UNLIKE = 4
"""The tier of names that are not suggested."""


def closest_names(wanted: str, names: Iterable[str], limit: int = SUGGESTIONS) -> tuple[str, ...]:
    """Return up to `limit` similar names, best first.

    Names with the same beginning come first, then those of which one contains the other, then those within a few edits.
    Case, `_`, `-` and spaces are ignored. Source of the order: spec 2 section 5.
    """
    from rapidfuzz.fuzz import ratio  # only what goes wrong needs it

    if not wanted:
        return ()

    folded = _folded(wanted[:_LONGEST_NAME])
    ranked: list[tuple[int, float, bool, str]] = []
    for name in set(names):
        folded_name = _folded(name)
        likeness = ratio(folded, folded_name)
        tier = _tier(folded, folded_name, likeness)
        if tier < _UNLIKE:
            ranked.append((tier, -likeness, name != wanted, name))

    return tuple(name for *_, name in sorted(ranked))[:limit]


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold() or name


def _tier(wanted: str, name: str, likeness: float) -> int:
    """Return how a name resembles the wanted one: 0 the same, 1 its start, 2 a part of it, 3 a misspelling."""
    is_long = len(name) >= _SHORTEST
    if name == wanted:
        return 0
    if name and (name.startswith(wanted) or wanted.startswith(name)):
        return 1
    if wanted in name or (is_long and name in wanted):
        return 2
    if is_long and likeness >= LEAST_LIKENESS:
        return 3

    return _UNLIKE


LARGEST_NUMBER: Final = 999_999
_REFERENCE = re.compile(r"@result/([1-9][0-9]{0,5})")
_SHOWN = 3


def reference_of(number: int) -> str:
    """Return the reference of the stored result with this number, from 1 to 999,999."""
    return f"@result/{number}"


def number_of(reference: str) -> int | None:
    """Return the number of the stored result, or None if this is not a reference."""
    match = _REFERENCE.fullmatch(reference)
    return int(match[1]) if match else None


def is_reference(path: str) -> bool:
    """Return whether this names a stored result instead of a file. A reference has no `..` and no other target."""
    return number_of(path) is not None


def directory_expected(reference: str) -> str:
    """Return the error message of a tool for directories that was given a reference."""
    return f'{reference} is a kept result, not a directory: read_file path="{reference}" reads it.'


def unknown_reference(reference: str, numbers: Sequence[int]) -> ToolError:
    """Return a NOT_FOUND error; `numbers` are the stored results, of which the latest are suggested."""
    names = tuple(reference_of(number) for number in sorted(numbers, reverse=True)[:_SHOWN])
    if names:
        latest = f"The latest are {', '.join(names)}."
    else:
        latest = "None was kept in this run: make the call again."

    return ToolError(
        code=ToolErrorCode.NOT_FOUND, message=f"No kept result is called {reference}. {latest}", suggestions=names
    )


# --- Output of tests and programs that a person has pasted into a request, and the files that it speaks of

_OUTPUT_LINE = re.compile(
    r"^(?:[ \t]*(?P<frame>[\w@+./-]*[\w@+-]\.[A-Za-z]\w*):\d+(?::\d+)?:(?=\s|$)"
    r"|[ \t]*File \"(?P<file>[^\"\n]+)\", line \d+|(?:FAILED|ERROR) (?P<test>[\w@+./-]+\.\w+)(?=::|\s|$)|E {2,}\S).*$",
    re.MULTILINE,
)
"""Lines of tracebacks and of pytest's output that name files."""
_SURROUNDING_LINE = re.compile(
    r"^(?:Traceback \(most recent call last\):|={3,} .* ={3,}$|_{3,} .* _{3,}$|[.sxX]*[FE][.FEsxX]*$"
    r"|[.FEsxX]+[ \t]+\[ *\d+%\]$|\w+(?:Error|Exception)(?::.*)?$|\d+ (?:failed|passed)\b.*$)",
    re.MULTILINE,
)
"""Lines before or after them."""
_INDENTED = re.compile(r"(?:\n[ \t]+\S.*)+")


def split_output(request: str) -> tuple[str, str]:
    """Split a request into the person's words and pasted output of tests or programs ("" for none)."""
    outputs = [*_OUTPUT_LINE.finditer(request)]
    if not outputs:
        return request, ""

    lines = [*outputs, *_SURROUNDING_LINE.finditer(request)]
    start = min(line.start() for line in lines)
    end = max(line.end() for line in lines)

    code = _INDENTED.match(request, end)
    if code:
        end = code.end()

    words = f"{request[:start].rstrip()}\n{request[end:].lstrip()}".strip()
    return words, request[start:end].strip("\n")


def paths_in_output(output: str) -> list[str]:
    """Return the files that pasted output names, each once: tests first, then the others in the order of frames."""
    tests: list[str] = []
    frames: list[str] = []
    for line in _OUTPUT_LINE.finditer(output):
        if line["test"]:
            tests.append(line["test"])
        elif line["frame"] or line["file"]:
            frames.append(line["frame"] or line["file"])

    last_position: dict[str, int] = {}
    for position, path in enumerate([*tests, *frames]):
        if "site-packages/" not in path:
            last_position[path.removeprefix("./")] = position

    return sorted(last_position, key=lambda path: (not IS_TEST.search(path), last_position[path]))
