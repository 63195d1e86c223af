"""What a check of `mendgraph doctor` finds: what there is, how that stands, and a remedy. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mendgraph.nodes.language.display import count_of


class Status(StrEnum):
    """How it stands: fine; worth knowing; no run goes well with it; or not there, and not needed either."""

    OK, WARNING, PROBLEM, OFF = "ok", "warning", "problem", "off"


@dataclass(frozen=True)
class Finding:
    """One check: `found` says what there is, `remedy` what to do, "" where nothing is to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def fine(found: str) -> Finding:
    """A check that went well."""
    return Finding("", Status.OK, found)


def warning(found: str, remedy: str) -> Finding:
    """Something worth knowing."""
    return Finding("", Status.WARNING, found, remedy)


def problem(found: str, remedy: str) -> Finding:
    """Something with which no run goes well."""
    return Finding("", Status.PROBLEM, found, remedy)


def off(found: str, remedy: str = "") -> Finding:
    """Something that is not there, and not needed either."""
    return Finding("", Status.OFF, found, remedy)


def is_fine(findings: Iterable[Finding]) -> bool:
    """Whether none of them is a problem."""
    return all(each.status is not Status.PROBLEM for each in findings)


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings for programs, and whether none is a problem."""
    listed = list(findings)
    return {"ok": is_fine(listed), "checks": [*map(asdict, listed)]}


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many problems and warnings there are."""
    counts = Counter(each.status for each in findings)
    told = [(counts[Status.PROBLEM], "problem"), (counts[Status.WARNING], "warning")]
    return ", ".join(count_of(count, word) for count, word in told if count) or "all is well"
