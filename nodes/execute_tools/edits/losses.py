"""What an edit would lose: code that a block leaves out, the rest of a file, or valid syntax. Pure.

Texts are only parsed to syntax trees or streams of events: no object is built and no alias is resolved.
"""

import ast
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Final

import yaml

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse, statements_in
from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.workspace.files.text_files import count_lines

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.edits.units import Unit

_SHOWN_CHARACTERS: Final = 60
_ELISION: Final = re.compile(
    r"#\W*(?:(?:the )?(?:rest|remaining|existing|previous|other) (?:\w+ ){0,6}?"
    r"(?:code|function|methods?|class|file|body|implementation|logic|unchanged|same|remains?|here|before)"
    r"|unchanged|same as (?:before|above)|no changes?(?: needed)?(?: here)?|(?:code )?omitted(?: for brevity)?"
    r"|(?:your|add|implementation|implement) (?:\w+ ){0,3}?here)\W*",
    re.IGNORECASE,
)


def is_elision(comment: str) -> bool:
    """Return whether a comment says that code was left out, or is still to be written."""
    return comment.lstrip("# ").startswith(("...", "…")) or _ELISION.fullmatch(comment) is not None


def elision_in(old: "Unit", new: "Unit") -> str:
    """Return what in `new` stands for code of `old` that it leaves out, or "".

    What stands for nothing because `old` says it too, or has no code, is complete.
    """
    if is_stub(old.tree):
        return ""
    if is_stub(new.tree) and "NotImplementedError" not in new.meaning:
        return f"line {new.first} gives {new.key or 'the statement'} no body"

    for line, comment in new.comments.items():
        if comment not in old.comments.values() and is_elision(comment):
            return f"line {line} says `{comment}`"

    ellipses = _ellipses(new.tree)
    if len(ellipses) > len(_ellipses(old.tree)):
        return f"line {ellipses[-1]} says `...`"

    return ""


def torn_statement(tree: list[ast.stmt], lines: Sequence[str]) -> str:
    """Return a `return` or `yield` outside of any function, which shows that lines before it are missing, or ""."""
    for node in statements_in(tree):
        if isinstance(node, ast.Return) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)):
            return f"line {node.lineno} `{lines[node.lineno - 1].strip()[:_SHOWN_CHARACTERS]}`"

    return ""


def is_stub(node: ast.stmt) -> bool:
    """Return whether the body of a statement consists of a docstring, `pass`, `...` or NotImplementedError.

    A function that only calls itself counts as well: a model writes it below an import of the same name.
    """
    match node:
        case ast.FunctionDef(name=name, body=[ast.Return(value=ast.Call(func=ast.Name(id=called)))], decorator_list=[]):
            return name == called and [parameter.arg for parameter in node.args.args[:1]] not in (["self"], ["cls"])

    body: list[ast.stmt] = getattr(node, "body", [])
    return bool(body) and all(map(_does_nothing, body))


