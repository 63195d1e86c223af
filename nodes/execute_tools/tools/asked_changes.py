"""Which names a request says to delete or to rename: only then may the block form take something away.

The wording is read strictly. What is negated, said of a part of a definition ("remove its docstring"), or not of one
of the names that are there, asks for nothing.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from keyword import iskeyword
from typing import Final

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
_FILLERS: Final = rf"(?:{_FILLER}[ \t]+){{0,8}}"
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
_PASSIVE: Final = re.compile(
    rf"(?:\A|[,:]|\b(?:and|so|then|but|therefore|that))[ \t]*{_FILLERS}{_NAME}(?:[ \t]+{_NOUN})?"
    rf"(?:[ \t]+(?:from|in)[ \t]+\S{{1,200}})?[ \t]+{_MUST}be[ \t]+(?:removed|deleted|dropped)\b",
    re.IGNORECASE,
)
_IDLE: Final = re.compile(
    r"\b(?:unused|dead|obsolete|no longer|never|nobody|nothing|no one|(?:not|n['\u2019]t)[ \t]+(?:used|called|needed)"
    r"|deprecated|redundant|superfluous|unneeded|unnecessary|useless)\b",
    re.IGNORECASE,
)
_PART: Final = re.compile(
    r"\b(?:arguments?|parameters?|docstrings?|comments?|lines?|calls?|prints?|branch(?:es)?|checks?|tests?|statements?"
    r"|loops?|bod(?:y|ies)|blocks?|decorators?|defaults?|annotations?|hints?|types?|names?)\b|['\u2019]s\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*\w(?!\.\w)")
_IT: Final = re.compile(r"it\b", re.IGNORECASE)
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
        rf"\bchang(?:e|ing)[ \t]+the[ \t]+(?:{_NOUN}[ \t]+)?name[ \t]+(?:of|from)?[ \t]*{_PAIR}",
        rf"{_START}{_THING}[ \t]+{_MUST}be[ \t]+(?:renamed[ \t]+(?:to|into|as)|called|named)[ \t]+{_FILLERS}{_NAME}",
        rf"\bgiv(?:e|ing)[ \t]+{_THING}[ \t]+the[ \t]+(?:new[ \t]+|better[ \t]+)?name[ \t]+{_NAME}",
    )
)
_ANOTHER_PAIR: Final = re.compile(rf"[ \t]*(?:,[ \t]*and|,|\band\b)[ \t]+{_PAIR}", re.IGNORECASE)
_NO_NAMES: Final = frozenset({"to", "into", "as", "it", "file", "the", "a", "an", "them", "something", "be", "from"})


def asked_deletions(task: str, names: Collection[str], path: str = "") -> set[str]:
    """Those of `names` (`load`, `Cart.total`) that the task says to delete; where it names a file, from that of `path`.

    A method may be called by its last name where only one of the names ends with it.
    """
    known = _by_mention(names, path)
    found: set[str] = set()
    before = ""
    for sentence in _sentences(task):
        if _concerns(sentence, path, names):
            found.update(_deleted(sentence, before, known))
        before = sentence
    return found


def asked_renames(task: str) -> dict[str, str]:
    """Old name to new name, each without the class or module before it, of what the task says to rename."""
    found: dict[str, str] = {}
    for sentence in _sentences(task):
        for pattern in _RENAMES:
            match = pattern.search(sentence)
            while match and not _negated(sentence, match.start()):
                old, new = (name.rpartition(".")[2] for name in match.groups())
                if _is_rename(sentence, match) and _is_name(old) and _is_name(new) and old != new:
                    found[old] = new
                match = _ANOTHER_PAIR.match(sentence, match.end())
    return found


def _is_rename(sentence: str, match: re.Match[str]) -> bool:
    """Whether both are names and not files: `a.py` would be read as the name `py` of the module `a`."""
    return not any(_FILE_SUFFIX.search(name) for name in match.groups()) and sentence[match.end() :][:1] != "/"


def _sentences(task: str) -> Iterator[str]:
    ends = [*_SENTENCE_END.finditer(task)]
    starts = [0, *(end.end() for end in ends)]
    stops = [*(end.start() for end in ends), len(task)]
    for start, stop in zip(starts, stops, strict=True):
        if stop - start <= _LONGEST:
            yield task[start:stop].strip()


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


def _deleted(sentence: str, before: str, known: Mapping[str, str]) -> Iterator[str]:
    for verb in _DELETE.finditer(sentence):
        if _negated(sentence, verb.start()):
            continue
        if _IT.match(sentence, verb.end()):
            clause = sentence[max(0, verb.start() - _CLAUSE) : verb.start()]
            yield from _idle(clause, known) or _idle(before, known)
        else:
            yield from _list(sentence, verb.end(), known)
    passive = _PASSIVE.search(sentence)
    if passive and not _NOT.search(sentence, 0, passive.end()):
        yield from [known[passive[1]]] if passive[1] in known else []


def _idle(clause: str, known: Mapping[str, str]) -> list[str]:
    """The one definition of which a clause says that nothing needs it, for an "it" that comes after."""
    words = {known[word] for word in _WORD.findall(clause) if word in known}
    told = _IDLE.search(clause) and not _PART.search(clause)
    return list(words) if told and len(words) == 1 else []


def _list(sentence: str, at: int, known: Mapping[str, str]) -> list[str]:
    """The names after a verb, as in `the functions load, save() and dump from io.py`."""
    found: list[str] = []
    while match := _LISTED.match(sentence, at):
        place = _FROM.match(sentence, match.end())
        name = _meant(match, place, known)
        if not name or not (_is_place(place, name) if place else _END.match(sentence, match.end())):
            break
        found.append(name)
        following = _NEXT.match(sentence, match.end())
        if following is None:
            break
        at = following.end()
    return found


def _meant(match: re.Match[str], place: re.Match[str] | None, known: Mapping[str, str]) -> str:
    """The one name that is called so; a method is one of the class that is named after it, or of the only one."""
    if place and f"{place[1]}.{match[1]}" in known:
        return known[f"{place[1]}.{match[1]}"]
    if "method" in match[0].casefold():
        methods = {name for name in known.values() if name.endswith(f".{match[1]}")}
        return methods.pop() if len(methods) == 1 else known.get(match[1], "") if "." in match[1] else ""
    return known.get(match[1], "")


def _is_place(place: re.Match[str], name: str) -> bool:
    """Whether what a name is to be deleted from is where it is defined, and not a list that it is in."""
    word = place[1]
    return "." in word or "/" in word or word.casefold() in _PLACES or word == name.partition(".")[0] != name


def _concerns(sentence: str, path: str, names: Collection[str]) -> bool:
    """Whether the sentence names this file, or none at all."""
    files = {posixpath.basename(word) for word in _FILE.findall(sentence) if word not in names}
    files = {name for name in files if _FILE_SUFFIX.search(name)}
    return not path or not files or posixpath.basename(path) in files


def _negated(sentence: str, at: int) -> bool:
    """Whether the clause before this place says not to."""
    clause = re.split(r"[,:]|\bbut\b|\band\b", sentence[max(0, at - _CLAUSE) : at])[-1]
    return _NOT.search(clause) is not None


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word) and word.casefold() not in _NO_NAMES
