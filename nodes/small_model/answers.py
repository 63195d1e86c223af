"""Compare the answer of a small model with what happened in the turn, and correct it with the facts.

A small model says "done" on unchanged files. The words of the request and the answer are only a hint: the model is
corrected a bounded number of times, and no run fails because of them.
"""

import re
from typing import NamedTuple

from mendgraph.nodes.records import ExtractionError, ExtractionErrorType
from mendgraph.nodes.small_model.wording import CODE, asks_for_a_change, is_question, orders_a_change, reports_a_problem

NOTHING_HAPPENED = "No file was changed, so what this answer says has not happened."
NOTHING_DONE = "The request asks for a change, and no file was changed."
_HONESTLY = "Say what was not done, and why."


class AnswerFacts(NamedTuple):
    """Facts about the turn when its answer arrives.

    The answer to a `settled` turn is accepted: a file was changed, something else may have been done, or the
    corrections are used up. `checks_failed_before` says that checks failed before the first change,
    `change_was_blocked` that a change was refused, `first` that this is the thread's first request.
    """

    request: str
    settled: bool = False
    checks_failed_before: bool = False
    change_was_blocked: bool = False
    first: bool = False


def answer_error(answer: str, facts: AnswerFacts) -> ExtractionError | None:
    """Return the objection to an answer; None if there is none."""
    problem = _problem(answer, facts)
    if problem:
        return ExtractionError(ExtractionErrorType.UNFOUNDED_CLAIM, 0, answer[:200], problem)

    return None


def _problem(answer: str, facts: AnswerFacts) -> str:
    request = facts.request
    if facts.settled or not request or is_question(request):
        return ""

    reported = reports_a_problem(request)
    meant = reported or asks_for_a_change(request)

    if (meant and _claims_a_change(answer)) or (facts.first and _claims_own_work(answer)):
        if facts.change_was_blocked:
            return f"{NOTHING_HAPPENED} {_HONESTLY}"
        return NOTHING_HAPPENED

    is_change_wanted = reported or facts.checks_failed_before or orders_a_change(request)
    if is_change_wanted and not facts.change_was_blocked:
        return NOTHING_DONE

    return ""


_DONE = (
    r"(?:added|adjusted|changed|converted|corrected|created|deleted|edited|fixed|implemented|made|mended|modified|moved"
    r"|refactored|removed|renamed|repaired|replaced|rewritten|rewrote|updated|written)"
)
_I_HAVE = r"\b(?:i|we)(?:'ve|\s+have)?\s+(?:just\s+|now\s+|also\s+|successfully\s+)*"
_OWN_CLAIM = re.compile(  # what is made or written may be the answer itself, unless it is a file
    rf"{_I_HAVE}(?!(?:created|made|written)\b(?!(?:\s+\w+){{0,2}}\s+\S+\.\w)){_DONE}\b", re.IGNORECASE
)
_CLAIM = re.compile(
    rf"{_I_HAVE}{_DONE}\b"
    r"|(?<!would )(?<!could )(?<!should )(?<!'d )"  # what would have been done was not
    r"\b(?:has|have|was|were|is\s+now|are\s+now)\s+(?:now\s+|also\s+)?(?:been\s+)?(?:now\s+|successfully\s+)*"
    r"(?:added|changed|"
    rf"corrected|created|deleted|edited|fixed|implemented|mended|modified|removed|renamed|repaired|replaced|updated)\b"
    rf"|\A\W*(?:(?:it|this|that|all|everything)(?:'s|\s+is)\s+)?(?:all\s+|now\s+)*"
    rf"(?:done|finished|completed?|{_DONE})\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:no|nothing|none)\b[^.\n]{0,40}?\b(?:has|have|was|were|is|are)\b[^.\n]*+", re.IGNORECASE)


def _claims_a_change(answer: str) -> bool:
    """Return whether the answer says that something was changed."""
    return _CLAIM.search(_DENIAL.sub("", CODE.sub("it", answer))) is not None


def _claims_own_work(answer: str) -> bool:
    """Return whether it says that the model changed something."""
    return _OWN_CLAIM.search(CODE.sub("it.py", answer)) is not None
