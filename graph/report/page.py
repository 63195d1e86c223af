"""The report of a run as one page: HTML that needs no network, no script and no other file.

Each view is a map of what `report.html` prints. What others said is made fit for it: no secrets, bounded lengths.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib import metadata, resources
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.redaction import CurrentRedactor
from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.graph.report.history import Course, History, Judged, Step, course_of, read_history
from mendgraph.graph.report.picture import draw
from mendgraph.graph.runs.run_words import command_line
from mendgraph.graph.runs.runs import ListedRun, RunState, get_run, list_runs, with_store
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.files.sandbox import StrPath
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.display import (
    count_of,
    one_line,
    output_words,
    plain,
    result_words,
    short_id,
    target_of,
    usd,
)
from mendgraph.nodes.records import (
    CallError,
    JsonMap,
    LoopRecord,
    LoopVerdict,
    Outcome,
    Plan,
    StopCause,
    ToolCall,
    ToolError,
    ToolErrorCode,
    Verdict,
    VerdictKind,
)

MOST_STEPS: Final = 300
"""Of a page; of more the last are shown."""

_LOOKS: Final = {
    RunState.FINISHED: "good",
    RunState.STOPPED: "warn",
    RunState.FAILED: "bad",
    RunState.CUT_OFF: "warn",
    "FINISHED": "good",
    "BUDGET_STOP": "warn",
    "SYSTEM_ERROR": "bad",
}
_STANDINGS: Final = {
    RunState.WORKING: "It is at work: this page shows what was on the disk when it was made.",
    RunState.ASKS: "It waits for a person to decide about the calls of its last step.",
    RunState.CUT_OFF: "It was cut off: its process ended before the turn did.",
    RunState.FORKED: "It was forked from another run, and has not gone on yet.",
}


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

    def diff(self, diff: str) -> tuple[list[tuple[str, str]], int]:
        """The lines of a unified diff, and how many characters were left out.

        A line is `added`, `removed`, `same`, or `file`, `head` and `note`, which are about it.
        """
        text = self.shown(diff.removesuffix("\n"))
        kinds = {"+": "added", "-": "removed", "@": "head", "\\": "note", "[": "note"}
        lines = []
        for number, line in enumerate(text.text.split("\n")):
            heading = number < 2 and line.startswith(("--- ", "+++ "))
            lines.append(("file" if heading else kinds.get(line[:1], "same"), line))
        return lines, text.left_out

    def _field(self, name: str, value: Any) -> Field:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
        if not isinstance(value, str) and len(text) < _LINE:
            text = json.dumps(value, ensure_ascii=False, default=str)
        return Field(self.line(name, 80), self.shown(text), block="\n" in text or len(text) > 100)


# --- Times and money


def seconds_words(seconds: float) -> str:
    """`0.4 ms`, `120 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms" if seconds >= 0.001 or not seconds else f"{seconds * 1_000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {seconds_left} s"


def time_words(time: str | datetime) -> str:
    """A time in UTC, as `2026-11-21 01:33:00 UTC`."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{moment - (moment.utcoffset() or timedelta()):%Y-%m-%d %H:%M:%S} UTC"


def cost_words(cost_usd: float, unpriced: int) -> str:
    """Money, and no guess where a price is not known."""
    if unpriced:
        return f"{f'{usd(cost_usd)} and ' if cost_usd else ''}{count_of(unpriced, 'call')} without a known price"
    return usd(cost_usd)


# --- The page


def report_html(run: str = "", workspace: StrPath = ".", *, secrets: Sequence[str] = ()) -> str | ToolError:
    """The page of a run's report; the run is named by its id or the beginning of it, by default it is the newest one.

    Nothing is changed, and a run that is at work goes on: the page shows what is on the disk. `secrets` are values that
    it does not show, beside those of the environment and whatever has a secret's shape.

    Returns:
        The page; NOT_FOUND or INVALID_ARGUMENT where no single run is meant, IO_ERROR where the store cannot be read.
    """
    report_made = make_report(run, workspace, secrets=secrets)
    return report_made if isinstance(report_made, ToolError) else report_made[1]


def make_report(run: str = "", workspace: StrPath = ".", *, secrets: Sequence[str] = ()) -> tuple[str, str] | ToolError:
    """The id of the run, and the page."""
    if not run:
        if isinstance(listed := list_runs(workspace), ToolError):
            return listed
        if not listed:
            return ToolError(code=ToolErrorCode.NOT_FOUND, message="There are no runs of this folder yet.")
        run = listed[0].run_id
    if isinstance(run_record := get_run(run, workspace), ToolError):
        return run_record
    history = with_store(workspace, lambda store: read_history(store.saver, run_record.run_id))
    if isinstance(history, ToolError):
        return history
    redactor = CurrentRedactor(secrets).now()
    return run_record.run_id, _rendered(page_view(run_record, history, str(workspace), Texts(redactor)), redactor)


def _rendered(view: JsonMap, redactor: Redactor) -> str:
    """Everything that the template prints passes `finalize`: what forgot to be cleaned before is cleaned there."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return visible(redactor.text(value)) if type(value) is str else value

    folder = resources.files("mendgraph.graph.report")
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    digest = b64encode(sha256(style.encode()).digest()).decode()
    page = template.render(view=view, style=Markup(style), style_hash=Markup(digest))  # noqa: S704 - ours
    return f"{page.strip()}\n"


def page_view(run: ListedRun, history: History, root: str, texts: Texts) -> JsonMap:
    """All that the page shows of a run: words, bars and the picture, by the names that `report.html` has for them."""
    context: AgentContext = history.values.get("context") or run.context
    spending: Spending = history.values.get("spending") or Spending()
    plan = history.values.get("plan") or Plan()
    course = course_of(history, begun=run.standing is not RunState.FORKED)
    return {
        "title": texts.line(run.task, 80),
        "task": texts.shown(run.task, 2_000),
        "standing": str(run.standing),
        "look": _LOOKS.get(run.standing, "calm"),
        "standing_says": _STANDINGS.get(run.standing, ""),
        "end": _last_end(run, history, course, texts),
        "facts": [(name, texts.line(value, 500)) for name, value in _facts(run, context, course)],
        "settings": _settings(context, texts),
        "picture": draw(course.edges, course.visited, course.at),
        "edges": [{**edge._asdict(), "count": course.edges.get(edge, 0)} for edge in TRANSITIONS],
        "turns": _turns(course, texts, working=run.standing is RunState.WORKING),
        "steps": len(course.steps),
        "totals": _totals(run, spending, course),
        "bars": [
            ("The last turn", turn_bars(spending, context)),
            ("The whole session", session_bars(spending, context)),
        ],
        "plan": [(step.status.value.replace("_", " "), texts.line(step.title)) for step in plan.steps],
        "files": [texts.line(path, 500) for path in run.files],
        "commands": [(what, command_line(root, *words)) for what, *words in _commands(run, course)],
        "gaps": list(_gaps(run, course)),
        "version": metadata.version("mendgraph"),
        "made": time_words(datetime.now(UTC)),
    }


def _facts(run: ListedRun, context: AgentContext, course: Course) -> list[tuple[str, str]]:
    models = {step.reply.model for step in course.steps if step.reply and step.reply.model}
    facts = [
        ("Begun", time_words(run.created)),
        ("Last at work", time_words(run.updated)),
        ("Model", ", ".join(sorted(models)) or context.model or "found from the environment"),
        ("Mode", context.mode),
        ("Run", run.run_id),
        ("Workspace", context.workspace),
        ("Requests", str(run.turns)),
    ]
    return [*facts, ("Forked from", f"run {short_id(run.parent)} after step {run.forked_at}")] if run.parent else facts


def _settings(context: AgentContext, texts: Texts) -> list[tuple[str, str]]:
    settings = context.model_dump(mode="json", exclude_defaults=True, exclude={"workspace", "mode", "model"})
    return [(field.name, texts.line(field.value.text, 500)) for field in texts.fields(settings)]


def _totals(run: ListedRun, spending: Spending, course: Course) -> list[tuple[str, str]]:
    steps, usage, files = course.steps, spending.usage, len(run.files)
    tokens = usage.total_input_tokens + usage.total_output_tokens
    counts = [*([("step", len(steps))] if steps else []), ("model call", usage.total_calls), ("token", tokens)]
    totals = [(name if number == 1 else f"{name}s", f"{number:,}") for name, number in counts]
    totals += [("in its steps", seconds_words(sum(step.seconds for step in steps)))] if steps else []
    repairs = [(name.replace("_", " "), f"{number:,}") for name, number in spending.mending.counts().items()]
    return [*totals, *repairs, ("file changed" if files == 1 else "files changed", f"{files:,}")]


def _turns(course: Course, texts: Texts, *, working: bool) -> list[JsonMap]:
    """Each request with its steps and its ends; of very many steps the first are left out."""
    steps = course.steps
    longest_s = max((step.seconds for step in steps), default=0.0)
    scale = longest_s, max((sum(step.tokens) for step in steps), default=0)
    at, left_out, turns = 0, max(0, len(steps) - MOST_STEPS), []
    for turn in course.turns:
        places = range(at + 1, at + len(turn.steps) + 1)
        at += len(turn.steps)
        steps_shown = [(place, step) for place, step in zip(places, turn.steps, strict=True) if place > left_out]
        turns.append(
            {
                "number": turn.number,
                "request": texts.shown(turn.request or ""),
                "steps": [step_view(step, place, scale, texts, working=working) for place, step in steps_shown],
                "left_out": len(turn.steps) - len(steps_shown),
                "ends": [_end(outcome, texts) for outcome in turn.outcomes],
            }
        )
    return turns


def _last_end(run: ListedRun, history: History, course: Course, texts: Texts) -> JsonMap | None:
    """How it ended; as the list of runs has it where no checkpoint tells of that."""
    if run.state != "ended" or not run.kind:
        return None
    ends = [outcome for turn in course.turns for outcome in turn.outcomes]
    last: Outcome | None = ends[-1] if ends else history.values.get("outcome")
    if last is not None and last.reason.value == run.reason:
        return _end(last, texts)
    details: JsonMap = {name: [] for name in ("diagnostics", "value", "ran", "refused")}
    details |= {"kind": run.kind, "reason": run.reason, "look": _LOOKS.get(run.kind, "warn"), "advice": ""}
    details |= {"message": texts.shown(run.message), "changed": [texts.line(path, 500) for path in run.changed]}
    return details | {"answer": None if run.answer == run.message else texts.shown(run.answer)}


def _end(outcome: Outcome, texts: Texts) -> JsonMap:
    gone = {mark.path for mark in outcome.marks if mark.kind in {"deleted", "tests_deleted"}}
    return {
        "kind": outcome.kind.value,
        "reason": outcome.reason.value,
        "look": _LOOKS[outcome.kind.value],
        "message": texts.shown(outcome.message),
        "diagnostics": [texts.line(diagnostic, 1_000) for diagnostic in outcome.diagnostics],
        "value": [] if outcome.value is None else texts.fields({"value": outcome.value}),
        "ran": [texts.line(line, 500) for line in (*outcome.verified.ran, *outcome.verified.lines)],
        "refused": [texts.line(refusal, 500) for refusal in outcome.refused],
        "answer": None if outcome.answer == outcome.message else texts.shown(outcome.answer),
        "changed": [texts.line(path, 500) + " (deleted)" * (path in gone) for path in outcome.changed_files],
        "advice": texts.line(outcome.how_to_go_on, 2_000),
    }


def _commands(run: ListedRun, course: Course) -> Iterator[tuple[str, ...]]:
    short = short_id(run.run_id)
    if run.standing is RunState.ASKS:
        yield "Answer the question, and go on", "resume", short
    elif run.standing is RunState.WORKING:
        yield "Make this page again, later", "report", short, "--force"
    elif run.resumable:
        yield "Go on from where it is", "resume", short
    if run.standing is not RunState.WORKING:
        yield "Send it another request", "chat", "--run", short
    if run.files:
        yield "Restore the files as they were before it", "undo", short
    if course.steps:
        first = min(step.number for step in course.steps)
        yield "Begin a new run after one of its steps", "fork", short, "--at", str(first)
    yield "Show its steps in the terminal", "runs", "show", short


def _gaps(run: ListedRun, course: Course) -> Iterator[str]:
    if run.durability == "exit":
        yield (
            "Not every step was kept (durability exit writes a turn down when it has ended), so the picture, the"
            " counts and the steps show only what is known."
        )
    if run.parent:
        yield f"What it has from run {short_id(run.parent)}, up to step {run.forked_at}, is in that run's report."
    if run.standing is RunState.CUT_OFF and course.at:
        yield f"It was cut off in {course.at}: whether that did anything is not in its checkpoints."


# --- Budgets


def session_bars(spending: Spending, context: AgentContext) -> list[JsonMap]:
    """What the thread has used in all its turns."""
    usage, cost = spending.usage, cost_words(spending.cost_usd, spending.unpriced_calls)
    return [
        _bar("Model calls", usage.total_calls, context.max_calls_per_session),
        _bar("Input tokens", usage.total_input_tokens, context.max_input_tokens_per_session),
        _bar("Output tokens", usage.total_output_tokens, context.max_output_tokens_per_session),
        _bar("Cost", spending.cost_usd, context.max_cost_usd) | {"used": cost},
    ]


def turn_bars(spending: Spending, context: AgentContext) -> list[JsonMap]:
    """What the last turn has used."""
    now, start = spending.usage, spending.at_turn_start
    inputs = now.total_input_tokens - start.total_input_tokens
    outputs = now.total_output_tokens - start.total_output_tokens
    most_s = context.max_seconds
    time = {"used": seconds_words(spending.seconds), "limit": seconds_words(most_s) if most_s else ""}
    return [
        _bar("Model calls", now.calls_in_current_turn, context.max_calls_per_turn),
        _bar("Input tokens", inputs, context.max_input_tokens_per_turn),
        _bar("Output tokens", outputs, context.max_output_tokens_per_turn),
        _bar("Rounds of tools", spending.steps, context.max_steps),
        _bar("Time in model and tools", spending.seconds, most_s) | time,
    ]


def _bar(name: str, used: float, limit: float | None) -> JsonMap:
    """One budget: what was used of which limit, both in words, and as a share; `state` says how near the limit is."""
    share = None if limit is None else used / limit
    state = "ok" if share is None or share < 0.8 else "near" if share < 1 else "full"
    words = {"name": name, "used": f"{used:,}", "limit": "" if limit is None else f"{limit:,}"}
    return {**words, "share": share, "state": state}


# --- One step

_LOOP_WORDS: Final = {
    LoopVerdict.OVERRIDE: "The same action came too often: it was refused from here on.",
    LoopVerdict.PERSISTED: "The refused action was asked for again: the run was ended.",
    LoopVerdict.BROKEN: "The workspace failed: the run was ended.",
    LoopVerdict.GAVE_UP: "Too many tries in a row had failed: the run was ended.",
}
_TIMES: Final = {"model": "model", "tools": "tools", "person": "waiting for a person", "rest": "everything else"}


def step_view(step: Step, at: int, scale: tuple[float, int], texts: Texts, *, working: bool = False) -> JsonMap:
    """The step, the `at`-th of the page; `working`: the run goes on. `scale` is where the bars of time and tokens end.

    Widths are percentages of the bar; `state` is its look: ok, failed, denied, unusable, now.
    """
    (was, now), (inputs, outputs) = step.spending, step.tokens
    tries, cost = now.usage.total_calls - was.usage.total_calls, now.cost_usd - was.cost_usd
    priced = tries and cost and now.unpriced_calls == was.unpriced_calls
    reply, calls = step.reply, [call_view(call, texts) for call in step.calls]
    return {
        "anchor": f"step-{at}",
        "number": step.number,
        "title": _title(step, texts, working=working),
        "state": _state(step, calls),
        "when": time_words(step.visits[0].began),
        "duration": seconds_words(step.seconds),
        "parts": _time_parts(step, scale[0]),
        "tokens": f"{inputs:,} in, {output_words(outputs, now.reasoning_tokens - was.reasoning_tokens)}",
        "token_parts": [
            ("in", _percent(inputs, scale[1]), f"{inputs:,} tokens in"),
            ("out", _percent(outputs, scale[1]), f"{outputs:,} tokens out"),
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


def _time_parts(step: Step, longest_s: float) -> list[tuple[str, float, str]]:
    parts = {
        "model": sum(visit.seconds for visit in step.visits if visit.node == "call_model"),
        "tools": sum(visit.seconds for visit in step.visits if visit.node == "execute_tools"),
        "person": sum(visit.seconds for visit in step.visits if visit.asked),
    }
    parts["rest"] = max(0.0, step.seconds - sum(parts.values()))
    return [
        (name, _percent(spent, longest_s), f"{_TIMES[name]}: {seconds_words(spent)}")
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
        before = guard.before.get("permissions") or ()
        new = [permission.allows for permission in guard.after.get("permissions") or () if permission not in before]
        notes += [f"A person allowed for the rest of the run: {texts.line(', '.join(new))}."] if new else []
    stop = next((cause for visit in step.visits if isinstance(cause := visit.after.get("stop"), StopCause)), None)
    if stop is not None:
        notes.append(f"The run ended here: {texts.line(stop.message, 500)}")
    return notes


def _healing(step: Step, texts: Texts) -> JsonMap | None:
    """A reply that could not be used: why, what it was, and what the model was told; or that it was read as it is."""
    visit = step.of("heal")
    if visit is None:
        return None
    errors = [
        f"{error.error_type.name}{f' in line {error.line_number}' if error.line_number else ''}: {error.details}"
        for error in visit.before.get("errors") or ()
    ]
    attempts: Sequence[HealingAttempt] = visit.after.get("healing_attempts") or ()
    new = len(attempts) > len(visit.before.get("healing_attempts") or ())
    reply = visit.before.get("reply")
    content = reply.text or "\n".join(f"{call.tool}({call.arguments})" for call in reply.calls) if reply else ""
    return {
        "errors": list(map(texts.line, errors)),
        "reply": texts.shown(content),
        "prompt": texts.shown(attempts[-1].corrective_prompt if new else ""),
        "rescued": visit.target == "guard",
    }


def _loop(step: Step, texts: Texts) -> JsonMap | None:
    visit = step.of("loop_check")
    loop: LoopRecord | None = visit.after.get("loop") if visit else None
    if loop is None:
        return None
    overrides = [
        texts.line(f"{override.tool} {override.target}".strip() + f": asked for {override.repeats} times, and refused")
        for override in loop.overrides
    ]
    last = loop.recent[-1] if loop.recent else ()
    repeated = max((sum(signature in signatures for signatures in loop.recent) for signature in last), default=0)
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
    diffs = [(change, *texts.diff(change.diff)) for change in (result.changes if result else ())]
    state = "unknown" if result is None else "ok" if result.result.ok else "failed"
    return {
        "tool": texts.line(item.tool, 80) or "a malformed call",
        "target": texts.line(target_of(arguments), 160),
        "state": "denied" if verdict and verdict.kind is VerdictKind.DENY else state,
        "verdict": _VERDICTS[verdict.kind] if verdict else "waits for a person" if call.was else "not judged",
        "rule": texts.line(verdict.rule, 80) if verdict else "",
        "why": _why(item, verdict, texts),
        "person": _person_words(call, texts),
        "arguments": texts.fields(arguments),
        "result": texts.line(result_words(result.result), 500) if result else "",
        "data": texts.fields(result.result.data) if result else [],
        "diffs": [
            {"path": texts.line(change.path), "kind": change.kind.value, "lines": lines, "left_out": left_out}
            for change, lines, left_out in diffs
        ],
        "duration": seconds_words(result.ms / 1_000) if result and result.attempts else "",
        "child": [step_view(step, 0, (0, 0), texts) for step in call.child.steps] if call.child else [],
    }


def _why(item: ToolCall | CallError, verdict: Verdict | None, texts: Texts) -> str:
    """What the model was told of a denial; of a malformed call, what was wrong with it."""
    if verdict is not None and verdict.error is not None:
        return texts.line(verdict.error.message, 1_000)
    if isinstance(item, CallError):
        return texts.line(f"{item.error.error_type.name}: {item.error.details}", 1_000)
    return ""


def _person_words(call: Judged, texts: Texts) -> str:
    if call.was is None:
        return ""
    rule = texts.line(str(call.was.get("rule") or "a rule"), 80)
    if call.verdict is None:
        return f"{rule} asks for it"
    if call.verdict.kind is VerdictKind.ALLOW:
        edited = isinstance(call.item, ToolCall) and call.was.get("arguments") != call.item.arguments
        return f"{rule} asked a person, who {'edited the arguments and approved' if edited else 'approved'}"
    stopped = (error := call.verdict.error) is not None and error.code is ToolErrorCode.CANCELLED
    return f"{rule} asked a person, who {'stopped the run' if stopped else 'did not approve'}"
