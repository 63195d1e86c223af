"""One step as the page shows it: its bars, the reply, its corrections, its calls, what loop control said. Pure.

Each view is a map of what `report.html` prints. What others said is made fit for a page first: no secrets, bounded
lengths.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from mendgraph.graph.report.history import Judged, Step
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.display import count_of, one_line, output_words, plain, result_words, target_of, usd
from mendgraph.nodes.records import (
    CallError,
    JsonMap,
    LoopVerdict,
    StopCause,
    ToolCall,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)

_LINE: Final = 200
"""Characters of what stands on one line."""


LONGEST_TEXT: Final = 8_000
"""Characters of one text that are shown."""


class Shown(NamedTuple):
    """A text as it stands on the page, and how many characters of it were left out at its end."""

    text: str
    left_out: int = 0


class Field(NamedTuple):
    """A named value: of a call's arguments, of a result. A `block` has lines of its own."""

    name: str
    value: Shown
    block: bool


class DiffLine(NamedTuple):
    """A line of a diff: `added`, `removed`, `same`, or `file`, `head` and `note`, which are about it."""

    kind: str
    text: str


def visible(text: str) -> str:
    """The text with control characters written as escapes; line by line, which is quicker for those that have none."""
    return "\n".join(map(plain, text.split("\n")))


@dataclass(frozen=True)
class Texts:
    """Cleans what others said."""

    redactor: Redactor

    def line(self, text: str, limit: int = _LINE) -> str:
        """On one line."""
        return one_line(self.redactor.text(text), limit)

    def shown(self, text: str, limit: int = LONGEST_TEXT) -> Shown:
        """As it is, with its lines; secrets go before anything is cut, so that half of one is never left."""
        clean = self.redactor.text(text.replace("\r\n", "\n"))
        return Shown(visible(clean[:limit]), max(0, len(clean) - limit))

    def fields(self, values: Mapping[str, Any]) -> list[Field]:
        """Each value by its name; what is no text as JSON."""
        clean = self.redactor.content(dict(values))
        named = clean if isinstance(clean, dict) else {"value": clean}
        return [self._field(name, value) for name, value in named.items() if value not in (None, "", [], {})]

    def diff(self, diff: str) -> tuple[list[DiffLine], int]:
        """The lines of a unified diff, and how many characters were left out."""
        shown = self.shown(diff.removesuffix("\n"))
        return list(_diff_lines(shown.text)), shown.left_out

    def _field(self, name: str, value: Any) -> Field:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
        if not isinstance(value, str) and len(text) < _LINE:
            text = json.dumps(value, ensure_ascii=False, default=str)
        return Field(self.line(name, 80), self.shown(text), block="\n" in text or len(text) > 100)


def _diff_lines(text: str) -> Iterator[DiffLine]:
    kinds = {"+": "added", "-": "removed", "@": "head", "\\": "note", "[": "note"}
    for number, line in enumerate(text.split("\n")):
        heading = number < 2 and line.startswith(("--- ", "+++ "))
        yield DiffLine("file" if heading else kinds.get(line[:1], "same"), line)


# --- Times and money


def seconds_words(seconds: float) -> str:
    """`0.4 ms`, `120 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms" if seconds >= 0.001 or not seconds else f"{seconds * 1_000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def time_words(time: str | datetime) -> str:
    """A time in UTC, as `2026-11-21 01:33:00 UTC`."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{moment - (moment.utcoffset() or timedelta()):%Y-%m-%d %H:%M:%S} UTC"


def cost_words(cost_usd: float, unpriced: int) -> str:
    """Money, and no guess where a price is not known."""
    if unpriced:
        return f"{f'{usd(cost_usd)} and ' if cost_usd else ''}{count_of(unpriced, 'call')} without a known price"
    return usd(cost_usd)


# --- One step

_LOOP_WORDS: Final = {
    LoopVerdict.OVERRIDE: "The same action came too often: it was refused from here on.",
    LoopVerdict.PERSISTED: "The refused action was asked for again: the run was ended.",
    LoopVerdict.BROKEN: "The workspace failed: the run was ended.",
    LoopVerdict.GAVE_UP: "Too many tries in a row had failed: the run was ended.",
}
_TIMES: Final = {"model": "model", "tools": "tools", "person": "waiting for a person", "rest": "everything else"}


class Scale(NamedTuple):
    """The longest step, in seconds, and the one with most tokens: the ends of the bars."""

    seconds: float
    tokens: int