def is_placeholder(node: ast.stmt) -> bool:
    """Return whether a statement is `pass` or `...`."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant(value=EllipsisType())):
            return True
        case _:
            return False


def _does_nothing(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Raise(exc=ast.expr() as error):
            return "NotImplementedError" in ast.dump(error)
        case _:
            return is_placeholder(node)


def _ellipses(tree: ast.stmt) -> list[int]:
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and is_placeholder(node):
            lines.append(node.lineno)

    return sorted(lines)


# --- A block in place of a whole file

SMALLEST_SHARE: Final = 0.3
"""A text that is shorter than this share of the old one counts as an excerpt, if the old one has enough lines."""
JUDGED_LINES: Final = 20

_COMMENT: Final = re.compile(r"[ \t]*(?:#|//|/\*|--|<!--|;|%)(.*?)(?:\*/|-->)?[ \t]*", re.MULTILINE)
_DEFINITION: Final = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
_JSON_KEY: Final = re.compile(r'"((?:[^"\\\n]|\\.)*+)"[ \t]*+:')
_KEY: Final = re.compile(r"""^[ \t]*+(?:-[ \t]+)?(?:\[+([\w."'-]+)\]+|["']?([\w.-]+)["']?[ \t]*+[:=])""", re.MULTILINE)
_JAVASCRIPT: Final = re.compile(
    r"^(?:(?:export|default|async)[ \t]++)*+(?:function\b[ \t]*+\*?|class\b|const\b|let\b|var\b)[ \t]*+([\w$]++)",
    re.MULTILINE,
)
_KEYWORDS: Final = re.compile(
    r"^(?:(?:pub(?:\([\w:]+\))?|public|private|internal|export|async|unsafe|const|abstract|final|open|data)[ \t]++)*+"
    r"(?:fn|func|fun|function|def|struct|enum|trait|class|interface|object|type|module)\b[ \t]*+"
    r"(?:\([^)\n]*+\)[ \t]*+)?(\w++)",
    re.MULTILINE,
)
"""A definition of a function or a type. A Go method has its receiver before its name."""

_OF_KEYWORDS: Final = (".rs", ".go", ".rb", ".php", ".java", ".kt", ".swift", ".scala", ".cs")
_SCRIPTS: Final = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx")
_CONFIGURATION: Final = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".properties")
_PATTERNS: Final = (
    ((".py", ".pyi"), _DEFINITION),
    (".json", _JSON_KEY),
    (_CONFIGURATION, _KEY),
    (_SCRIPTS, _JAVASCRIPT),
    (_OF_KEYWORDS, _KEYWORDS),
)
_DIFF: Final = re.compile(r"^(?:@@ |--- \S.*\n\+\+\+ )", re.MULTILINE)
_ADDS: Final = re.compile(r"\b(?:add|append|insert)(?:s|ing)?\b", re.IGNORECASE)
_SHRINKS: Final = re.compile(
    r"\b(?:remov|delet|drop|short|summar|empt|clear|only|replac|rewrit|simplif|trim|reduc|clean)", re.IGNORECASE
)


def why_not_whole(old: str, new: str) -> str:
    """Return why `new` is only a part of `old`, as a clause ("it ..."), or "" if it may be complete."""
    if placeholder := _placeholder(old, new):
        return f"it says `{placeholder}` in place of text"
    if _DIFF.search(new) and not _DIFF.search(old):
        return "it is a diff"
    if count_lines(old) > JUDGED_LINES and len(new) < SMALLEST_SHARE * len(old):
        return f"it has {count_lines(new)} lines where the file has {count_lines(old)}"

    return ""


def why_lossy(old: str, new: str) -> str:
    """Return why `new` has a placeholder in place of most lines of `old`, as a clause ("it ..."), or ""."""
    new_lines = {line.strip() for line in new.splitlines()}
    count = 0
    lost: list[int] = []

    for number, line in enumerate(old.splitlines(), start=1):
        if line.strip():
            count += 1
            if line.strip() not in new_lines:
                lost.append(number)

    if not lost or 2 * len(lost) < count:
        return ""

    placeholder = _placeholder(old, new)
    if not placeholder:
        return ""

    return f"it says `{placeholder}` and loses {len(lost)} of {count} lines, from line {lost[0]} to line {lost[-1]}"


def _placeholder(old: str, new: str) -> str:
    """Return the first line of `new`, and not of `old`, that says that text was left out, or ""."""
    old_lines = {line.strip() for line in old.splitlines()}

    for line in map(str.strip, new.splitlines()):
        comment = _COMMENT.fullmatch(line)
        elided = line in {"...", "…"} or (comment is not None and is_elision(f"# {comment[1].strip()}"))
        if elided and line not in old_lines:
            return line

    return ""


def why_too_little(old: str, new: str, task: str) -> str:
    """Return why `new` holds too few lines of a short text, as a clause ("it ..."), unless the task removes some.

    A small model that is asked to add a line often gives only that line.
    """
    if _SHRINKS.search(task):
        return ""

    lines = [line.strip() for line in old.splitlines() if line.strip()]
    new_lines = {line.strip() for line in new.splitlines()}
    unchanged = sum(line in new_lines for line in lines)
    fewer = count_lines(new) < count_lines(old) and 2 * unchanged < len(lines)

    if fewer or (lines and not unchanged and _ADDS.search(task)):
        return f"it holds {unchanged} of the {len(lines)} lines that the file has"

    return ""


def lost_keys(path: str, old: str, new: str) -> tuple[str, ...]:
    """Return the keys, sections or top-level definitions that `old` has and `new` lacks; neither has to parse."""
    for suffixes, pattern in _PATTERNS:
        if path.endswith(suffixes):
            new_keys = set(_keys(pattern, new))
            return tuple(dict.fromkeys(key for key in _keys(pattern, old) if key not in new_keys))

    return ()


def _keys(pattern: re.Pattern[str], text: str) -> list[str]:
    return [match[match.lastindex or 0] for match in pattern.finditer(text)]


# --- A text that no longer parses

LARGEST_JUDGED: Final = 1_000_000
"""The most characters of a text that is parsed."""
DEEPEST_YAML: Final = 100
"""The most levels of a YAML text that is parsed: libyaml's time grows with the square of the depth of brackets."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CANNOT_TELL: Final = SyntaxProblem(0, "cannot be judged")
"""A problem without a line, as `parse` returns it for a text that is nested too deeply."""


def syntax_problem(path: str, text: str) -> str | None:
    """Return `line 3: '(' was never closed`, or None if the text parses, has no known format or is too large.

    Python is parsed by the running Python, which may be older than the text.
    """
    problem = _problem(path, text)
    if problem is None or not problem.line:
        return None

    return str(problem._replace(line=min(problem.line, max(1, count_lines(text)))))


def broken_by(path: str, before: str | None, after: str) -> str | None:
    """Return `no longer parses as Python: line 3: '(' was never closed`, or None if `before` was broken or is None."""
    problem = syntax_problem(path, after)
    if problem is None or before is None or _problem(path, before) is not None:
        return None

    return f"no longer parses as {_LANGUAGES[_suffix(path)][0]}: {problem}"


def _problem(path: str, text: str) -> SyntaxProblem | None:
    language = _LANGUAGES.get(_suffix(path))
    if language is None or len(text) > LARGEST_JUDGED:
        return _CANNOT_TELL

    try:
        document = language[1](text)
    except (ValueError, RecursionError, MemoryError):
        return _CANNOT_TELL

    if isinstance(document, SyntaxProblem | DocumentProblem):
        return SyntaxProblem(document.line, document.message)

    return None


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def _json(text: str) -> SyntaxProblem | None:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        return SyntaxProblem(error.lineno, error.msg)

    return None


def _yaml(text: str) -> SyntaxProblem | None:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

            if depth > DEEPEST_YAML:
                return _CANNOT_TELL
    except yaml.MarkedYAMLError as error:
        return SyntaxProblem(error.problem_mark.line + 1 if error.problem_mark else 0, str(error.problem))
    except yaml.reader.ReaderError as error:
        return SyntaxProblem(text[: text.find(chr(error.character))].count("\n") + 1, error.reason)

    return None


_LANGUAGES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    **dict.fromkeys((".py", ".pyi"), ("Python", parse)),
    ".json": ("JSON", _json),
    ".toml": ("TOML", read_toml),
    **dict.fromkeys((".yaml", ".yml"), ("YAML", _yaml)),
}
