"""Is an answer borne out by what happened in the turn? One that is not is met once with the facts.

A model that says "done" on unchanged files is the failure that a user sees last and forgives least.
"""

from collections.abc import Callable
from typing import NamedTuple

from nodes.language.requests import (
    asks_for_a_change,
    claims_a_change,
    is_question,
    orders_a_change,
    reports_a_problem,
)

NOTHING_HAPPENED = "No file was changed, so what this answer says has not happened."
NOTHING_DONE = "The request asks for a change, and no file was changed."
_REMEDY = "Make the change now. If none can be made, say why in one sentence."


def _never() -> bool:
    return False


class TurnFacts(NamedTuple):
    """What is known of the turn when its answer comes.

    `changed` are the files that it has changed, `hindered` says that a change was tried and may not be made, `met` how
    often the model was met with the facts before. An `insistent` run takes no answer for a change that was asked for:
    small models say that all is well. `configured` says that the run has checks that must pass, `faulty` that checks
    failed before anything was done.
    """

    request: str = ""
    changed: tuple[str, ...] = ()
    hindered: Callable[[], bool] = _never
    met: int = 0
    insistent: bool = False
    checked: bool = False
    configured: bool = False
    faulty: bool = False


def unfounded(answer: str, facts: TurnFacts) -> str | None:
    """What speaks against this answer, for the model; None where nothing does."""
    if not facts.request or facts.changed or is_question(facts.request) or facts.hindered():
        return None
    meant = asks_for_a_change(facts.request) or reports_a_problem(facts.request)
    remedy = "" if facts.insistent else f" {_REMEDY}"
    if meant and claims_a_change(answer):
        return f"{NOTHING_HAPPENED}{remedy}"
    wanted = orders_a_change(facts.request) or (facts.insistent and (facts.faulty or reports_a_problem(facts.request)))
    if wanted and (facts.insistent or not facts.met):
        return f"{NOTHING_DONE}{remedy}"
    return None


def paths_to_check(facts: TurnFacts, changing: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The files whose checks come before the answer; `changing` are those that this reply changes.

    None where nothing is to be checked: the run has no checks, or nothing was changed and nothing had to be.
    """
    paths = tuple(dict.fromkeys((*facts.changed, *changing)))
    owed = facts.configured and (bool(paths) or orders_a_change(facts.request))
    code = facts.checked and any(path.endswith((".py", ".pyi")) for path in paths)
    return paths if owed or code else None