def step_view(step: Step, at: int, scale: Scale, texts: Texts, *, working: bool = False) -> JsonMap:
    """The step, the `at`-th of the page; `working`: the run goes on.

    Widths are percentages of the bar; `state` is its look: ok, failed, denied, unusable, now.
    """
    (was, now), (inputs, outputs) = step.spending, step.tokens
    tries, cost = now.usage.total_calls - was.usage.total_calls, now.cost_usd - was.cost_usd
    priced = tries and cost and now.unpriced_calls == was.unpriced_calls
    reply, calls = step.reply, [call_view(each, texts) for each in step.calls]
    return {
        "anchor": f"step-{at}",
        "number": step.number,
        "title": _title(step, texts, working=working),
        "state": _state(step, calls),
        "when": time_words(step.began),
        "duration": seconds_words(step.seconds),
        "parts": _time_parts(step, scale),
        "tokens": f"{inputs:,} in, {output_words(outputs, now.reasoning_tokens - was.reasoning_tokens)}",
        "token_parts": [
            ("in", _percent(inputs, scale.tokens), f"{inputs:,} tokens in"),
            ("out", _percent(outputs, scale.tokens), f"{outputs:,} tokens out"),
        ],
        "cost": cost_words(cost, 0) if priced else "",
        "notes": _notes(step, tries, texts),
        "said": texts.shown(reply.text if reply and not reply.preloaded else ""),
        "reasoning": texts.shown(reply.reasoning if reply else ""),
        "healing": _healing(step, texts),
        "calls": calls,
        "loop": _loop(step, texts),
    }


def _title(step: Step, texts: Texts, *, working: bool) -> str:
    if step.calls:
        names = [texts.line(call.item.tool, 60) or "a malformed call" for call in step.calls]
        times = "\N{MULTIPLICATION SIGN}"
        return ", ".join(
            f"{name} {times}{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
        )
    if step.reply is None:
        if step.visits[-1].target:
            return "no reply"
        return "the model is at work" if working else "cut off while the model was called"
    healed = step.of("heal")
    return "a reply that could not be used" if healed else "the answer" if step.of("FINISHED") else "a reply"


def _state(step: Step, calls: Sequence[JsonMap]) -> str:
    if step.visits[-1].target == "":
        return "now"
    if step.of("heal") and not calls:
        return "unusable"
    if step.reply is None or any(call["state"] == "failed" for call in calls):
        return "failed"
    return "denied" if any(call["state"] == "denied" for call in calls) else "ok"


def _time_parts(step: Step, scale: Scale) -> list[tuple[str, float, str]]:
    parts = {
        "model": step.seconds_in("call_model"),
        "tools": step.seconds_in("execute_tools"),
        "person": sum(visit.seconds for visit in step.visits if visit.asked),
    }
    parts["rest"] = max(0.0, step.seconds - sum(parts.values()))
    return [
        (name, _percent(spent, scale.seconds), f"{_TIMES[name]}: {seconds_words(spent)}")
        for name, spent in parts.items()
        if spent > 0
    ]


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole > 0 else 0.0


def _notes(step: Step, tries: int, texts: Texts) -> list[str]:
    notes = []
    if any(visit.taken_up for visit in step.visits):
        notes.append("The run was taken up again here.")
    if step.reply is not None and step.reply.preloaded:
        notes.append("The machine asked for this itself: files that the request names are read before the model is.")
    if tries > 1:
        notes.append(f"{count_of(tries, 'call')} of the model: retries, fallbacks and summaries count as well.")
    if guard := step.of("guard"):
        before = guard.before.get("grants") or ()
        new = [f"{each.tool} {each.subject}".strip() for each in guard.after.get("grants") or () if each not in before]
        notes += [f"A person allowed for the rest of the run: {texts.line(', '.join(new))}."] if new else []
    stop = next((each for visit in step.visits if isinstance(each := visit.after.get("stop"), StopCause)), None)
    if stop is not None:
        notes.append(f"The run ended here: {texts.line(stop.message, 500)}")
    return notes


def _healing(step: Step, texts: Texts) -> JsonMap | None:
    """A reply that could not be used: why, what it was, and what the model was told; or that it was read as it is."""
    visit = step.of("heal")
    if visit is None:
        return None
    errors = [
        f"{each.error_type.name}{f' in line {each.line_number}' if each.line_number else ''}: {each.details}"
        for each in visit.before.get("errors") or ()
    ]
    attempts: Sequence[HealingAttempt] = visit.after.get("healing_attempts") or ()
    new = len(attempts) > len(visit.before.get("healing_attempts") or ())
    reply = visit.before.get("reply")
    said = reply.text or "\n".join(f"{call.tool}({call.arguments})" for call in reply.calls) if reply else ""
    return {
        "errors": list(map(texts.line, errors)),
        "reply": texts.shown(said),
        "prompt": texts.shown(attempts[-1].corrective_prompt if new else ""),
        "rescued": visit.target == "guard",
    }


