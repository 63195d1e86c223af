"""What a request asks for in its words, read once for the edits and for the checks of them, and its edits. Pure.

The wording is read strictly. What is negated, said of a part of a definition ("remove its docstring"), or not of a name
that is there, asks for nothing. In doubt an edit may still follow a request that no check insists on.
"""

import ast
import builtins
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from keyword import iskeyword
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.losses import is_stub
from mendgraph.nodes.execute_tools.edits.python_text import (
    LineEdit,
    NamedUnit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    lines_of,
    named_units,
    parse,
    read_python,
)
from mendgraph.nodes.language.names import named_identifiers

_LONGEST: Final = 2000
"""Characters of a sentence that is read: what goes on without an end is a listing, and says nothing."""
_SENTENCE: Final = re.compile(r"[.!?](?=\s|\Z)|[;\n]")
_NOUN: Final = (
    r"(?:functions?|methods?|class(?:es)?|constants?|variables?|helpers?|definitions?|imports?|keys?|settings?|options?"
    r"|entry|entries|fields?|attributes?|propert(?:y|ies)|code)"
)
_FILLERS: Final = (
    r"(?:(?:the|an?|all|of|its?|our|my|this|these|both|named|called|old|new|unused|dead|obsolete|legacy|deprecated"
    rf"|redundant|useless|duplicate|private|public|{_NOUN}),?[ \t]+){{0,8}}"
)
_NAME: Final = r"[`'\"*]{0,3}([A-Za-z_][\w.]{0,200}\b)(?!/)(?:\([^()\n]{0,80}\))?[`'\"*]{0,3}"
_FILE: Final = re.compile(r"(?<![\w/.-])[\w./-]{0,200}[\w-]\.(?:pyi?|json|toml|ya?ml|md|txt|cfg|ini)\b(?!\()")
_DELETE: Final = re.compile(
    r"\b(?:remov(?:e|ing)|delet(?:e|ing)|drop(?:ping)?|get(?:ting)? rid of)[ \t]+", re.IGNORECASE
)
_NOT: Final = re.compile(
    r"\b(?:not|never|without|avoid|instead of|rather than|cannot|keep|if|whether|why|how|should (?:i|we))\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
_CLAUSE: Final = 200
_LISTED: Final = re.compile(rf"{_FILLERS}{_NAME}(?:[ \t]+{_NOUN}(?!['\u2019\w]))?", re.IGNORECASE)
_NEXT: Final = re.compile(r"[ \t]*(?:,[ \t]*and|,|&|\band\b|\bor\b)[ \t]+", re.IGNORECASE)
_FROM: Final = re.compile(
    r"[ \t]+(?:from|in|of|inside)[ \t]+(?:(?:the|this|our|my|file|module|class)[ \t]+){0,3}"
    r"[`'\"*]{0,3}([\w./-]{1,200}\b)[`'\"*]{0,3}",
    re.IGNORECASE,
)
_PLACES: Final = frozenset({"file", "module", "code", "codebase", "project", "package", "workspace", "it"})
_END: Final = re.compile(
    r"[ \t]*(?:\Z|[,:(\u2013\u2014]|[ \t](?:and|or|but|because|since|as|which|that|with|completely|everywhere|please|so"
    r"|is|-)\b|[ \t]-[ \t])",
    re.IGNORECASE,
)
_WHERE: Final = (
    r"(?:[ \t]+(?:from|in|of)[ \t]+(?!to\b)(?:(?:the|file|module|class)[ \t]+){0,3}[^\s,]{1,200}|[ \t]+everywhere){0,2}"
)
_PAIR: Final = (
    rf"{_FILLERS}{_NAME}(?:[ \t]+{_NOUN})?{_WHERE}[ \t]+(?:to|into|as|->|=>|\u2192)[ \t]+(?:be[ \t]+)?{_FILLERS}{_NAME}"
)
_RENAME: Final = re.compile(rf"\brenam(?:e|ing)[ \t]+{_PAIR}", re.IGNORECASE)
_ANOTHER_PAIR: Final = re.compile(rf"[ \t]*(?:,[ \t]*and|,|\band\b)[ \t]+(?:rename[ \t]+)?{_PAIR}", re.IGNORECASE)
_MODULE: Final = (
    r"(?:(?:the|an?|its|own|new|separate|called|named|file|module),?[ \t]+){0,6}[`'\"*]{0,3}"
    r"(?P<place>[\w./-]{0,200}\w\.py)\b[`'\"*]{0,3}"
)
_MOVE: Final = re.compile(
    r"\b(?:mov(?:e|ing)|extract(?:ing)?|(?P<put>put(?:ting)?))[ \t]+"
    rf"(?P<names>(?:{_LISTED.pattern}{_NEXT.pattern}){{0,5}}{_LISTED.pattern})"
    rf"(?:[ \t]+(?:from|in|out of|of)[ \t]+{_MODULE.replace('place', 'old')})?(?:,?[ \t]+and)?"
    rf"[ \t]+(?(put)in(?:to)?|(?:in)?to)[ \t]+{_MODULE.replace('place', 'new')}(?(put)(?=.*\bimport))",
    re.IGNORECASE,
)
_KIND: Final = re.compile(r"\b(?:function|method|class|constant|helper)(?:e?s)?\b", re.IGNORECASE)
_LOCAL: Final = re.compile(r"\b(?:variable|key|setting|option|entry|field|attribute|property|code)s?\b", re.IGNORECASE)
_KEPT: Final = re.compile(
    r"\b(?:alias(?:es)?|backwards?|compatib\w+|keep(?:ing)?\s+the\s+old|still\s+work|re-?export\w*)\b", re.IGNORECASE
)
_FLAG: Final = re.compile(
    r"\b(?:add|introduce|support|accept)s?[ \t]+(?:(?:an?|the|new|optional|boolean|global|cli|command|command-line|line"
    r"|flag|option|switch|argument|parameter|support|for|called|named)[ \t]+){0,6}[`'\"]?--([a-z][\w-]*)",
    re.IGNORECASE,
)
_NO_NAME: Final = re.compile(
    r"to|into|as|it|its|the|an?|them|be|from|this|that|all|and|or|in|of|is|files?|module|variable|parameter|argument"
    r"|attribute|column|key|field|option|flag|function|method|class|constant|helper",
    re.IGNORECASE,
)

# --- What kind of change is asked for

_QUOTED: Final = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)")
_KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    kind: re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for kind, words in {
        "repairs": r"bugs?|buggy|fix(?:es|ed|ing)?|wrong(?:ly)?|incorrect(?:ly)?|broken|breaks|repair|mistakes?"
        r"|off[ -]by[ -]one|fail(?:s|ed|ing|ures?)?|crash(?:es|ed|ing)?|hangs?|infinite loop|regression|defects?"
        r"|does(?: not|n't) (?:work|handle|return|stop|end)|never (?:ends|stops|returns|terminates)",
        "keeps": r"rename[sd]?|renaming|type hints?|type annotations?|annotat(?:e|ions?)|docstrings?|refactor(?:ing)?"
        r"|reformat|clean up|simplify|dead|unreachable|unused|readab(?:le|ility)|speed up|optimi[sz]e",
        "changes": r"change[sd]?|set|updates?|increase|decrease|lower|switch|make|default|instead(?! of)|replace|now"
        r"|add|support|allow|accept|handle|new|extend|return|use|should|must|convert|ignore|limit",
        "creates": r"create|write|implement|(?:need|want) [\w./-]*\w\.py (?:with|that)"
        r"|(?:new|(?:add|need|want|have) an?(?: \w+)?) (?:function|method|class|file)",
        "documents": r"docstrings?|doctests?|documentation|docs?|(?<!for )examples?",
        "comments": r"comments?|headers?|licen[cs]e|copyright|typos?|spelling|wording|help (?:text|message)s?|usage"
        r"|warnings?|lint\w*|ruff|flake8|pylint|mypy|pyright|type check\w*",
        "whole": r"all|every\w*|each|both|any|whole|entire|files?|modules?|functions|methods|classes|helpers"
        r"|docstrings|throughout|others?",
    }.items()
}
_PYTHON_FILE: Final = re.compile(r"(?<![\w./-])[\w./-]*\w\.py\b")


