"""What a request asks for in its words, read once for the edits and for the checks of them. Pure.

The wording is read strictly. What is negated, said of a part of a definition ("remove its docstring"), or not of a name
that is there, asks for nothing. In doubt an edit may still follow a request that no check insists on.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from keyword import iskeyword
from typing import Final, NamedTuple

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
_IN: Final = r"(?: (?:from|in|of) [\w./-]{1,200})?"
_UNUSED: Final = re.compile(
    rf"\b(?:unused|obsolete|dead) (?:{_NOUN} )?{_NAME}|\b(?:nothing|nobody|no one) (?:calls|needs|uses) {_NAME}"
    rf"|(?:\A|[.!?,:(]\s|\b(?:and|as|because|but|since|that|{_NOUN}) ){_NAME}{_IN} is"
    r"(?: (?:unused|obsolete|dead)|(?: not|n['\u2019]t| no longer) (?:called|needed|used))\b",
    re.IGNORECASE,
)
"""What "it" is that is to be deleted, where the request is not about a part of it."""
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
        "names": r"names?|naming|call(?:ed)?|rename[sd]?|renaming",
        "documents": r"docstrings?|doctests?|documentation|docs?|(?<!for )examples?",
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
    something else, `creates` that something new is to be written, `names` that names are spoken of, `documents` that
    docstrings or examples are, `whole` that more is meant than what is
    named.
    `files` are the Python files that it names. `renames` are old names to new ones, without the class or module
    before them; `moves` go from file to file; `expectations` what must be true of names once all is done, and
    `flags` options of a command line that are to be added.
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
    _lists: tuple[tuple[_Deletion, ...], ...] = field(default=(), repr=False)

    def speaks_of_others(self, path: str) -> bool:
        """Whether it names other Python files than this one, which may have to change as well."""
        base_name = posixpath.basename(path)
        return any(posixpath.basename(file) != base_name for file in self.files)

    def deletions(self, names: Collection[str], path: str = "") -> set[str]:
        """Those of `names` (`load`, `Cart.total`) that are to go; where a file is named, from that of `path`.

        A method may be called by its last name where only one of the names ends with it.
        """
        mentioned = _by_mention(names, path)
        base_name = posixpath.basename(path)
        moved_names = {move.name for move in self.moves if path and move.name in names and move.leaves(path)}

        for listed in self._lists:
            files = (
                {posixpath.basename(file) for file in deletion_list.files.difference(names)} for deletion_list in listed
            )
            deletion_list = (
                each
                for each, named in zip(listed, files, strict=True)
                if not base_name or not named or base_name in named
            )
            moved_names.update(takewhile(bool, (_meant(deletion_list, mentioned) for deletion_list in deletion_list)))

        return moved_names


@lru_cache(maxsize=16)
def read_request(request: str) -> Request:
    """Read the words of a request; of the kinds of change, what stands in quotes is not part of its sentence."""
    plain = _QUOTED.sub(" it ", request)
    kinds = {kind: pattern.search(plain) is not None for kind, pattern in _KINDS.items()}
    renames: dict[str, str] = {}
    expected: list[Expectation] = []
    moves: list[Move] = []
    lists: list[tuple[_Deletion, ...]] = []

    for sentence in (part.strip() for part in _SENTENCE.split(request) if len(part) <= _LONGEST):
        for match in _rename_matches(sentence):
            old, new = (name.rpartition(".")[2] for name in match.groups())
            if _is_name(old) and _is_name(new) and old != new and not any(map(_FILE.fullmatch, match.groups())):
                renames[old] = new
                expected += [Expectation(old, new)] * _is_certain(sentence, match)

        moves += _moves(sentence)
        files = frozenset(_FILE.findall(sentence))
        verbs = [verb for verb in _DELETE.finditer(sentence) if not _negated(sentence, verb.start())]
        lists += (tuple(_listed(sentence, verb.end(), files)) for verb in verbs)

    deleted = [deletion for listed in lists for deletion in listed]
    if not _PART.search(request) and any(deletion.name in {"it", "that", "this"} for deletion in deleted):
        files = frozenset(_FILE.findall(request))
        lists += ((_Deletion("".join(names), "", "", files),) for names in _UNUSED.findall(request))

    for deletion in deleted:
        if _is_name(deletion.name) and _KIND.search(deletion.words) and _is_anywhere(deletion.place):
            expected.append(Expectation(deletion.name))

    names_wanted = () if _KEPT.search(request) else tuple(expected)
    return Request(
        **kinds,
        files=frozenset(_PYTHON_FILE.findall(request)),
        renames=renames,
        moves=() if _KEPT.search(request) else tuple(moves),
        expectations=names_wanted,
        flags=frozenset(match[1] for match in _FLAG.finditer(request) if not _negated(request, match.start())),
        _lists=tuple(lists),
    )


def _moves(text: str) -> Iterator[Move]:
    """`move load and save from app.py to io.py`, `put the class Cart into cart.py and import it from there`."""
    for match in _MOVE.finditer(text):
        for match_of_name in _LISTED.finditer(match["names"]) if not _negated(text, match.start()) else ():
            if _is_name(match_of_name[1]):
                certain = bool(_KIND.search(match["names"]) or named_identifiers(match_of_name[0]))
                yield Move(match_of_name[1], match["old"] or "", match["new"], certain)


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
    place = _FROM.match(text, match.end())
    middle = _FROM.match(text, match.end(1))
    if "." in match[1] or _LOCAL.search(match[0]) or not (place or _END.match(text, match.end())):
        return False

    return all(_is_anywhere(part[1]) for part in (place, middle) if part)


def _is_anywhere(place: str) -> bool:
    return not place or "." in place or "/" in place or place.casefold() in _PLACES


def _by_mention(names: Collection[str], path: str) -> Mapping[str, str]:
    """How each name may be called: as it is, with the module before it, or by its last part where that is clear."""
    by_mention = {name: name for name in names}
    stem = posixpath.splitext(posixpath.basename(path))[0]
    lasts = [name.rpartition(".")[2] for name in names]

    for name, last in zip(names, lasts, strict=True):
        by_mention.setdefault(f"{stem}.{name}", name)
        if lasts.count(last) == 1:
            by_mention.setdefault(last, name)

    return by_mention


def _meant(deletion: _Deletion, known: Mapping[str, str]) -> str:
    """The one name that is called so; a method is one of the class that is named after it, or of the only one.

    "" where there is none, or where what it is to be deleted from is not where it is defined, but a list that it is in.
    """
    name = known.get(deletion.name, "")
    place = deletion.place
    if place and f"{place}.{deletion.name}" in known:
        return known[f"{place}.{deletion.name}"]

    if "method" in deletion.words:
        methods = {full_name for full_name in known.values() if full_name.endswith(f".{deletion.name}")}
        name = methods.pop() if len(methods) == 1 else name if "." in deletion.name else ""

    return name if _is_anywhere(place) or place == name.partition(".")[0] != name else ""


def _negated(sentence: str, at: int) -> bool:
    clause = re.split(r"[,:]|\bbut\b|\band\b", sentence[max(0, at - _CLAUSE) : at])[-1]
    return _NOT.search(clause) is not None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word) and _NO_NAME.fullmatch(word) is None
