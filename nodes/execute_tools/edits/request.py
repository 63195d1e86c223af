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

_LONGEST: Final = 2000
"""Characters of a sentence that is read: what goes on without an end is a listing, and says nothing."""
_CLAUSE: Final = 200
_SENTENCE_END: Final = re.compile(r"[.!?](?=\s|\Z)|[;\n]")
_NOUN: Final = (
    r"(?:functions?|methods?|class(?:es)?|constants?|variables?|helpers?|definitions?|defs?|imports?|keys?|settings?"
    r"|options?|entry|entries|fields?|attributes?|propert(?:y|ies)|code|module-level|global|top-level)"
)
_FILLER: Final = (
    rf"(?:the|an?|all|any|of|its?|our|my|this|that|these|those|both|named|called|old|new|unused|dead|obsolete|legacy"
    rf"|deprecated|redundant|superfluous|unneeded|unnecessary|useless|duplicate|private|public|now|also|{_NOUN})"
)
_FILLERS: Final = rf"(?:{_FILLER},?[ \t]+){{0,8}}"
_NAME: Final = r"[`'\"*]{0,3}([A-Za-z_][\w.]{0,200}\b)(?!/)(?:\([^()\n]{0,80}\))?[`'\"*]{0,3}"
_FILE: Final = re.compile(r"(?<![\w/.-])[\w./-]{0,200}[\w-]\.[A-Za-z]\w{0,9}\b(?!\()")
_FILE_SUFFIX: Final = re.compile(r"\.(?:pyi?|json|toml|ya?ml|md|txt|cfg|ini|csv|html|js|ts|sh)\Z", re.IGNORECASE)
_DELETE: Final = re.compile(
    r"\b(?:remov(?:e|ing)|delet(?:e|ing)|drop(?:ping)?|eras(?:e|ing)|eliminat(?:e|ing)|get(?:ting)? rid of)[ \t]+",
    re.IGNORECASE,
)
_NOT: Final = re.compile(
    r"\b(?:not|never|without|avoid|instead of|rather than|before|no need to|cannot|keep|if|whether|why|how|what"
    r"|should (?:i|we))\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
_MUST: Final = (
    r"(?:should|must|can|may|shall|(?:has|have|needs?|is|ought) to)[ \t]+(?:(?:now|also|safely|just)[ \t]+){0,2}"
)
_LISTED: Final = re.compile(rf"{_FILLERS}{_NAME}(?:[ \t]+{_NOUN}(?!['\u2019\w]))?", re.IGNORECASE)
_NEXT: Final = re.compile(r"[ \t]*(?:,[ \t]*and|,|&|\band\b|\bor\b)[ \t]+", re.IGNORECASE)
_FROM: Final = re.compile(
    r"[ \t]+(?:from|in|of|inside|within)[ \t]+(?:(?:the|this|our|my|file|module|class)[ \t]+){0,3}"
    r"[`'\"*]{0,3}([\w./-]{1,200}\b)[`'\"*]{0,3}",
    re.IGNORECASE,
)
_PLACES: Final = frozenset({"file", "module", "class", "code", "codebase", "project", "package", "workspace", "it"})
_END: Final = re.compile(
    r"[ \t]*(?:\Z|[,:()\]\u2013\u2014]|[ \t](?:and|or|but|because|since|as|which|that|with|together|completely|entirely"
    r"|altogether|everywhere|please|too|again|so|then|is|it's|-)\b|[ \t]-[ \t])",
    re.IGNORECASE,
)
_TO: Final = r"[ \t]+(?:to|into|as|->|=>|\u2192)[ \t]+(?:be[ \t]+)?"
_WHERE: Final = (
    r"(?:[ \t]+(?:from|in|of)[ \t]+(?!to\b)(?:(?:the|file|module|class)[ \t]+){0,3}[^\s,]{1,200}"
    r"|[ \t]+everywhere){0,2}"
)
_START: Final = r"(?:\A|[,:]|\b(?:and|so|then|but|that))[ \t]*"
_THING: Final = rf"{_FILLERS}{_NAME}(?:[ \t]+{_NOUN})?{_WHERE}"
_PAIR: Final = rf"{_THING}{_TO}(?:(?:just|simply)[ \t]+)?{_FILLERS}{_NAME}"
_RENAMES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\brenam(?:e|ing)[ \t]+{_PAIR}",
        rf"{_START}{_THING}[ \t]+{_MUST}be[ \t]+(?:renamed[ \t]+(?:to|into|as)|called|named)[ \t]+{_FILLERS}{_NAME}",
    )
)
_ANOTHER_PAIR: Final = re.compile(rf"[ \t]*(?:,[ \t]*and|,|\band\b)[ \t]+(?:rename[ \t]+)?{_PAIR}", re.IGNORECASE)
_KIND: Final = re.compile(r"\b(?:function|method|class|constant|helper)\b", re.IGNORECASE)
_LOCAL: Final = re.compile(r"\b(?:variable|key|setting|option|entry|field|attribute|property|code)s?\b", re.IGNORECASE)
_KEPT = re.compile(
    r"\b(?:alias(?:es)?|backwards?|compatib\w+|keep(?:ing)?\s+the\s+old|still\s+work|deprecat\w+\s+the\s+old)\b",
    re.IGNORECASE,
)
_NO_NAME: Final = re.compile(
    r"to|into|as|it|its|the|an?|them|something|be|from|this|that|all|any|every|each|and|or|in|of|is|files?|module"
    r"|variable|parameter|argument|attribute|column|key|field|option|flag|function|method|class|constant|helper|local",
    re.IGNORECASE,
)