class Expectation(NamedTuple):
    """`gone` is to be defined and used nowhere any more, and `defined` somewhere, where it is not ""."""

    gone: str
    defined: str = ""


class Move(NamedTuple):
    """What goes from the file `old` ("" for the one that has it) to `new`; `certain` if it is surely a definition."""

    name: str
    old: str
    new: str
    certain: bool

    def leaves(self, path: str) -> bool:
        """Whether this file is not to have it any more, if it had it."""
        return not is_file(path, self.new) and (not self.old or is_file(path, self.old))


def module_of(path: str) -> str:
    """The last part of the name under which a Python file is imported."""
    return posixpath.basename(path.removesuffix(".py").removesuffix("/__init__"))


def is_file(path: str, named: str) -> bool:
    """Whether a file may be called so, by the end of its path."""
    return f"/{path}".endswith(f"/{named.removeprefix('./')}")


class _Deletion(NamedTuple):
    """A name that is to go, what it goes from, the words it stands in, and the files that its sentence names."""

    name: str
    place: str
    words: str
    files: frozenset[str]


@dataclass(frozen=True)
class Request:
    """What is asked for; several can be true.

    `repairs` says that something is wrong. `keeps` and `changes` tell whether the code is to do the same as before or
    something else, `creates` that something new is to be written, `documents` that docstrings or examples are spoken
    of, `comments` that other text is spoken of that does not run, `whole` that more is meant than what is named.
    `files` are the Python files that it names. `renames` are old names to new ones, without the class or module
    before them; `moves` go from file to file; `expectations` what must be true of names once all is done, and
    `flags` options of a command line that are to be added.
    """

    repairs: bool = False
    keeps: bool = False
    changes: bool = False
    creates: bool = False
    documents: bool = False
    comments: bool = False
    whole: bool = False
    files: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    flags: frozenset[str] = frozenset()
    _lists: tuple[tuple[_Deletion, ...], ...] = field(default=(), repr=False)

    def speaks_of_others(self, path: str) -> bool:
        """Whether it names other Python files than this one, which may have to change as well."""
        own = posixpath.basename(path)
        return any(posixpath.basename(each) != own for each in self.files)

    def deletions(self, names: Collection[str], path: str = "") -> set[str]:
        """Those of `names` (`load`, `Cart.total`) that are to go; where a file is named, from that of `path`.

        A method may be called by its last name where only one of the names ends with it.
        """
        known, own = _by_mention(names, path), posixpath.basename(path)
        found = {each.name for each in self.moves if path and each.name in names and each.leaves(path)}
        for listed in self._lists:
            files = ({posixpath.basename(file) for file in each.files.difference(names)} for each in listed)
            here = (each for each, named in zip(listed, files, strict=True) if not own or not named or own in named)
            found.update(takewhile(bool, (_meant(each, known) for each in here)))
        return found


