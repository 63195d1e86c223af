"""Views of steps and calls: maps with the names that `report.html` uses. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mendgraph.graph.report.history import JudgedCall, Step
from mendgraph.graph.report.prompt_cache import Prefix
from mendgraph.graph.report.texts import Texts, cost_words, seconds_words, time_words
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.display import count_of, output_words, result_words, target_of
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    JsonMap,
    LoopRecord,
    LoopVerdict,
    StopCause,
    ToolCall,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)

# --- One step

_LOOP_WORDS: Final = {
    LoopVerdict.OVERRIDE: "The action was repeated too often and is refused from here on.",
    LoopVerdict.PERSISTED: "The refused action was requested again: the run ended.",
    LoopVerdict.BROKEN: "The workspace failed: the run ended.",
    LoopVerdict.GAVE_UP: "Too many tries in a row failed: the run ended.",
}
_TIMES: Final = {"model": "model", "tools": "tools", "person": "waiting for a person", "rest": "everything else"}


def step_view(
    step: Step, at: int, scale: tuple[float, int], texts: Texts, prompt: Prefix | None = None, *, working: bool = False
) -> JsonMap:
    """Return the view of the step at place `at` of the page, with its `prompt` if known. `working`: the run is active.

    `scale` has the seconds and tokens that fill a bar; widths are percentages. `state` is ok, failed, denied, unusable
    or now.
    """
    before, after = step.spending
    inputs, outputs = step.tokens
    tries = after.usage.total_calls - before.usage.total_calls
    calls = [call_view(call, texts) for call in step.calls]

    cost = ""
    cost_usd = after.cost_usd - before.cost_usd
    if tries and cost_usd and after.unpriced_calls == before.unpriced_calls:
        cost = cost_words(cost_usd, 0)

    cached = ""
    notes = _notes(step, tries, texts)
    if prompt is not None and prompt.cached_tokens:
        cached = f" ({prompt.cached_tokens:,} from the cache)"
    if prompt is not None and prompt.broken:
        notes.append(f"Its prompt does not continue the one before: {texts.line(prompt.broken)}.")

    text = ""
    reasoning = ""
    if step.reply:
        reasoning = step.reply.reasoning
        if not step.reply.preloaded:
            text = step.reply.text

    return {
        "anchor": f"step-{at}",
        "number": step.number,
        "title": _title(step, texts, working=working),
        "state": _state(step, calls),
        "when": time_words(step.visits[0].started_at),
        "duration": seconds_words(step.seconds),
        "parts": _time_parts(step, scale[0]),
        "tokens": f"{inputs:,} in{cached}, {output_words(outputs, after.reasoning_tokens - before.reasoning_tokens)}",
        "token_parts": [
            ("in", _percent(inputs, scale[1]), f"{inputs:,} tokens in"),
            ("out", _percent(outputs, scale[1]), f"{outputs:,} tokens out"),
        ],
        "cost": cost,
        "notes": notes,
        "said": texts.shown(text),
        "reasoning": texts.shown(reasoning),
        "healing": _healing(step, texts),
        "calls": calls,
        "loop": _loop(step, texts),
    }


def _title(step: Step, texts: Texts, *, working: bool) -> str:
    if step.calls:
        return _names_of_calls(step, texts)

    if step.reply is None:
        if step.visits[-1].target:
            return "no reply"
        if working:
            return "the model is working"

        return "cut off during the model call"

    if step.of("heal"):
        return "a reply that could not be used"
    if step.of("FINISHED"):
        return "the answer"

    return "a reply"


def _names_of_calls(step: Step, texts: Texts) -> str:
    """The tools of a step's calls, each once with the number of its calls."""
    counts = Counter(texts.line(call.item.tool, 60) or "a malformed call" for call in step.calls)
    words = []

    for name, count in counts.items():
        if count > 1:
            words.append(f"{name} \N{MULTIPLICATION SIGN}{count}")
        else:
            words.append(name)

    return ", ".join(words)