# --- What kind of change is asked for

_QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)")
_FILES = re.compile(r"(?<![\w./-])[\w./-]*\w\.py\b")

_REPAIR = re.compile(
    r"\b(?:bugs?|buggy|fix(?:es|ed|ing)?|wrong(?:ly)?|incorrect(?:ly)?|broken|breaks|repair|mend|mistakes?"
    r"|off[ -]by[ -]one|fail(?:s|ed|ing|ures?)?|crash(?:es|ed|ing)?|hangs?|loops forever|infinite loop"
    r"|never (?:ends|stops|returns|terminates)|does(?: not|n't) (?:work|handle|return|stop|end)|regression|defects?"
    r"|faulty|misbehaves?)\b",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(
    r"\b(?:should(?:n't)?|must|expected|errors?|instead of|rather than|supposed to|but (?:gets?|gives?|returns?|it))\b",
    re.IGNORECASE,
)
_KEEPING = re.compile(
    r"\b(?:rename[sd]?|renaming|type hints?|type annotations?|annotat(?:e|ions?)|docstrings?|refactor(?:ing)?|reformat"
    r"|tidy up|clean up|simplify|dead|unused|readab(?:le|ility)|speed up|optimi[sz]e)\b",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"\b(?:change[sd]?|set|updates?|increase|decrease|raise the|lower|bump|switch|make|default|instead(?! of)|replace"
    r"|now|add|support|allow|accept|handle|new|extend|return|use|should|must|convert|ignore|keep|limit)\b",
    re.IGNORECASE,
)
_CREATION = re.compile(
    r"\b(?:create|write|implement)\b"
    r"|\badd (?:an? |the |another )?(?:new |small |helper )*(?:function|method|class|module|file)\b"
    r"|\bnew (?:function|method|class|module|file)\b"
    r"|\b(?:need|want|would like|'d like) (?:to have )?"
    r"(?:an? (?:\w+ ){0,3}?(?:function|method|class|module|file|script)\b|[\w./-]*\w\.py (?:with|that|containing)\b)",
    re.IGNORECASE,
)
_DOCUMENTATION = re.compile(r"\b(?:docstrings?|doctests?|documentation|docs?|(?<!for )examples?)\b", re.IGNORECASE)


class Expectation(NamedTuple):
    """`gone` is to be defined and used nowhere any more, and `defined` somewhere, where it is not ""."""

    gone: str
    defined: str = ""


class _Deletion(NamedTuple):
    """A name that is to go, the words it stands in, what it goes from, and whether that is certain without the file."""

    name: str
    words: str = ""
    place: str = ""
    certain: bool = False


class _Rename(NamedTuple):
    old: str
    new: str
    certain: bool


class _Sentence(NamedTuple):
    """What a sentence says is to go, in its lists, its renames, and the files that it names."""

    lists: tuple[tuple[_Deletion, ...], ...]
    renames: tuple[_Rename, ...]
    files: frozenset[str]

    def concerns(self, path: str, names: Collection[str]) -> bool:
        files = {posixpath.basename(each) for each in self.files.difference(names)}
        return not path or not files or posixpath.basename(path) in files


@dataclass(frozen=True)
class Request:
    """What is asked for; several can be true.

    `repairs` says that something is wrong, `complains` that it should be otherwise. `keeps` and `changes` tell whether
    the code is to do the same as before or something else, `creates` that something new is to be written, `documents`
    that docstrings or examples are spoken of. `files` are the Python files that it names. `renames` are old names to
    new ones, without the class or module before them; `expectations` what must be true of names once all is done.
    """

    repairs: bool = False
    complains: bool = False
    keeps: bool = False
    changes: bool = False
    creates: bool = False
    documents: bool = False
    files: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    sentences: tuple[_Sentence, ...] = field(default=(), repr=False)

    def speaks_of_others(self, path: str) -> bool:
        """Whether it names other Python files than this one, which may have to change as well."""
        own = posixpath.basename(path)
        return any(posixpath.basename(each) != own for each in self.files)

    def deletions(self, names: Collection[str], path: str = "") -> set[str]:
        """Those of `names` (`load`, `Cart.total`) that are to go; where a file is named, from that of `path`.

        A method may be called by its last name where only one of the names ends with it.
        """
        known = _by_mention(names, path)
        lists = (listed for each in self.sentences if each.concerns(path, names) for listed in each.lists)
        return {name for listed in lists for name in takewhile(bool, (_meant(each, known) for each in listed))}


@lru_cache(maxsize=16)
def read_request(request: str) -> Request:
    """Read the words of a request; of the kinds of change, what stands in quotes is not part of its sentence."""
    plain = _QUOTED.sub(" it ", request)

    def has(pattern: re.Pattern[str]) -> bool:
        return pattern.search(plain) is not None

    sentences = tuple(map(_read, _sentences(request)))
    return Request(
        repairs=has(_REPAIR),
        complains=has(_COMPLAINT),
        keeps=has(_KEEPING),
        changes=has(_CHANGE),
        creates=has(_CREATION),
        documents=has(_DOCUMENTATION),
        files=frozenset(_FILES.findall(request)),
        renames={each.old: each.new for sentence in sentences for each in sentence.renames},
        expectations=() if _KEPT.search(request) else tuple(_expectations(sentences)),
        sentences=sentences,
    )


def _expectations(sentences: Collection[_Sentence]) -> Iterator[Expectation]:
    for sentence in sentences:
        yield from (Expectation(each.old, each.new) for each in sentence.renames if each.certain)
        yield from (Expectation(each.name) for listed in sentence.lists for each in listed if each.certain)


def _sentences(task: str) -> Iterator[str]:
    ends = [*_SENTENCE_END.finditer(task)]
    starts = [0, *(end.end() for end in ends)]
    stops = [*(end.start() for end in ends), len(task)]
    for start, stop in zip(starts, stops, strict=True):
        if stop - start <= _LONGEST:
            yield task[start:stop].strip()


def _read(text: str) -> _Sentence:
    verbs = (verb for verb in _DELETE.finditer(text) if not _negated(text, verb.start()))
    lists = tuple(tuple(_listed(text, verb.end())) for verb in verbs)
    files = frozenset(word for word in _FILE.findall(text) if _FILE_SUFFIX.search(word))
    return _Sentence(lists, tuple(_renames(text)), files)


def _listed(text: str, at: int) -> Iterator[_Deletion]:
    """The names after a verb, as in `the functions load, save() and dump from io.py`."""
    while match := _LISTED.match(text, at):
        place = _FROM.match(text, match.end())
        if place is None and not _END.match(text, match.end()):
            return
        certain = _is_name(match[1]) and _KIND.search(match[0].replace(match[1], "")) is not None
        where = place[1] if place else ""
        yield _Deletion(match[1], match[0].casefold(), where, certain and _is_anywhere(where))
        following = _NEXT.match(text, match.end())
        if following is None:
            return
        at = following.end()


def _renames(text: str) -> Iterator[_Rename]:
    for pattern in _RENAMES:
        match = pattern.search(text)
        while match and not _negated(text, match.start()):
            old, new = (name.rpartition(".")[2] for name in match.groups())
            if _is_rename(text, match) and _is_name(old) and _is_name(new) and old != new:
                yield _Rename(old, new, _is_certain(text, match))
            match = _ANOTHER_PAIR.match(text, match.end())


def _is_rename(text: str, match: re.Match[str]) -> bool:
    """Whether both are names and not files: `a.py` would be read as the name `py` of the module `a`."""
    return not any(_FILE_SUFFIX.search(name) for name in match.groups()) and text[match.end() :][:1] != "/"


def _is_certain(text: str, match: re.Match[str]) -> bool:
    """Whether the old name is to be gone everywhere: it is no attribute, and of no single function or class."""
    place, middle = _FROM.match(text, match.end()), _FROM.match(text, match.end(1))
    if "." in match[1] or _LOCAL.search(match[0]) or not (place or _END.match(text, match.end())):
        return False
    return all(_is_anywhere(each[1]) for each in (place, middle) if each)


def _is_anywhere(place: str) -> bool:
    return not place or "." in place or "/" in place or place.casefold() in _PLACES - {"class"}


def _by_mention(names: Collection[str], path: str) -> Mapping[str, str]:
    """How each name may be called: as it is, with the module before it, or by its last part where that is clear."""
    found = {name: name for name in names}
    stem = posixpath.splitext(posixpath.basename(path))[0]
    lasts = [name.rpartition(".")[2] for name in names]
    for name in names:
        last = name.rpartition(".")[2]
        if stem:
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
        name = known[f"{place}.{deletion.name}"]
    elif "method" in deletion.words:
        methods = {each for each in known.values() if each.endswith(f".{deletion.name}")}
        name = methods.pop() if len(methods) == 1 else name if "." in deletion.name else ""
    owned = place.casefold() in _PLACES or place == name.partition(".")[0] != name
    return name if not place or "." in place or "/" in place or owned else ""


def _negated(sentence: str, at: int) -> bool:
    clause = re.split(r"[,:]|\bbut\b|\band\b", sentence[max(0, at - _CLAUSE) : at])[-1]
    return _NOT.search(clause) is not None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word) and _NO_NAME.fullmatch(word) is None