@lru_cache(maxsize=16)
def read_request(request: str) -> Request:
    """Read the words of a request; of the kinds of change, what stands in quotes is not part of its sentence."""
    plain = _QUOTED.sub(" it ", request)
    kinds = {kind: pattern.search(plain) is not None for kind, pattern in _KINDS.items()}
    renames: dict[str, str] = {}
    expected: list[Expectation] = []
    moves: list[Move] = []
    lists: list[tuple[_Deletion, ...]] = []
    for sentence in (each.strip() for each in _SENTENCE.split(request) if len(each) <= _LONGEST):
        for match in _rename_matches(sentence):
            old, new = (name.rpartition(".")[2] for name in match.groups())
            if _is_name(old) and _is_name(new) and old != new and not any(map(_FILE.fullmatch, match.groups())):
                renames[old] = new
                expected += [Expectation(old, new)] * _is_certain(sentence, match)
        moves += _moves(sentence)
        files = frozenset(_FILE.findall(sentence))
        verbs = [verb for verb in _DELETE.finditer(sentence) if not _negated(sentence, verb.start())]
        lists += (tuple(_listed(sentence, verb.end(), files)) for verb in verbs)
    for each in (each for listed in lists for each in listed):
        if _is_name(each.name) and _KIND.search(each.words) and _is_anywhere(each.place):
            expected.append(Expectation(each.name))
    wanted = () if _KEPT.search(request) else tuple(expected)
    return Request(
        **kinds,
        files=frozenset(_PYTHON_FILE.findall(request)),
        renames=renames,
        moves=() if _KEPT.search(request) else tuple(moves),
        expectations=wanted,
        flags=frozenset(match[1] for match in _FLAG.finditer(request) if not _negated(request, match.start())),
        _lists=tuple(lists),
    )


def _moves(text: str) -> Iterator[Move]:
    """`move load and save from app.py to io.py`, `put the class Cart into cart.py and import it from there`."""
    for match in _MOVE.finditer(text):
        for each in _LISTED.finditer(match["names"]) if not _negated(text, match.start()) else ():
            if _is_name(each[1]):
                certain = bool(_KIND.search(match["names"]) or named_identifiers(each[0]))
                yield Move(each[1], match["old"] or "", match["new"], certain)