def _state(step: Step, calls: Sequence[JsonMap]) -> str:
    if step.visits[-1].target == "":
        return "now"
    if step.of("heal") and not calls:
        return "unusable"
    if step.reply is None or any(call["state"] == "failed" for call in calls):
        return "failed"
    if any(call["state"] == "denied" for call in calls):
        return "denied"

    return "ok"


def _time_parts(step: Step, longest_s: float) -> list[tuple[str, float, str]]:
    seconds = dict.fromkeys(_TIMES, 0.0)
    for visit in step.visits:
        if visit.node == "call_model":
            seconds["model"] += visit.seconds
        elif visit.node == "execute_tools":
            seconds["tools"] += visit.seconds

        if visit.questions:
            seconds["person"] += visit.seconds

    seconds["rest"] = max(0.0, step.seconds - sum(seconds.values()))
    parts = []
    for name, spent in seconds.items():
        if spent > 0:
            parts.append((name, _percent(spent, longest_s), f"{_TIMES[name]}: {seconds_words(spent)}"))

    return parts


def _percent(part: float, total: float) -> float:
    if total <= 0:
        return 0.0

    return round(100 * part / total, 2)


def _notes(step: Step, tries: int, texts: Texts) -> list[str]:
    notes = []
    if any(visit.is_resumed for visit in step.visits):
        notes.append("The run was resumed here.")
    if step.reply is not None and step.reply.preloaded:
        notes.append("mendgraph made this call itself: it reads the files that a request names before the model call.")
    if tries > 1:
        notes.append(f"{count_of(tries, 'call')} of the model, including retries, fallbacks and summaries.")

    guard = step.of("guard")
    if guard:
        before = guard.before.get("permissions") or ()
        new = [permission.allows for permission in guard.after.get("permissions") or () if permission not in before]
        if new:
            notes.append(f"A person allowed for the rest of the run: {texts.line(', '.join(new))}.")

    for visit in step.visits:
        raised = visit.after.get("raised_limits") or {}
        if visit.node == "guard" and raised != (visit.before.get("raised_limits") or {}):
            name = visit.before["stop"].limit
            notes.append(f"A person raised {name} to {raised[name][1]:,}.")

        stop = visit.after.get("stop")
        if isinstance(stop, StopCause) and visit.target != "guard":
            notes.append(f"The run ended here: {texts.line(stop.message, 500)}")
            break

    return notes


def _healing(step: Step, texts: Texts) -> JsonMap | None:
    """The healing of a malformed reply: its errors, its text, the corrective prompt, and whether it was repaired."""
    visit = step.of("heal")
    if visit is None:
        return None

    errors = []
    for error in visit.before.get("errors") or ():
        where = ""
        if error.line_number:
            where = f" in line {error.line_number}"

        errors.append(texts.line(f"{error.error_type.name}{where}: {error.details}"))

    prompt = ""
    attempts: Sequence[HealingAttempt] = visit.after.get("healing_attempts") or ()
    if len(attempts) > len(visit.before.get("healing_attempts") or ()):
        prompt = attempts[-1].corrective_prompt

    content = ""
    reply = visit.before.get("reply")
    if reply:
        content = reply.text or "\n".join(f"{call.tool}({call.arguments})" for call in reply.calls)

    return {
        "errors": errors,
        "reply": texts.shown(content),
        "prompt": texts.shown(prompt),
        "rescued": visit.target == "guard",
    }


def _loop(step: Step, texts: Texts) -> JsonMap | None:
    visit = step.of("loop_check")
    if visit is None:
        return None

    loop: LoopRecord | None = visit.after.get("loop")
    if loop is None:
        return None

    overrides = []
    for override in loop.overrides:
        action = f"{override.tool} {override.target}".strip()
        overrides.append(texts.line(f"{action}: asked for {override.repeats} times and refused"))

    repeated = 0
    if loop.recent:
        for signature in loop.recent[-1]:
            count = sum(signature in signatures for signatures in loop.recent)
            repeated = max(repeated, count)

    says = _LOOP_WORDS.get(loop.verdict, "")
    if not (says or overrides or loop.failed_tries or repeated > 1):
        return None
    return {"says": says, "overrides": overrides, "failed_tries": loop.failed_tries, "repeated": repeated}


