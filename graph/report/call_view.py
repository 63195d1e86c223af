"""One call as the page shows it: what was asked, who allowed it, what came of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graph.report.amounts import seconds_words
from graph.report.steps import Judged
from graph.report.texts import DiffLine, Field, Texts
from nodes.language.call_summary import result_words, target_of
from nodes.records import CallError, ToolCall, ToolErrorCode, Verdict, VerdictKind


@dataclass(frozen=True)
class DiffView:
    """What a call did to one file."""

    path: str
    kind: str
    lines: list[DiffLine]
    left_out: int


@dataclass(frozen=True)
class CallView:
    """A call. `state` is its look: ok, failed, denied, unknown; `verdict` and `person` are words, "" where none is."""

    tool: str
    target: str
    state: str
    verdict: str
    rule: str
    why: str
    person: str
    edited: list[Field]
    arguments: list[Field]
    result: str
    data: list[Field]
    suggestions: list[str]
    diffs: list[DiffView]
    preview: list[Field]
    duration: str


def call_view(call: Judged, texts: Texts) -> CallView:
    """The call in words and blocks."""
    item, verdict, result = call.item, call.verdict, call.result
    arguments: Mapping[str, Any] = item.arguments if isinstance(item, ToolCall) else {"text": item.raw_arguments}
    error = result.result.error if result else None
    ran = result is not None and result.attempts > 0
    return CallView(
        tool=texts.line(item.tool, 80) or "a malformed call",
        target=texts.line(target_of(arguments), 160),
        state=_state(call),
        verdict=_verdict_words(call),
        rule=texts.line(verdict.rule, 80) if verdict else "",
        why=_why(item, verdict, texts),
        person=_person_words(call, texts),
        edited=_edited(call, texts),
        arguments=texts.fields(arguments),
        result=texts.line(result_words(result.result), 500) if result else "",
        data=texts.fields(result.result.data) if result else [],
        suggestions=[texts.line(each) for each in (error.suggestions if error else ())],
        diffs=_diffs(call, texts),
        preview=_preview(call, texts),
        duration=_duration(result.ms, result.attempts) if result and ran else "",
    )


def _state(call: Judged) -> str:
    if call.verdict is not None and call.verdict.kind is VerdictKind.DENY:
        return "denied"
    if call.result is None:
        return "unknown"
    return "ok" if call.result.result.ok else "failed"


def _verdict_words(call: Judged) -> str:
    if call.verdict is None:
        return "waits for a person" if call.asked else "not judged"
    words = {VerdictKind.ALLOW: "allowed", VerdictKind.DENY: "denied", VerdictKind.ASK: "a person has to decide"}
    return words[call.verdict.kind]


def _why(item: ToolCall | CallError, verdict: Verdict | None, texts: Texts) -> str:
    """What the model was told of a denial; of a malformed call, what was wrong with it."""
    if verdict is not None and verdict.error is not None:
        return texts.line(verdict.error.message, 1_000)
    if isinstance(item, CallError):
        return texts.line(f"{item.error.error_type.name}: {item.error.details}", 1_000)
    return ""


def _person_words(call: Judged, texts: Texts) -> str:
    """What a person was asked, and answered."""
    if not call.asked:
        return "a person had allowed it for this run" if call.granted else ""
    rule = texts.line(str((call.was or {}).get("rule") or "a rule"), 80)
    if call.verdict is None:
        return f"{rule} asks for it"
    asked = f"{rule} asked a person"
    if call.verdict.kind is VerdictKind.ALLOW:
        return f"{asked}, who {'edited the arguments and approved' if _was_edited(call) else 'approved'}"
    error = call.verdict.error
    stopped = error is not None and error.code is ToolErrorCode.CANCELLED
    return f"{asked}, who {'stopped the run' if stopped else 'did not approve'}"


def _was_edited(call: Judged) -> bool:
    was = (call.was or {}).get("arguments")
    return isinstance(call.item, ToolCall) and isinstance(was, Mapping) and dict(was) != call.item.arguments


def _diffs(call: Judged, texts: Texts) -> list[DiffView]:
    """What the call did to files; of one that did not run, what the person was shown that it would do."""
    if call.result is not None and call.result.changes:
        changes = call.result.changes
        return [DiffView(texts.line(each.path), each.kind.value, *texts.diff(each.diff)) for each in changes]
    kind, text = _previewed(call)
    if kind != "diff" or not text:
        return []
    return [DiffView(texts.line(str((call.was or {}).get("path") or "")), "proposed", *texts.diff(text))]


def _preview(call: Judged, texts: Texts) -> list[Field]:
    """What the person was shown in place of a diff, where the call did not run."""
    kind, text = _previewed(call)
    return texts.fields({"proposed": text}) if kind in {"argv", "problem"} else []


def _previewed(call: Judged) -> tuple[str, str]:
    shown = (call.was or {}).get("preview")
    ran = call.result is not None and call.result.attempts > 0
    if ran or not isinstance(shown, Mapping):
        return "", ""
    return str(shown.get("kind")), str(shown.get("text") or "")


def _edited(call: Judged, texts: Texts) -> list[Field]:
    """The arguments as the model had written them, where a person changed them."""
    if call.verdict is None or call.verdict.kind is not VerdictKind.ALLOW or not call.asked or not _was_edited(call):
        return []
    return texts.fields((call.was or {})["arguments"])


def _duration(ms: int, attempts: int) -> str:
    again = f", {attempts} attempts" if attempts > 1 else ""
    return ("less than 1 ms" if ms < 1 else seconds_words(ms / 1_000)) + again
