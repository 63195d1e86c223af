"""What a person's request and a model's answer say about changes, as far as their words tell without a model.

Each of these is asked before something is done about it that costs a model call at most, so where words are not clear
the answer is no.
"""

import re

_VERBS = (
    r"(?:add|adjust|append|change|convert|copy|correct|create|delete|drop|edit|extend|fix|handle|implement|increase|insert|introduce|make|mend|modify"
    r"|move|put|raise|refactor|remove|rename|repair|replace|rewrite|set|simplify|turn|update|write)"
)
_CHANGE = re.compile(
    r"\b(?:add|change|correct|create|delete|edit|fix|implement|make|mend|refactor|remove|rename|repair|replace|rewrite"
    r"|set|update|write)(?:s|es|d|ed|ing)?\b",
    re.IGNORECASE,
)
_SPOKEN = (
    r"\s+(?:(?:me|us)\s+)?(?:an?|the|your)\s+(?:\w+\s+)?"
    r"(?:answer|explanation|guess|list|overview|plan|proposal|suggestion|summary)"
    r"(?:\s*(?:[.,;:!?]|\Z)|\s+(?:about|for|how|of|on)\b(?![^!?\n]*\s(?:as|in|into|to)\s+\S+\.\w))"
)
"""What is made by saying it."""
_ORDER = re.compile(
    rf"\s*(?:(?:please|now|then|also|just|and|so|next|finally|first)[,:]?\s+)*"
    rf"(?:(?:can|could|would|will)\s+you\s+(?:please\s+)?|(?:i|we)\s+(?:want|need)\s+you\s+to\s+|you\s+(?:should|must)\s+"
    rf"|let'?s\s+|go\s+ahead\s+and\s+)?(?:please\s+)?{_VERBS}\b(?!{_SPOKEN})",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"\s*(?:how|what|which|why|where|when|who|whose|is|are|does|do|did|has|have|explain|describe|tell|show|list|say"
    r"|summari[sz]e|review)\b",
    re.IGNORECASE,
)
_HANDS_OFF = re.compile(
    r"\b(?:do\s+not|don'?t|without|no\s+need\s+to|never)\s+(?:change|chang(?:e|ing)|edit(?:ing)?|modify(?:ing)?|touch(?:ing)?|write|"
    r"make\s+any)\b[^.\n]{0,20}\b(?:any|anything|file|files|code|it|the)\b",
    re.IGNORECASE,
)
_PROBLEM = re.compile(
    r"\b(?:bug|broken|crash(?:es|ed)?|defect|expected|fail(?:s|ed|ing)?|incorrect(?:ly)?|instead\s+of|raises?|should(?:n'?t)?"
    r"|must|wrong(?:ly)?)\b",
    re.IGNORECASE,
)
_DONE = (
    r"(?:added|adjusted|changed|converted|corrected|created|deleted|edited|fixed|implemented|made|mended|modified|moved"
    r"|refactored|removed|renamed|repaired|replaced|rewritten|rewrote|updated|written)"
)
_CLAIM = re.compile(
    rf"\b(?:i|we)(?:'ve|\s+have)?\s+(?:just\s+|now\s+|also\s+|successfully\s+)*{_DONE}\b"
    rf"|\b(?:has|have|was|were|is\s+now|are\s+now)\s+(?:now\s+|also\s+)?(?:been\s+)?(?:now\s+|successfully\s+)*(?:added|changed|"
    rf"corrected|created|deleted|edited|fixed|implemented|mended|modified|removed|renamed|repaired|replaced|updated)\b"
    rf"|\A\W*(?:(?:it|this|that|all|everything)(?:'s|\s+is)\s+)?(?:all\s+|now\s+)*(?:done|finished|completed?|{_DONE})\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:no|nothing|none)\b[^.\n]{0,40}?\b(?:has|have|was|were|is|are)\b[^.\n]*+", re.IGNORECASE)
_CODE = re.compile(r"```[^`]*+(?:`{1,2}[^`]++)*+```|`[^`\n]*+`")
_SENTENCES = re.compile(r"(?<=[.!?;:])\s+|\n+")


def asks_for_a_change(request: str) -> bool:
    """Does a request have a word of change in it? Shown files, a small model edits even where it was only greeted."""
    return _CHANGE.search(request) is not None


def orders_a_change(request: str) -> bool:
    """Is one of its sentences an order to change something, and none says that nothing is to be changed?"""
    plain = _CODE.sub("it", request)
    if _HANDS_OFF.search(plain):
        return False
    return any(_ORDER.match(sentence) for sentence in _SENTENCES.split(plain))


def reports_a_problem(request: str) -> bool:
    """Does it say what is wrong, without a question? Who says so to a coding agent wants it mended."""
    return not is_question(request) and not _HANDS_OFF.search(request) and _PROBLEM.search(request) is not None


def is_question(request: str) -> bool:
    """Is it a question, or does it only ask to be told something?"""
    plain = _CODE.sub("it", request).strip()
    return (plain.endswith("?") or _QUESTION.match(plain) is not None) and not orders_a_change(request)


def claims_a_change(answer: str) -> bool:
    """Does an answer say that something was changed?"""
    return _CLAIM.search(_DENIAL.sub("", _CODE.sub("it", answer))) is not None