def _listed(text: str, at: int, files: frozenset[str]) -> Iterator[_Deletion]:
    """The names after a verb, as in `the functions load, save() and dump from io.py`."""
    while match := _LISTED.match(text, at):
        place = _FROM.match(text, match.end())
        if place is None and not _END.match(text, match.end()):
            return
        yield _Deletion(match[1], place[1] if place else "", match[0].replace(match[1], "").casefold(), files)
        following = _NEXT.match(text, match.end())
        if following is None:
            return
        at = following.end()


def _rename_matches(text: str) -> Iterator[re.Match[str]]:
    match = _RENAME.search(text)
    while match and not _negated(text, match.start()):
        yield match
        match = _ANOTHER_PAIR.match(text, match.end())


def _is_certain(text: str, match: re.Match[str]) -> bool:
    """Whether the old name is to be gone everywhere: it is no attribute, and of no single function or class."""
    place, middle = _FROM.match(text, match.end()), _FROM.match(text, match.end(1))
    if "." in match[1] or _LOCAL.search(match[0]) or not (place or _END.match(text, match.end())):
        return False
    return all(_is_anywhere(each[1]) for each in (place, middle) if each)


def _is_anywhere(place: str) -> bool:
    return not place or "." in place or "/" in place or place.casefold() in _PLACES


def _by_mention(names: Collection[str], path: str) -> Mapping[str, str]:
    """How each name may be called: as it is, with the module before it, or by its last part where that is clear."""
    found = {name: name for name in names}
    stem = posixpath.splitext(posixpath.basename(path))[0]
    lasts = [name.rpartition(".")[2] for name in names]
    for name, last in zip(names, lasts, strict=True):
        found.setdefault(f"{stem}.{name}", name)
        if lasts.count(last) == 1:
            found.setdefault(last, name)
    return found


def _meant(deletion: _Deletion, known: Mapping[str, str]) -> str:
    """The one name that is called so; a method is one of the class that is named after it, or of the only one.

    "" where there is none, or where what it is to be deleted from is not where it is defined, but a list that it is in.
    """
    name, place = known.get(deletion.name, ""), deletion.place
    if place and f"{place}.{deletion.name}" in known:
        return known[f"{place}.{deletion.name}"]
    if "method" in deletion.words:
        methods = {each for each in known.values() if each.endswith(f".{deletion.name}")}
        name = methods.pop() if len(methods) == 1 else name if "." in deletion.name else ""
    return name if _is_anywhere(place) or place == name.partition(".")[0] != name else ""


def _negated(sentence: str, at: int) -> bool:
    clause = re.split(r"[,:]|\bbut\b|\band\b", sentence[max(0, at - _CLAUSE) : at])[-1]
    return _NOT.search(clause) is not None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word) and _NO_NAME.fullmatch(word) is None


# --- What is done about it in a Python file beside the merge of a block: definitions are renamed or deleted, and used

_BUILTINS: Final = frozenset(dir(builtins))
_EXAMPLE: Final = re.compile(r"\s*(?:>>>|\.\.\.)[ \t]")


