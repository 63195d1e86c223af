"""What a block leaves out: code that other code stands for, bodies of functions, the rest of a file. Pure.

A block may also be a diff, which says itself what it leaves out.
"""

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.python_text import Function, PythonText, Unit, statements_in
from mendgraph.nodes.execute_tools.files.text_files import count_lines

_SHOWN_CHARACTERS = 60
_LEFT_OUT = r"(?:the )?(?:rest|remainder|remaining|existing|previous|original|other)"
_CODE = r"(?:code|function|method|class|file|body|implementation|logic|unchanged|same|remains?|here|before)"
_ELISION = re.compile(
    rf"#\W*(?:{_LEFT_OUT} (?:\w+ ){{0,6}}?{_CODE}"
    r"|unchanged|same as (?:before|above)|no changes?(?: needed)?(?: here)?|(?:code )?omitted(?: for brevity)?"
    r"|(?:your|add|implementation|implement) (?:\w+ ){0,3}?here"
    r")\W*",
    re.IGNORECASE,
)


def is_elision(comment: str) -> bool:
    """Whether a whole comment says that code was left out, or is still to be written."""
    return comment.lstrip("# ").startswith(("...", "…")) or _ELISION.fullmatch(comment) is not None


def elision_in(old: tuple[PythonText, Unit], new: tuple[PythonText, Unit]) -> str:
    """What in `new` stands for code of `old` that it does not repeat, in words; "" where it is complete.

    What stands for nothing because `old` says it too, or has no code, is complete.
    """
    (old_text, old_unit), (new_text, new_unit) = old, new
    if is_stub(old_unit.node):
        return ""
    if is_stub(new_unit.node) and "NotImplementedError" not in new_unit.meaning:
        return f"line {new_unit.first} gives {new_unit.key or 'the statement'} no body"
    known = {old_text.comments.get(line) for line in _extent(old_text, old_unit)}
    for line in _extent(new_text, new_unit):
        comment = new_text.comments.get(line, "")
        if comment and comment not in known and is_elision(comment):
            return f"line {line} says `{comment}`"
    dots = _ellipses(new_unit)
    return f"line {dots[-1]} says `...`" if len(dots) > len(_ellipses(old_unit)) else ""


def torn_statement(text: PythonText) -> str:
    """A `return` or `yield` outside of any function, which shows that the lines before it are missing; "" without."""
    for node in statements_in(node for unit in text.units for node in unit.nodes):
        lone = isinstance(node, ast.Return) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield))
        if lone:
            return f"line {node.lineno} `{text.lines[node.lineno - 1].strip()[:_SHOWN_CHARACTERS]}`"
    return ""


def is_stub(node: ast.stmt) -> bool:
    """Whether a statement with a body has nothing in it but a docstring, `pass`, `...` or NotImplementedError."""
    body: list[ast.stmt] = getattr(node, "body", [])
    return bool(body) and all(is_placeholder(each) or _is_text(each) or _is_unimplemented(each) for each in body)


