"""The kind of a request by its words: a change, a question, new tests. No run fails because of it."""

import re

_VERBS = (
    r"(?:add|adjust|append|change|convert|copy|correct|create|delete|drop|edit|extend|fix|handle|implement|increase|insert|introduce|make|mend|modify"
    r"|move|put|raise|refactor|remove|rename|repair|replace|rewrite|set|simplify|turn|update|write)"
)
_CHANGE = re.compile(
    r"\b(?:add|change|correct|create|delete|edit|fix|implement|make|mend|move|refactor|remove|rename|repair|replace"
    r"|rewrite|set|update|use|write)(?:s|es|d|ed|ing)?\b",
    re.IGNORECASE,
)
_SPOKEN = (
    r"\s+(?:(?:me|us)\s+)?(?:an?|the|your)\s+(?:\w+\s+)?"
    r"(?:answer|explanation|guess|list|overview|plan|proposal|suggestion|summary)"
    r"(?:\s*(?:[.,;:!?]|\Z)|\s+(?:about|for|how|of|on)\b(?![^!?\n]*\s(?:as|in|into|to)\s+\S+\.\w))"
)
"""Things that are made by saying them."""
ORDER = re.compile(
    rf"\s*(?:(?:please|now|then|also|just|and|so|next|finally|first)[,:]?\s+)*"
    rf"(?:(?:can|could|would|will)\s+you\s+(?:please\s+)?|(?:i|we)\s+(?:want|need)\s+you\s+to\s+|you\s+(?:should|must)\s+"
    rf"|let'?s\s+|go\s+ahead\s+and\s+)?(?:please\s+)?{_VERBS}\b(?!{_SPOKEN})",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"\s*(?:how|what|which|why|where|who|whose|is|are|does|do|did|has|have|explain|describe|tell|show|list|say"
    r"|summari[sz]e|review)\b",
    re.IGNORECASE,
)
_HANDS_OFF = re.compile(
    r"\b(?:do\s+not|don'?t|without|no\s+need\s+to|never)\s+(?:change|chang(?:e|ing)|edit(?:ing)?|modify(?:ing)?|touch(?:ing)?|write|"
    r"make\s+any)\b[^.\n]{0,20}\b(?:any|anything|file|files|code|it|the)\b",
    re.IGNORECASE,
)
_PROBLEM = re.compile(
    r"\b(?:bugs?|buggy|broken|crash(?:es|ed)?|defects?|expected|fail(?:s|ed|ing)?|(?<!the )fix|incorrect(?:ly)?"
    r"|instead\s+of|must|raises?|should(?:n'?t)?|wrong(?:ly)?)\b",
    re.IGNORECASE,
)
_FAILING_TESTS = re.compile(r"\bfail\w*\s+(?:\w+\s+)?tests?\b|\btests?\s+(?:\w+\s+)?fail", re.IGNORECASE)
_NEW_TESTS = re.compile(r"\s*(?:please\s+|can you\s+)?(?:write|add|create)\s+(?:\w+\s+){0,3}tests?\b", re.IGNORECASE)
CODE = re.compile(r"```[^`]*+(?:`{1,2}[^`]++)*+```|`[^`\n]*+`")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_STEM = 6
"""Letters that are compared: quantity and quantities are the same word."""
_FILLERS = re.compile(
    "and|any|are|but|can|does|for|from|has|have|how|instea|into|its|not|one|please|should|some|that|the|then|there"
    "|this|was|what|when|where|which|will|with|you"
)
SENTENCES = re.compile(r"(?<=[.!?;:])\s+|\n+")


def content_words(text: str) -> list[str]:
    """Return the words of a text or a name, shortened and without stop words."""
    stems = (word.lower()[:_STEM] for word in WORD.findall(text))
    return [word for word in stems if len(word) > 2 and not _FILLERS.fullmatch(word)]


def asks_for_a_change(request: str) -> bool:
    """Return whether a request has a word of change. A small model edits shown files even after a greeting."""
    return _CHANGE.search(request) is not None


def orders_a_change(request: str) -> bool:
    """Return whether a sentence orders a change, and none forbids changes."""
    plain = CODE.sub("it", request)
    if _HANDS_OFF.search(plain):
        return False

    return any(ORDER.match(sentence) for sentence in SENTENCES.split(plain))


def reports_a_problem(request: str) -> bool:
    """Return whether it reports a problem without a question, which implies a request for a repair."""
    return not is_question(request) and not _HANDS_OFF.search(request) and _PROBLEM.search(request) is not None


def speaks_of_failing_tests(request: str) -> bool:
    """Return whether it says that a test fails."""
    return _FAILING_TESTS.search(request) is not None


def asks_for_tests(request: str) -> bool:
    """Return whether it asks for a new test."""
    return _NEW_TESTS.match(request) is not None


def is_question(request: str) -> bool:
    """Return whether it is a question, or only asks for information."""
    plain = CODE.sub("it", request).strip()
    return (plain.endswith("?") or _QUESTION.match(plain) is not None) and not orders_a_change(request)