class Rename(NamedTuple):
    """A definition or import by its full name, its new last name, and the line and byte where its statement begins."""

    name: str
    new: str
    places: tuple[tuple[int, int], ...]

    @property
    def old(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The full new name."""
        return self.name[: len(self.name) - len(self.old)] + self.new


@dataclass(frozen=True)
class AskedEdits:
    """What is to be done to the file beside the merge."""

    renames: tuple[Rename, ...] = ()
    deletions: frozenset[str] = frozenset()


class Merged(NamedTuple):
    """The new text, the names that changed in it, and what of the block was left aside.

    What the request asked for beside: `deleted` names, the number of uses that were renamed, and where a deleted or
    renamed name is `still` used.
    """

    text: str
    changed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed_uses: int = 0
    still: tuple[str, ...] = ()


def asked_edits(source: PythonText, block: PythonText, task: str, path: str) -> AskedEdits:
    """The deletions and renames that the task asks for and this block, for the file at `path`, carries out.

    What is moved to another file goes where the block says `del`, imports it, or has all the rest of the file.
    """
    request = read_request(task)
    renames = tuple(each for old, new in request.renames.items() if (each := _rename(source, block, old, new)))
    names = {each.name for each in named_units(source)}
    asked = request.deletions(names, path) - {rename.name for rename in renames}
    said = {*del_names(block.units), *(alias.name.rpartition(".")[2] for _, alias in _imports(block))}
    rest = {name for name in names - asked if "." not in name} - {each.name for each in named_units(block)}
    unsaid = {each.name for each in request.moves if rest and said.isdisjoint({each.name, module_of(each.new)})}
    return AskedEdits(renames, frozenset(asked - _held(source, block, asked) - unsaid))


def block_to_merge(block: PythonText, asked: AskedEdits) -> PythonText:
    """The block without what only says that a name is to go: `del NAME`, and a definition without a body."""
    lasts = {name.rpartition(".")[2] for name in asked.deletions}

    def says_it(unit: Unit) -> bool:
        dels = del_names([unit])
        return (unit.key in lasts and is_stub(unit.node)) or (bool(dels) and lasts.issuperset(dels))

    return replace(block, units=tuple(unit for unit in block.units if not says_it(unit)))


def with_new_names(source: PythonText, asked: AskedEdits) -> PythonText:
    """The file with the definitions, though not yet their uses, under their new names."""
    lines = list(source.lines)
    for rename in asked.renames:
        for number, column in rename.places:
            line = lines[number - 1].encode()
            head, rest = line[:column].decode(), line[column:].decode()
            lines[number - 1] = head + re.sub(rf"\b{re.escape(rename.old)}\b", rename.new, rest, count=1)
    renamed = read_python("".join(lines))
    return source if isinstance(renamed, SyntaxProblem) else renamed


def carry_out(text: str, asked: AskedEdits) -> Merged:
    """Rename the uses and delete the definitions in the merged text."""
    count, still, deleted = 0, [], []
    for rename in asked.renames:
        if "." not in rename.name:
            text, renamed = rename_uses(text, rename.old, rename.new)
            count += renamed
        still += _still(text, rename.name)
    for name in sorted(asked.deletions):
        shorter = _without_definition(text, name)
        if shorter is not None:
            text = shorter
            deleted.append(name)
    still += (each for name in deleted for each in _still(text, name))
    return Merged(text, deleted=tuple(deleted), renamed_uses=count, still=tuple(still))


def del_names(units: Iterable[Unit]) -> list[str]:
    """The names that `del` statements among them delete."""
    nodes = (node for unit in units for node in unit.nodes if isinstance(node, ast.Delete))
    return [target.id for node in nodes for target in node.targets if isinstance(target, ast.Name)]


def _held(source: PythonText, block: PythonText, asked: Collection[str]) -> set[str]:
    """Those of the names that the block gives a text, be it as a method outside of its class."""
    stubs = {each.name for each in named_units(source) if is_stub(each.unit.node)}
    units = [each for each in named_units(block) if each.name in stubs or not is_stub(each.unit.node)]
    full, alone = {each.name for each in units}, {each.name for each in units if each.home is None}
    return {name for name in asked if name in full or ("." in name and name.rpartition(".")[2] in alone)}


def _rename(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    """A definition, a member of the one class that has any, or else an import, which the block calls anew."""
    olds, news = named_units(source), named_units(block)
    found = [each for each in olds if each.name == old] or [each for each in olds if each.last == old]
    homes = {each.home.key if each.home else "" for each in found}
    if any(each.last == old for each in news) or len(homes) > 1:
        return None
    if not found:
        return _renamed_import(source, block, old, new)
    names = {f"{home}.{new}" for home in homes if home} | {new}
    given = any(each.name in names for each in news)
    if not given or any(each.name in names for each in olds):
        return None
    return Rename(found[0].name, new, tuple((each.unit.node.lineno, each.unit.node.col_offset) for each in found))


def _renamed_import(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    known = _imports(source)
    found = [(node, alias) for node, alias in known if alias.name == old and isinstance(node, ast.ImportFrom)]
    bound = {alias.asname or alias.name.partition(".")[0] for _, alias in known}
    if len(found) != 1 or new in bound | {each.name for each in named_units(source)}:
        return None
    [(node, alias)] = found
    given = any(alias.name == new for _, alias in _imports(block)) or uses_of("".join(block.lines), new)
    if not given or getattr(node, "module", "") in sys.stdlib_module_names:
        return None
    return Rename(old, new, ((alias.lineno, alias.col_offset),))


def _imports(text: PythonText) -> list[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    nodes = (unit.node for unit in text.units if unit.kind is UnitKind.IMPORT)
    return [(node, alias) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]


# --- Uses of a name


def rename_uses(source: str, old: str, new: str) -> tuple[str, int]:
    """Rename what uses a definition that was renamed from `old` to `new` before; and how many uses these are.

    Uses are certain where nothing in the file is called `old` any more, and `new` once: then the bare name, the entry
    in `__all__` and the examples in docstrings are renamed. Other strings, and attributes, may be something else.
    """
    tree, lines = parse(source), lines_of(source)
    if isinstance(tree, SyntaxProblem) or old in _BUILTINS or any(_binds(node, old) for node in ast.walk(tree)):
        return source, 0
    if sum(_binds(node, new) for node in ast.walk(tree)) != 1:
        return source, 0
    places = {(line, at) for line, at in _use_places(tree, lines, old) if lines[line - 1].startswith(old, at)}
    for line, start in sorted(places, reverse=True):
        lines[line - 1] = lines[line - 1][:start] + new + lines[line - 1][start + len(old) :]
    return "".join(lines), len(places)


def uses_of(source: str, name: str) -> tuple[int, ...]:
    """The lines of a Python text on which a bare name, or a whole string, is called so; of `A.b`, an attribute `b`."""
    tree = parse(source)
    nodes = [] if isinstance(tree, SyntaxProblem) else [*ast.walk(tree)]
    if any(isinstance(node, ast.alias) and name in {node.name, node.asname} for node in nodes):
        return ()  # what it imports is another one
    last = name.rpartition(".")[2]
    kinds: tuple[type[ast.expr], ...] = (ast.Attribute,) if last != name else (ast.Name, ast.Constant)
    fields = ("id", "attr", "value")
    found = (node for node in nodes if isinstance(node, kinds) and last in [getattr(node, each, "") for each in fields])
    return tuple(sorted({node.end_lineno or node.lineno for node in found}))


def _still(text: str, name: str) -> list[str]:
    lines = uses_of(text, name)
    listed = ", ".join(map(str, lines))
    return [f"{name.rpartition('.')[2]} at line{'s' * (len(lines) > 1)} {listed}"] if lines else []


def _binds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Attribute() | ast.keyword() | ast.Constant():
            return False
        case ast.alias():
            return (node.asname or node.name).partition(".")[0] in {name, "*"}
        case _:
            values = (value for _, value in ast.iter_fields(node))
            return any(value == name or (isinstance(value, list) and name in value) for value in values)


def _use_places(tree: ast.Module, lines: list[str], name: str) -> Iterator[tuple[int, int]]:
    """Line and column of what may be the name; before Python 3.12 the columns inside of an f-string mean nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            yield node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="replace"))
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            listed = (each for each in ast.walk(node.value) if isinstance(each, ast.Constant) and each.value == name)
            yield from ((each.lineno, each.col_offset + 1) for each in listed)
    for number, line in enumerate(lines, start=1):
        if _EXAMPLE.match(line):
            yield from ((number, found.start()) for found in re.finditer(rf"(?<![\w.'\"]){name}(?![\w'\"])", line))