def is_placeholder(node: ast.stmt) -> bool:
    """Whether a statement is `pass` or `...`."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and _is_constant(node.value, type(...)))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_constant(node.value, str)


def _is_unimplemented(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.dump(node.exc)


def _is_constant(node: ast.expr, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)


def _ellipses(unit: Unit) -> list[int]:
    inner = (node for each in unit.nodes for node in ast.walk(each))
    return sorted(node.lineno for node in inner if isinstance(node, ast.Expr) and is_placeholder(node))


def _extent(text: PythonText, unit: Unit) -> range:
    return range(unit.first, text.tail(unit) + 1)


_TO_BE_WRITTEN: Final = re.compile(
    r"\b(?:TODO|FIXME|placeholder|stub|not (?:yet )?implemented|implement(?:ation)?|your (?:\w+ )?(?:code|logic))\b",
    re.IGNORECASE,
)
_EMPTY_BY_DESIGN: Final = re.compile(
    r"overload|abstract(?:method|property|classmethod|staticmethod)|group|callback|hookspec"
)
"""Decorators of functions that need no body: those of `abc` and `typing`, and what groups commands or names hooks."""
_INTERFACES: Final = frozenset({"Protocol", "ABC", "ABCMeta", "Interface"})
_NOTHING_TO_DO: Final = frozenset({"__init__", "__exit__", "__aexit__", "__del__"})
_ASKED: Final = re.compile(
    r"\b(?:stubs?|stubbed|placeholders?|skeletons?|boilerplate|scaffold\w*|no-?ops?|(?:do|does|doing) nothing"
    r"|dummy|dummies|mock\w*|fakes?|protocols?|abstract|NotImplementedError|unimplemented|hooks?"
    r"|(?<!line )(?<!user )(?<!graphical )(?<!web )(?<!text )interfaces?"
    r"|empty (?:function|method|class|bod(?:y|ies))s?|without (?:an? |any )?(?:body|bodies|implementations?))\b",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"\b(?:no|not|never|without|avoid|instead of|rather than|replac(?:e|ing)|fill(?:ing)?(?: in| out)?)\b"
    r"[^.;\n]{0,40}\Z|n['\u2019]t\b[^.;\n]{0,40}\Z",
    re.IGNORECASE,
)


def unwritten_bodies(text: PythonText, known: Collection[str], task: str = "", path: str = "") -> list[str]:
    """The functions and methods (`Cart.total`) of a text that are not `known` and leave out their body.

    None in a stub file, and where the `task` asks for stubs, placeholders, an interface or the like. What is abstract,
    an overload or a member of a protocol has no body to give, and a class may be `pass` alone.
    """
    if path.endswith(".pyi") or _asks_for_stubs(task):
        return []
    return [name for name in _unwritten(text, _statements(text), "") if name not in known]


def function_names(text: PythonText) -> set[str]:
    """All functions and methods of a text; methods also without their class, as they may stand alone in a block."""
    names = set(_functions(_statements(text), ""))
    return names | {name.rpartition(".")[2] for name in names}


def left_out(names: Sequence[str]) -> str:
    """How a block with these unwritten bodies is refused."""
    if len(names) == 1:
        return f"The block leaves out the body of {names[0]}: send it whole."
    return f"The block leaves out the bodies of {', '.join(names)}: send them whole."


def _asks_for_stubs(task: str) -> bool:
    return any(_REFUSED.search(task, 0, match.start()) is None for match in _ASKED.finditer(task))


def _statements(text: PythonText) -> Iterator[ast.stmt]:
    return (node for unit in text.units for node in unit.nodes)


def _functions(nodes: Iterable[ast.stmt], prefix: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function):
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _unwritten(text: PythonText, nodes: Iterable[ast.stmt], prefix: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function):
            if _leaves_out(text, node) and not any(map(_EMPTY_BY_DESIGN.fullmatch, _last_names(node.decorator_list))):
                yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            parents = [*node.bases, *(keyword.value for keyword in node.keywords)]
            if not any(name in _INTERFACES or name.endswith("Protocol") for name in _last_names(parents)):
                yield from _unwritten(text, node.body, f"{prefix}{node.name}.")


def _leaves_out(text: PythonText, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether nothing is there but a docstring and placeholders, or a comment says so of a plain value."""
    promised = any(_is_promise(text.comments.get(line, "")) for line in _lines(node))
    if is_stub(node) and not any(isinstance(each, ast.Raise) for each in node.body):
        return promised or node.name not in _NOTHING_TO_DO
    return promised and all(_says_nothing(each) for each in node.body)


def _is_promise(comment: str) -> bool:
    return bool(comment) and (is_elision(comment) or _TO_BE_WRITTEN.search(comment) is not None)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _says_nothing(node: ast.stmt) -> bool:
    """Whether a statement is a placeholder, a lone string, or a plain value that is returned."""
    match node:
        case ast.Return(value=None | ast.Constant()) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
            return True
        case _:
            return is_placeholder(node)


def _last_names(nodes: Iterable[ast.expr]) -> set[str]:
    """`abstractmethod` of `@abc.abstractmethod`, `group` of `@click.group()`, `Protocol` of `Protocol[T]`."""
    return {_last_name(node) for node in nodes}


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


# --- A block in place of a whole file

SMALLEST_SHARE = 0.3
"""A shorter text than this share of the old one is taken for an excerpt, once the old one is long enough to judge."""
JUDGED_LINES = 20

_COMMENT = re.compile(r"[ \t]*(?:#|//|/\*|--|<!--|;|%)(.*?)(?:\*/|-->)?[ \t]*", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)


_JSON_KEY = re.compile(r'"((?:[^"\\\n]|\\.)*+)"[ \t]*+:')
_KEY = re.compile(r"""^[ \t]*+(?:-[ \t]+)?(?:\[+([\w."'-]+)\]+|["']?([\w.-]+)["']?[ \t]*+[:=])""", re.MULTILINE)
_CONFIGURATION = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".properties")
_ADDS = re.compile(r"\b(?:add|append|insert)(?:s|ing)?\b", re.IGNORECASE)
_SHRINKS = re.compile(
    r"\b(?:remov|delet|drop|eras|short|summar|empt|clear|truncat|only|replac|rewrit|simplif|trim|condens|reduc|strip|clean)",
    re.IGNORECASE,
)


