"""The files and names that a request speaks of, similar names, references to results, and pasted output."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode

TEXT_SUFFIXES = frozenset(
    {
        *("c", "cfg", "cpp", "css", "go", "h", "html", "ini", "java", "js", "json", "md", "py", "pyi"),
        *("rb", "rs", "sh", "sql", "toml", "ts", "txt", "xml", "yaml", "yml"),
    }
)
"""Ends of the names of text files that people work on."""

IS_TEST = re.compile(r"(?:\A|/)(?:tests?/|test_)|[._]test\.\w+\Z")
"""What the path of a file with tests has."""

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
"""The form of a path that names a place outside of every workspace."""


def named_paths(request: str) -> list[str]:
    r"""What may be paths in a request, absolute ones too, each once, in order; quoted, with spaces or "./", any name.

    What Markdown escapes in one stands as in the name: `app/\[slug\]/page.tsx`.
    """
    request = _ESCAPED.sub(r"\1", request)
    plain = (match.group() for match in _PATH.finditer(request))
    quoted = (match["path"] for match in _QUOTED.finditer(request) if " " in match["path"] or match["path"][:2] == "./")
    paths = dict.fromkeys(path.removeprefix("./").rstrip(".") for path in chain(quoted, plain))

    return [path for path in paths if path]


def named_identifiers(request: str) -> list[str]:
    """Words that are names in code, each once, in order: in backquotes, with `_` or inner capitals, or called."""
    identifiers = (match["quoted"] or match["plain"] for match in _IDENTIFIER.finditer(request))
    return list(dict.fromkeys(identifiers))


def names_elsewhere(path: str) -> bool:
    r"""Whether a path is no relative one, though POSIX would take it for one: `~/a`, `C:\a`, `\\host\a`, `file:///a`.

    A file or folder that is there under such a name is the one that is named.
    """
    return _ELSEWHERE.match(path) is not None


SUGGESTIONS = 3
"""How many names are offered. Source: spec 2 section 5."""

LEAST_LIKENESS = 50.0
"""Below this (of 100) a name is another name and not a misspelling."""

_LONGEST_NAME = 100
_SHORTEST = 3
"""A shorter name has too few letters to be half of another."""

_UNLIKE = 4
"""The tier of a name that is not worth naming."""


def closest_names(wanted: str, names: Iterable[str], limit: int = SUGGESTIONS) -> tuple[str, ...]:
    """Up to `limit` of `names`, best first, or none where nothing is close.

    First come names that begin as the wanted one does, then those of which one is inside the other, then those that are
    few edits away. Case, `_`, `-` and spaces never count. Source of the order: spec 2 section 5.
    """
    from rapidfuzz.fuzz import ratio  # only what goes wrong needs it

    folded = _folded(wanted[:_LONGEST_NAME])
    ranked = sorted((*_rank(folded, _folded(name), ratio), name != wanted, name) for name in set(names) if wanted)
    return tuple(name for tier, _, _, name in ranked if tier < _UNLIKE)[:limit]


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold() or name


def _rank(wanted: str, name: str, ratio: Callable[[str, str], float]) -> tuple[int, float]:
    likeness = ratio(wanted, name)
    is_long = len(name) >= _SHORTEST
    tiers = (
        name == wanted,
        name != "" and (name.startswith(wanted) or wanted.startswith(name)),
        wanted in name or (is_long and name in wanted),
        is_long and likeness >= LEAST_LIKENESS,
    )

    return (*tiers, True).index(True), -likeness


LARGEST_NUMBER: Final = 999_999
_REFERENCE = re.compile(r"@result/([1-9][0-9]{0,5})")
_SHOWN = 3


def reference_of(number: int) -> str:
    """The reference of the kept result with this number, from 1 to 999,999."""
    return f"@result/{number}"


def number_of(reference: str) -> int | None:
    """The number of the kept result that is meant, or None for what is no reference."""
    match = _REFERENCE.fullmatch(reference)
    return int(match[1]) if match else None


def is_reference(path: str) -> bool:
    """Whether this names a kept result and no file of the workspace. It holds no `..` and can lead nowhere else."""
    return number_of(path) is not None


def only_read(reference: str) -> str:
    """What a tool says that looks at directories and was given a reference."""
    return f'{reference} is a kept result, not a directory: read_file path="{reference}" reads it.'


def unknown_reference(reference: str, numbers: Sequence[int]) -> ToolError:
    """NOT_FOUND; `numbers` are those of the results that were kept, and the latest are named."""
    names = tuple(reference_of(number) for number in sorted(numbers, reverse=True)[:_SHOWN])
    if names:
        latest = f"The latest are {', '.join(names)}."
    else:
        latest = "None was kept in this run: make the call again."

    return ToolError(
        code=ToolErrorCode.NOT_FOUND, message=f"No kept result is called {reference}. {latest}", suggestions=names
    )


# --- Output of tests and programs that a person has pasted into a request, and the files that it speaks of

_TOLD = re.compile(
    r"^(?:[ \t]*(?P<frame>[\w@+./-]*[\w@+-]\.[A-Za-z]\w*):\d+(?::\d+)?:(?=\s|$)"
    r"|[ \t]*File \"(?P<file>[^\"\n]+)\", line \d+|(?:FAILED|ERROR) (?P<test>[\w@+./-]+\.\w+)(?=::|\s|$)|E {2,}\S).*$",
    re.MULTILINE,
)
"""Lines of tracebacks and of pytest."""
_AROUND = re.compile(
    r"^(?:Traceback \(most recent call last\):|={3,} .* ={3,}$|_{3,} .* _{3,}$|[.sxX]*[FE][.FEsxX]*$"
    r"|[.FEsxX]+[ \t]+\[ *\d+%\]$|\w+(?:Error|Exception)(?::.*)?$|\d+ (?:failed|passed)\b.*$)",
    re.MULTILINE,
)
"""Lines that stand before or behind them."""
_INDENTED = re.compile(r"(?:\n[ \t]+\S.*)+")


def without_output(request: str) -> tuple[str, str]:
    """A request without the output of tests or of a program that was pasted into it, and that output, "" for none."""
    if not (outputs := [*_TOLD.finditer(request)]):
        return request, ""

    lines = [*outputs, *_AROUND.finditer(request)]
    start = min(line.start() for line in lines)
    end = max(line.end() for line in lines)

    if code := _INDENTED.match(request, end):
        end = code.end()

    return f"{request[:start].rstrip()}\n{request[end:].lstrip()}".strip(), request[start:end].strip("\n")


def told_paths(output: str) -> list[str]:
    """The files that pasted output speaks of, each once: tests first, then the others, the last frame's last."""
    output_lines = [line for line in _TOLD.finditer(output) if line.lastgroup]
    paths = [line["test"] for line in output_lines if line["test"]]
    paths += [line["frame"] or line["file"] for line in output_lines if not line["test"]]
    last = {path.removeprefix("./"): at for at, path in enumerate(paths) if "site-packages/" not in path}

    return sorted(last, key=lambda path: (not IS_TEST.search(path), last[path]))
