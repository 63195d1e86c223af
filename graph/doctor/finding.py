"""What a check has found: a record with a name, a status and a remedy, and how findings are told. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


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


Check = Callable[[], Finding]


def is_fine(findings: Iterable[Finding]) -> bool:
    """Whether none of them is a problem."""
    return all(each.status is not Status.PROBLEM for each in findings)


def cleaned(finding: Finding, clean: Callable[[str], str]) -> Finding:
    """The finding with both of its texts gone through `clean`."""
    return replace(finding, found=clean(finding.found), remedy=clean(finding.remedy))


def broken(name: str, error: BaseException, seconds: float) -> Finding:
    """What is said of a check that could not be made: it took too long, or it raised."""
    if isinstance(error, TimeoutError):
        return Finding(name, Status.PROBLEM, f"no answer within {seconds:g} s", "see what hangs, and try again")
    said = f"this could not be checked ({type(error).__name__}: {error})"
    return Finding(name, Status.PROBLEM, said, "mend what it names; if that is nothing, please report it")


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings for programs, and whether none is a problem."""
    listed = list(findings)
    return {"ok": is_fine(listed), "checks": [asdict(each) for each in listed]}


def summary(findings: Iterable[Finding]) -> str:
    """The last line: how many problems and warnings there are."""
    listed = list(findings)
    counts = {status: sum(each.status is status for each in listed) for status in Status}
    problems, warnings = counts[Status.PROBLEM], counts[Status.WARNING]
    if not problems and not warnings:
        return "all is well"
    named = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in named if count)