# --- What is deleted


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none.

    Decorators, and the comments directly above, go with a definition. A class that would be left without a body keeps
    `pass`. The rest is kept to the byte, but for the blank lines on one side of the gap.
    """
    shorter: str | None = None
    while True:
        text = read_python(source)
        found = [] if isinstance(text, SyntaxProblem) else [each for each in named_units(text) if each.name == name]
        if isinstance(text, SyntaxProblem) or not found:
            return shorter
        source = shorter = apply_edits(text.lines, [_deletion(text, found[0])])


def _deletion(text: PythonText, named: NamedUnit) -> LineEdit:
    """The lines of a definition, and the smaller of the gaps around it."""
    first, last = text.head(named.unit), text.tail(named.unit)
    if named.home is not None and len(text.members(named.home)) == 1:
        newline = "\r\n" if text.lines[0].endswith("\r\n") else "\n"
        return LineEdit(first - 1, last, (f"{named.unit.indent}pass{newline}",))
    above, below = _blank(reversed(text.lines[: first - 1])), _blank(text.lines[last:])
    opens = named.home is not None and text.members(named.home)[0].first == named.unit.first
    at_end, at_start = last + below == len(text.lines), opens or first - above == 1
    if at_end or (above < below and not at_start):
        return LineEdit(first - 1 - above, last, ())
    return LineEdit(first - 1, last + below, ())


def _blank(lines: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda line: not line.strip(), lines))