# --- One call

_VERDICTS: Final[Mapping[VerdictKind, str]] = {
    VerdictKind.ALLOW: "allowed",
    VerdictKind.DENY: "denied",
    VerdictKind.ASK: "a person must decide",
}


def call_view(call: JudgedCall, texts: Texts) -> JsonMap:
    """Return the view of a call: its arguments, its verdict and its result.

    `state` is ok, failed, denied or unknown. `verdict` and `person` are sentences, "" without a verdict or person.
    """
    item = call.item
    arguments: Mapping[str, Any]
    if isinstance(item, ToolCall):
        arguments = item.arguments
    else:
        arguments = {"text": item.raw_arguments}

    return {
        "tool": texts.line(item.tool, 80) or "a malformed call",
        "target": texts.line(target_of(arguments), 160),
        "state": _state_of_call(call),
        **_verdict_view(call, texts),
        "why": _why(item, call.verdict, texts),
        "person": _person_words(call, texts),
        "arguments": texts.fields(arguments),
        **_result_view(call.result, texts),
        "child": _child_view(call, texts),
    }


def _state_of_call(call: JudgedCall) -> str:
    if call.verdict and call.verdict.kind is VerdictKind.DENY:
        return "denied"
    if call.result is None:
        return "unknown"
    if call.result.result.ok:
        return "ok"

    return "failed"


def _verdict_view(call: JudgedCall, texts: Texts) -> JsonMap:
    if call.verdict:
        return {"verdict": _VERDICTS[call.verdict.kind], "rule": texts.line(call.verdict.rule, 80)}
    if call.request:
        return {"verdict": "waits for a person", "rule": ""}

    return {"verdict": "not judged", "rule": ""}


def _result_view(result: CallResult | None, texts: Texts) -> JsonMap:
    if result is None:
        return {"result": "", "data": [], "diffs": [], "duration": ""}

    diffs = []
    for change in result.changes:
        lines, omitted = texts.diff(change.diff)
        path = texts.line(change.path)
        diffs.append({"path": path, "kind": change.kind.value, "lines": lines, "left_out": omitted})

    duration = ""
    if result.attempts:
        duration = seconds_words(result.ms / 1_000)

    words = texts.line(result_words(result.result), 500)
    return {"result": words, "data": texts.fields(result.result.data), "diffs": diffs, "duration": duration}


def _child_view(call: JudgedCall, texts: Texts) -> list[JsonMap]:
    """The steps of the child that the call delegated to."""
    if call.child is None:
        return []

    return [step_view(step, 0, (0, 0), texts) for step in call.child.steps]


def _why(item: ToolCall | CallError, verdict: Verdict | None, texts: Texts) -> str:
    """The reason of a denial, or the error of a malformed call."""
    if verdict is not None and verdict.error is not None:
        return texts.line(verdict.error.message, 1_000)
    if isinstance(item, CallError):
        return texts.line(f"{item.error.error_type.name}: {item.error.details}", 1_000)
    return ""


def _person_words(call: JudgedCall, texts: Texts) -> str:
    if call.request is None:
        return ""
    rule = texts.line(str(call.request.get("rule") or "a rule"), 80)
    if call.verdict is None:
        return f"{rule} requires it"
    if call.verdict.kind is VerdictKind.ALLOW:
        if isinstance(call.item, ToolCall) and call.request.get("arguments") != call.item.arguments:
            return f"{rule} asked a person, who edited the arguments and approved"
        if call.verdict.hunks:
            return f"{rule} asked a person, who approved hunks {', '.join(map(str, call.verdict.hunks))} of the diff"

        return f"{rule} asked a person, who approved"

    error = call.verdict.error
    if error is not None and error.code is ToolErrorCode.CANCELLED:
        return f"{rule} asked a person, who stopped the run"

    return f"{rule} asked a person, who did not approve"