def _loop(step: Step, texts: Texts) -> JsonMap | None:
    loop = step.loop
    if loop is None:
        return None
    overrides = [
        texts.line(f"{each.tool} {each.target}".strip() + f": asked for {each.repeats} times, and refused")
        for each in loop.overrides
    ]
    last = loop.recent[-1] if loop.recent else ()
    repeated = max((sum(each in signatures for signatures in loop.recent) for each in last), default=0)
    says = _LOOP_WORDS.get(loop.verdict, "")
    if not (says or overrides or loop.failed_tries or repeated > 1):
        return None
    return {"says": says, "overrides": overrides, "failed_tries": loop.failed_tries, "repeated": repeated}


# --- One call

_VERDICTS: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.ALLOW: "allowed",
    VerdictKind.DENY: "denied",
    VerdictKind.ASK: "a person has to decide",
}


def call_view(call: Judged, texts: Texts) -> JsonMap:
    """The call: what was asked, who allowed it, what came of it.

    `state` is its look: ok, failed, denied, unknown; `verdict` and `person` are words, "" where none is.
    """
    item, verdict, result = call.item, call.verdict, call.result
    arguments: Mapping[str, Any] = item.arguments if isinstance(item, ToolCall) else {"text": item.raw_arguments}
    error = result.result.error if result else None
    kind, proposed = _previewed(call)
    return {
        "tool": texts.line(item.tool, 80) or "a malformed call",
        "target": texts.line(target_of(arguments), 160),
        "state": _call_state(call),
        "verdict": _VERDICTS[verdict.kind] if verdict else "waits for a person" if call.asked else "not judged",
        "rule": texts.line(verdict.rule, 80) if verdict else "",
        "why": _why(item, verdict, texts),
        "person": _person_words(call, texts),
        "edited": _edited(call, texts),
        "arguments": texts.fields(arguments),
        "result": texts.line(result_words(result.result), 500) if result else "",
        "data": texts.fields(result.result.data) if result else [],
        "suggestions": [texts.line(each) for each in (error.suggestions if error else ())],
        "diffs": _diffs(call, texts),
        "preview": texts.fields({"proposed": proposed}) if kind in {"argv", "problem"} else [],
        "duration": _duration(result.ms, result.attempts) if result and result.attempts else "",
    }


def _call_state(call: Judged) -> str:
    if call.verdict is not None and call.verdict.kind is VerdictKind.DENY:
        return "denied"
    if call.result is None:
        return "unknown"
    return "ok" if call.result.result.ok else "failed"


def _why(item: ToolCall | CallError, verdict: Verdict | None, texts: Texts) -> str:
    """What the model was told of a denial; of a malformed call, what was wrong with it."""
    if verdict is not None and verdict.error is not None:
        return texts.line(verdict.error.message, 1_000)
    if isinstance(item, CallError):
        return texts.line(f"{item.error.error_type.name}: {item.error.details}", 1_000)
    return ""


def _person_words(call: Judged, texts: Texts) -> str:
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


def _edited(call: Judged, texts: Texts) -> list[Field]:
    """The arguments as the model had written them, where a person changed them."""
    allowed = call.verdict is not None and call.verdict.kind is VerdictKind.ALLOW
    return texts.fields((call.was or {})["arguments"]) if allowed and call.asked and _was_edited(call) else []


def _diffs(call: Judged, texts: Texts) -> list[JsonMap]:
    """What the call did to files; of one that did not run, what the person was shown that it would do."""
    changes = [(each.path, each.kind.value, each.diff) for each in (call.result.changes if call.result else ())]
    kind, text = _previewed(call)
    if not changes and kind == "diff" and text:
        changes = [(str((call.was or {}).get("path") or ""), "proposed", text)]
    shown = [(texts.line(path), kind, texts.diff(diff)) for path, kind, diff in changes]
    return [{"path": path, "kind": kind, "lines": diff[0], "left_out": diff[1]} for path, kind, diff in shown]


def _previewed(call: Judged) -> tuple[str, str]:
    """What a person was shown of a call that did not run: its kind and its text."""
    shown = (call.was or {}).get("preview")
    ran = call.result is not None and call.result.attempts > 0
    return ("", "") if ran or not isinstance(shown, Mapping) else (str(shown.get("kind")), str(shown.get("text") or ""))


def _duration(ms: int, attempts: int) -> str:
    again = f", {attempts} attempts" if attempts > 1 else ""
    return ("less than 1 ms" if ms < 1 else seconds_words(ms / 1_000)) + again
