"""The kind of change, and the renames, moves and deletions that the words of a request ask for.

Edits of small models and their checks use it. The reading is strict: negated sentences, parts of a definition ("remove
its docstring") and unknown names ask for nothing. If it is unclear, an edit may follow a request that no check demands.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from keyword import iskeyword
from typing import Final, NamedTuple

from mendgraph.nodes.language.names import named_identifiers

_LONGEST: Final = 2000
"""Characters of the longest sentence that is read; longer ones are listings."""
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
_IN: Final = r"(?: (?:from|in|of) [\w./-]{1,200})?"
_UNUSED: Final = re.compile(
    rf"\b(?:unused|obsolete|dead) (?:{_NOUN} )?{_NAME}|\b(?:nothing|nobody|no one) (?:calls|needs|uses) {_NAME}"
    rf"|(?:\A|[.!?,:(]\s|\b(?:and|as|because|but|since|that|{_NOUN}) ){_NAME}{_IN} is"
    r"(?: (?:unused|obsolete|dead)|(?: not|n['\u2019]t| no longer) (?:called|needed|used))\b",
    re.IGNORECASE,
)
"""The antecedent of "it" in "delete it", unless the request is about a part of it."""
_PART: Final = re.compile(r"\b(?:argument|comment|field|import|line|parameter|part|variable)s?\b", re.IGNORECASE)
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

# --- The kind of change

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
        "names": r"names?|naming|call(?:ed)?|rename[sd]?|renaming",
        "documents": r"docstrings?|doctests?|documentation|docs?|(?<!for )examples?",
        "whole": r"all|every\w*|each|both|any|whole|entire|files?|modules?|functions|methods|classes|helpers"
        r"|docstrings|throughout|others?",
    }.items()
}
_PYTHON_FILE: Final = re.compile(r"(?<![\w./-])[\w./-]*\w\.py\b")


class Expectation(NamedTuple):
    """A condition on the finished work: `gone` is defined and used nowhere, and `defined` (unless "") somewhere."""

    gone: str
    defined: str = ""


class Move(NamedTuple):
    """A definition that moves from the file `old` ("" for the one that has it) to `new`.

    `certain` says that the name is surely a definition.
    """

    name: str
    old: str
    new: str
    certain: bool

    def leaves(self, path: str) -> bool:
        """Return whether the definition has to leave this file, if it is there."""
        return not is_file(path, self.new) and (not self.old or is_file(path, self.old))


def module_of(path: str) -> str:
    """Return the last part of the name under which a Python file is imported."""
    return posixpath.basename(path.removesuffix(".py").removesuffix("/__init__"))


def is_file(path: str, name: str) -> bool:
    """Return whether the file may be meant by this name, the end of its path."""
    return f"/{path}".endswith(f"/{name.removeprefix('./')}")


class _Deletion(NamedTuple):
    """A name to delete, where to delete it from, the words around it, and the files that its sentence names."""

    name: str
    place: str
    words: str
    files: frozenset[str]


@dataclass(frozen=True)
class Request:
    """The kinds of change that a request asks for; several can be true.

    `repairs`: something is wrong. `keeps`: the behaviour stays. `changes`: the behaviour changes. `creates`: something
    new is written. `names`: it is about names. `documents`: it is about docstrings or examples. `whole`: it covers more
    than the named code. `files` are the Python files that it names. `renames` maps old names to new ones, without class
    or module. `moves` are moves between files, `expectations` conditions on names, and `flags` new options of a command
    line.
    """

    repairs: bool = False
    keeps: bool = False
    changes: bool = False
    creates: bool = False
    names: bool = False
    documents: bool = False
    whole: bool = False
    files: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    flags: frozenset[str] = frozenset()
    _deletion_lists: tuple[tuple[_Deletion, ...], ...] = field(default=(), repr=False)

    def speaks_of_others(self, path: str) -> bool:
        """Return whether it names other Python files than this one, which may have to change as well."""
        base_name = posixpath.basename(path)
        return any(posixpath.basename(file) != base_name for file in self.files)

    def deletions(self, names: Collection[str], path: str = "") -> set[str]:
        """Return those of `names` (`load`, `Cart.total`) that are to be deleted from the file `path`.

        A method may be called by its last name if only one of the names ends with it.
        """
        mentions = _mentions(names, path)
        base_name = posixpath.basename(path)
        deletions: set[str] = set()

        for move in self.moves:
            if path and move.name in names and move.leaves(path):
                deletions.add(move.name)

        for deletion_list in self._deletion_lists:
            for deletion in deletion_list:
                files = {posixpath.basename(file) for file in deletion.files.difference(names)}
                if base_name and files and base_name not in files:
                    continue

                name = _deleted_name(deletion, mentions)
                if not name:
                    break  # the rest of the list is about something else

                deletions.add(name)

        return deletions


@lru_cache(maxsize=16)
def read_request(request: str) -> Request:
    """Read the words of a request; quoted text does not count for the kinds of change."""
    renames: dict[str, str] = {}
    moves: list[Move] = []
    expectations: list[Expectation] = []
    deletion_lists: list[tuple[_Deletion, ...]] = []

    for part in _SENTENCE.split(request):
        if len(part) > _LONGEST:
            continue

        sentence = part.strip()
        for match in _rename_matches(sentence):
            old, new = _renamed_names(match)
            if old:
                renames[old] = new
                if _is_certain(sentence, match):
                    expectations.append(Expectation(old, new))

        moves += _moves(sentence)
        deletion_lists += _deletions_of(sentence)

    deletions = [deletion for deletion_list in deletion_lists for deletion in deletion_list]
    refers_back = any(deletion.name in {"it", "that", "this"} for deletion in deletions)
    if refers_back and not _PART.search(request):
        files = frozenset(_FILE.findall(request))
        for groups in _UNUSED.findall(request):
            deletion_lists.append((_Deletion("".join(groups), "", "", files),))

    for deletion in deletions:
        if _is_name(deletion.name) and _KIND.search(deletion.words) and _is_anywhere(deletion.place):
            expectations.append(Expectation(deletion.name))

    if _KEPT.search(request):
        moves = []
        expectations = []

    return Request(
        **_kinds(request),
        files=frozenset(_PYTHON_FILE.findall(request)),
        renames=renames,
        moves=tuple(moves),
        expectations=tuple(expectations),
        flags=frozenset(match[1] for match in _FLAG.finditer(request) if not _is_negated(request, match.start())),
        _deletion_lists=tuple(deletion_lists),
    )


def _kinds(request: str) -> dict[str, bool]:
    unquoted = _QUOTED.sub(" it ", request)
    return {kind: pattern.search(unquoted) is not None for kind, pattern in _KINDS.items()}


def _renamed_names(match: re.Match[str]) -> tuple[str, str]:
    """Return the old and the new name, without class or module; two empty strings if this is no rename of code."""
    old = match[1].rpartition(".")[2]
    new = match[2].rpartition(".")[2]
    is_file_name = _FILE.fullmatch(match[1]) or _FILE.fullmatch(match[2])
    if is_file_name or old == new or not _is_name(old) or not _is_name(new):
        return "", ""

    return old, new


def _moves(sentence: str) -> Iterator[Move]:
    """Read `move load and save from app.py to io.py`, `put the class Cart into cart.py and import it from there`."""
    for match in _MOVE.finditer(sentence):
        if _is_negated(sentence, match.start()):
            continue

        for name_match in _LISTED.finditer(match["names"]):
            if _is_name(name_match[1]):
                certain = bool(_KIND.search(match["names"]) or named_identifiers(name_match[0]))
                yield Move(name_match[1], match["old"] or "", match["new"], certain)


def _deletions_of(sentence: str) -> Iterator[tuple[_Deletion, ...]]:
    """Yield the deletions after each verb of a sentence."""
    files = frozenset(_FILE.findall(sentence))
    for verb in _DELETE.finditer(sentence):
        if not _is_negated(sentence, verb.start()):
            yield tuple(_listed_names(sentence, verb.end(), files))


def _listed_names(text: str, position: int, files: frozenset[str]) -> Iterator[_Deletion]:
    """Yield the names after a verb, as in `the functions load, save() and dump from io.py`."""
    while match := _LISTED.match(text, position):
        place_match = _FROM.match(text, match.end())
        if place_match is None and not _END.match(text, match.end()):
            return

        place = place_match[1] if place_match else ""
        yield _Deletion(match[1], place, match[0].replace(match[1], "").casefold(), files)

        separator = _NEXT.match(text, match.end())
        if separator is None:
            return

        position = separator.end()


def _rename_matches(text: str) -> Iterator[re.Match[str]]:
    match = _RENAME.search(text)
    while match and not _is_negated(text, match.start()):
        yield match
        match = _ANOTHER_PAIR.match(text, match.end())


def _is_certain(text: str, match: re.Match[str]) -> bool:
    """Return whether the old name must vanish everywhere: it is no attribute, and not local to a function or class."""
    place = _FROM.match(text, match.end())
    if "." in match[1] or _LOCAL.search(match[0]) or not (place or _END.match(text, match.end())):
        return False

    place_of_old = _FROM.match(text, match.end(1))
    return all(_is_anywhere(part[1]) for part in (place, place_of_old) if part)


def _is_anywhere(place: str) -> bool:
    return not place or "." in place or "/" in place or place.casefold() in _PLACES


def _mentions(names: Collection[str], path: str) -> Mapping[str, str]:
    """Return the names by how a request may write them: in full, after the module, or by the last part if unique."""
    mentions = {name: name for name in names}
    module = posixpath.splitext(posixpath.basename(path))[0]
    last_parts = [name.rpartition(".")[2] for name in names]

    for name, last_part in zip(names, last_parts, strict=True):
        mentions.setdefault(f"{module}.{name}", name)
        if last_parts.count(last_part) == 1:
            mentions.setdefault(last_part, name)

    return mentions


def _deleted_name(deletion: _Deletion, mentions: Mapping[str, str]) -> str:
    """Return the one name that is meant: a method of the class after it, or of the only class that has it.

    "" if there is none, or if it is to be deleted from a place where it is not defined, such as a list.
    """
    place = deletion.place
    in_class = mentions.get(f"{place}.{deletion.name}", "")
    if place and in_class:
        return in_class

    name = mentions.get(deletion.name, "")
    if "method" in deletion.words:
        methods = {full_name for full_name in mentions.values() if full_name.endswith(f".{deletion.name}")}
        if len(methods) == 1:
            name = methods.pop()
        elif "." not in deletion.name:
            name = ""

    class_name = name.partition(".")[0]
    if _is_anywhere(place) or (place == class_name and class_name != name):
        return name

    return ""


def _is_negated(sentence: str, position: int) -> bool:
    clause = re.split(r"[,:]|\bbut\b|\band\b", sentence[max(0, position - _CLAUSE) : position])[-1]
    return _NOT.search(clause) is not None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word) and _NO_NAME.fullmatch(word) is None
