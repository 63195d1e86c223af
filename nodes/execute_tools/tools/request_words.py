"""What a request asks for, as far as its words tell what an edit may and may not change. Pure; strict in doubt."""

import posixpath
import re
from typing import NamedTuple

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


class Request(NamedTuple):
    """What is asked for; several can be true.

    `repairs` says that something is wrong, `complains` that it should be otherwise. `keeps` and `changes` tell whether
    the code is to do the same as before or something else, `creates` that something new is to be written, `documents`
    that docstrings or examples are spoken of. `files` are the Python files that it names.
    """

    repairs: bool
    complains: bool
    keeps: bool
    changes: bool
    creates: bool
    documents: bool
    files: frozenset[str]

    def speaks_of_others(self, path: str) -> bool:
        """Whether it names other Python files than this one, which may have to change as well."""
        own = posixpath.basename(path)
        return any(posixpath.basename(each) != own for each in self.files)


def read_request(request: str) -> Request:
    """Read the words of a request; what stands in quotes is not part of its sentence."""
    plain = _QUOTED.sub(" it ", request)

    def has(pattern: re.Pattern[str]) -> bool:
        return pattern.search(plain) is not None

    return Request(
        repairs=has(_REPAIR),
        complains=has(_COMPLAINT),
        keeps=has(_KEEPING),
        changes=has(_CHANGE),
        creates=has(_CREATION),
        documents=has(_DOCUMENTATION),
        files=frozenset(_FILES.findall(request)),
    )