def why_not_whole(old: str, new: str) -> str:
    """What gives `new` away as a part of `old`, as a clause ("it ..."); "" if it may be whole."""
    known = {line.strip() for line in old.splitlines()}
    for line in _elisions(new):
        if line not in known:
            return f"it says `{line}` in place of text"
    if count_lines(old) > JUDGED_LINES and len(new) < SMALLEST_SHARE * len(old):
        return f"it has {count_lines(new)} lines where the file has {count_lines(old)}"
    return ""


def why_too_little(old: str, new: str, task: str) -> str:
    """What speaks against `new` in place of all of a short text, as a clause ("it ..."), if the task does not ask so.

    A model that is to add a line often gives only that line.
    """
    if _SHRINKS.search(task):
        return ""
    lines = [line.strip() for line in old.splitlines() if line.strip()]
    given = {line.strip() for line in new.splitlines()}
    kept = sum(line in given for line in lines)
    fewer = count_lines(new) < count_lines(old) and 2 * kept < len(lines)
    if fewer or (lines and not kept and _ADDS.search(task)):
        return f"it holds {kept} of the {len(lines)} lines that the file has"
    return ""


def lost_keys(path: str, old: str, new: str) -> tuple[str, ...]:
    """The keys and sections that the old text of a configuration file has and the new one lacks; neither must parse."""
    pattern = _JSON_KEY if path.endswith(".json") else _KEY if path.endswith(_CONFIGURATION) else None
    if pattern is None:
        return ()
    kept = set(_keys(pattern, new))
    return tuple(dict.fromkeys(key for key in _keys(pattern, old) if key not in kept))


def keys_inside(text: str, names: Collection[str]) -> set[str]:
    """The keys that stand inside of those of these names in a JSON text; none where it does not parse."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    found: set[str] = set()
    waiting = [(value, False)]
    while waiting:
        each, inside = waiting.pop()
        if isinstance(each, dict):
            found.update(each if inside else ())
            waiting += [(inner, inside or key in names) for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, inside) for inner in each]
    return found


def lost_definitions(old: str, new: str) -> tuple[str, ...]:
    """Top-level Python functions and classes that `old` has and `new` lacks; neither has to parse."""
    kept = set(_DEFINITION.findall(new))
    return tuple(dict.fromkeys(name for name in _DEFINITION.findall(old) if name not in kept))


def _keys(pattern: re.Pattern[str], text: str) -> list[str]:
    return ["".join(group or "" for group in found.groups()) for found in pattern.finditer(text)]


def _elisions(text: str) -> Iterator[str]:
    """Lines that are nothing but a comment, or three dots, standing for other text."""
    for line in text.splitlines():
        comment = _COMMENT.fullmatch(line)
        if line.strip() in {"...", "…"} or (comment and is_elision("# " + comment[1].strip())):
            yield line.strip()


_HEADER: Final = re.compile(r"(?:@@|diff --git |index [0-9a-f]+\.\.|--- |\+\+\+ |\\ No newline)")
_MARKS: Final = ("+", "-")


class TextHunk(NamedTuple):
    """The lines that a hunk takes away, and those that it puts there, both with the lines around them."""

    old: str
    new: str


def read_diff(block: str, *, has_header: bool) -> tuple[TextHunk, ...]:
    """The hunks of a diff; none where the block is none. With `has_header` it needs a line `@@` or `---` and `+++`.

    A list in Markdown or YAML has such lines too: only where a text cannot be meant as it is, is a header not needed.
    """
    lines = block.replace("\r\n", "\n").removesuffix("\n").split("\n")
    headed = any(line.startswith("@@") for line in lines) or (
        any(line.startswith("--- ") for line in lines) and any(line.startswith("+++ ") for line in lines)
    )
    told = [line for line in lines if not _HEADER.match(line)]
    if (has_header and not headed) or not any(line.startswith(_MARKS) for line in told):
        return ()
    around = [line for line in told if line.strip() and not line.startswith(_MARKS)]
    marked = all(line.startswith(" ") for line in around)
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            groups.append([])
        elif not _HEADER.match(line):
            groups[-1].append(line)
    return tuple(_hunk(group, marked=marked) for group in groups if any(line.startswith(_MARKS) for line in group))


def _hunk(lines: Sequence[str], *, marked: bool) -> TextHunk:
    """`marked` says that the lines around have a space at their start that is not theirs."""
    old, new = [], []
    for line in _without_blank_edges(lines):
        plain = line[1:] if line.startswith(_MARKS) or (marked and line) else line
        if not line.startswith("+"):
            old.append(plain)
        if not line.startswith("-"):
            new.append(plain)
    return TextHunk(*("".join(f"{each}\n" for each in part) for part in (old, new)))


def _without_blank_edges(lines: Sequence[str]) -> Sequence[str]:
    told = [index for index, line in enumerate(lines) if line.strip()]
    return lines[told[0] : told[-1] + 1]
