"""Which definitions of a file a request names: surely, as only code is named, or possibly, with any of its words. Pure.

Ordinary words are names of functions too (`add`, `total`, `load`), so that a word alone names nothing for sure.
"""

import re
from typing import Final

LONGEST_REQUEST: Final = 20_000
"""Characters of a request that are read."""

_CODE_LIKE: Final = re.compile(r"^_|[^\W_]_+[^\W_]|\d|[a-z][A-Z]|^[A-Z]{3,}$")
_THING: Final = r"(?i:function|method|class|def|generator|property|coroutine)"
_OPENS: Final = r"(?:\A\s*|[.!?:;,(]\s+|\n\s*)"
_END: Final = r"(?=\s*(?:\Z|[.,;:!?)\n])|\s+(?i:in|from|so|that|and|but|which|to|with|because|when|where|if|for|is)\b)"
_VERB: Final = (
    r"(?i:fix|change|set|update|mend|repair|correct|document|rename|delete|remove|drop|rewrite|simplify|extend|debug"
    r"|optimi[sz]e|speed\s+up|annotate|edit|improve)"
)
_PREDICATE: Final = (
    r"(?i:is|has|was|should|must|needs?|returns?|gives?|raises?|yields?|does|doesn't|lacks?|fails?|crash(?:es)?|ignores?"
    r"|loses|drops|loops|takes|can(?:not)?|never|always|still)"
)
_SAID: Final = (
    r"(?i:docstrings?|documentation|hints?|annotations?|examples?|parameters?|arguments?|options?|caching|cache|logging|tests?"
    r"|support|bugs?|errors?|problems?|mistakes?|default|type|behaviou?r|signature|result|body|code)"
)
_DETERMINER: Final = r"(?P<determiner>\b(?i:the|an?|its|their|our|your|my|this|that|each|any|some|no|in)\s+)?"
_PATTERNS: Final = (
    r"`(?:[\w.]+\.)?{n}(?:\([^`\n]*\))?`",
    r"(?<!\w){n}\(",
    rf"\b{_THING}\s+(?i:(?:called|named)\s+)?{{n}}\b",
    rf"(?<!\w){{n}}\s+{_THING}\b",
    r"(?<![\w.])(?:{owners})\.{n}\b",
    rf"{_DETERMINER}(?<![\w.'\u2019-]){{n}}\s+(?i:in|from|of|inside)\s+(?i:the\s+(?:file|module)\s+)?[`'\"]?[\w./-]*\w\.py\b",
    rf"(?:{_OPENS}|\b(?i:please|and|then)\s+)(?:{_VERB}\s+{{n}}{_END}|(?i:make|let|have)\s+{{n}}\s)",
    rf"(?:{_OPENS}|\b(?i:that|because|why|when|where|and|but|does)\s+){{n}}\s+{_PREDICATE}\b",
    rf"\b{_SAID}\s+(?i:to|for|of|in|from|on)\s+{{n}}{_END}",
)
_CLASS_PATTERN: Final = r"[a-z,]\s+{n}\b(?!['\u2019])"
_UNTOUCHED: Final = re.compile(
    r"\b(?:leav(?:e|ing)\b|keep(?:ing)?\b(?=[^.;\n]{0,80}?\b(?:as\s+(?:it|they|is)\b|unchanged|untouched|alone|the\s+same))"
    r"|(?:do\s+not|don['\u2019]t|without)\s+(?:chang(?:e|ing)|touch(?:ing)?|modify(?:ing)?|alter(?:ing)?|edit(?:ing)?)\b)"
    r"[^.;\n]*",
    re.IGNORECASE,
)
_SEVERAL: Final = re.compile(
    r"\b(?:all|every|everywhere|everything|each|both|others|the\s+rest|throughout|wherever|anywhere|similar(?:ly)?|likewise"
    r"|(?:whole|entire|complete)\s+(?:file|module|script|program|code)|functions|methods|classes|definitions"
    r"|refactor\w*|restructur\w*|reorgani[sz]\w*|clean(?:ing)?[ -]?up|tidy|duplicat\w*|consistent(?:ly)?)\b",
    re.IGNORECASE,
)
_SHORT: Final = 4
"""Names of fewer characters take no ending: `get` is not in `gets`."""


def what_may_change(task: str) -> str:
    """The request without the clauses that say what is to stay as it is, and without runs of blanks."""
    lines = (" ".join(line.split()) for line in task[:LONGEST_REQUEST].splitlines())
    return _UNTOUCHED.sub("", "\n".join(line for line in lines if line))


def asks_for_several(task: str) -> bool:
    """Whether a request speaks of more definitions than it names: all, each, both, the whole file."""
    return _SEVERAL.search(task) is not None


def surely_named(task: str, name: str, *owners: str) -> bool:
    """Whether the request names this definition as code, and not by chance with a word of its sentence.

    `name` is without its class; `owners` are the class and the module that may stand before it.
    """
    escaped = re.escape(name)
    if not re.search(rf"(?<!\w){escaped}(?!\w)", task):
        return False
    if _CODE_LIKE.search(name):
        return True
    if name[0].isupper() and re.search(_CLASS_PATTERN.format(n=escaped), task):
        return True
    before = "|".join(re.escape(owner) for owner in owners if owner) or r"(?!)"
    found = (match for each in _PATTERNS for match in re.finditer(each.format(n=escaped, owners=before), task))
    return any(match.groupdict().get("determiner") is None for match in found)


def possibly_named(task: str, name: str) -> bool:
    """Whether words of the request could mean this definition: `word count`, `Flattening`."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", name) or [name]
    words = r"[\s_-]*".join(map(re.escape, parts))
    ending = r"(?:s|es|d|ed|ing|er)?" if len(parts[-1]) >= _SHORT else ""
    return re.search(rf"(?<![^\W_]){words}{ending}(?![^\W_])", task, re.IGNORECASE) is not None
