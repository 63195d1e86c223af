"""The report of a run as one HTML page without scripts, network access or other files.

Each view is a map with the names that `report.html` uses. Texts are redacted, and cut to a length.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata, resources
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.redaction import CurrentRedactor
from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.graph.report.history import History, Transcript, read_history, transcript_of
from mendgraph.graph.report.picture import draw
from mendgraph.graph.report.prompt_cache import cache_object, prefixes
from mendgraph.graph.report.step_views import step_view
from mendgraph.graph.report.texts import Field, Texts, cost_words, seconds_words, time_words, visible
from mendgraph.graph.runs.run_words import command_line
from mendgraph.graph.runs.runs import ListedRun, RunState, get_run, list_runs, with_store
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.display import short_id
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind, Plan, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.sandbox import StrPath

MOST_STEPS: Final = 300
"""The most steps of a page; the last ones are shown."""

_STYLES: Final = {
    RunState.FINISHED: "good",
    RunState.STOPPED: "warn",
    RunState.FAILED: "bad",
    RunState.CUT_OFF: "warn",
    "FINISHED": "good",
    "BUDGET_STOP": "warn",
    "SYSTEM_ERROR": "bad",
}
_STATE_SENTENCES: Final = {
    RunState.WORKING: "It is working: this page shows its state when the page was written.",
    RunState.ASKS: "It waits for a person to approve the calls of its last step.",
    RunState.CUT_OFF: "It was cut off: its process ended before the turn did.",
    RunState.FORKED: "It was forked from another run, and has not continued yet.",
}


# --- The page


def report_html(run: str = "", workspace: StrPath = ".", *, secrets: Sequence[str] = ()) -> str | ToolError:
    """Return the HTML page of a run's report; `run` is its id or the beginning of it, by default the newest run.

    Nothing is changed, and an active run continues: the page shows what is on the disk. `secrets` are values to redact,
    beside those of the environment and all that look like secrets.

    Returns:
        The page; NOT_FOUND or INVALID_ARGUMENT if no run or several match, IO_ERROR if the store cannot be read.
    """
    report = make_report(run, workspace, secrets=secrets)
    if isinstance(report, ToolError):
        return report

    return report.page


class Report(NamedTuple):
    """The page of a run, and its use of the provider's cache as an object."""

    run_id: str
    page: str
    cache: JsonMap


def make_report(run: str = "", workspace: StrPath = ".", *, secrets: Sequence[str] = ()) -> Report | ToolError:
    """Return the report of a run; see `report_html`."""
    if not run:
        runs = list_runs(workspace)
        if isinstance(runs, ToolError):
            return runs
        if not runs:
            return ToolError(code=ToolErrorCode.NOT_FOUND, message="This folder has no runs yet.")

        run = runs[0].run_id

    run_record = get_run(run, workspace)
    if isinstance(run_record, ToolError):
        return run_record

    history = with_store(workspace, lambda store: read_history(store.saver, run_record.run_id))
    if isinstance(history, ToolError):
        return history

    redactor = CurrentRedactor(secrets).now()
    page = _rendered(page_view(run_record, history, str(workspace), Texts(redactor)), redactor)
    spending = history.values.get("spending") or Spending()
    return Report(run_record.run_id, page, cache_object(spending, transcript_of(history).steps))


def _rendered(view: JsonMap, redactor: Redactor) -> str:
    """Render the template; `finalize` redacts all texts again, should a view have omitted it."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if type(value) is str:
            return visible(redactor.text(value))

        return value

    folder = resources.files("mendgraph.graph.report")
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(folder.joinpath("report.html").read_text(encoding="utf-8"))
    digest = b64encode(sha256(style.encode()).digest()).decode()
    page = template.render(view=view, style=Markup(style), style_hash=Markup(digest))  # noqa: S704 - ours
    return f"{page.strip()}\n"


def page_view(run: ListedRun, history: History, root: str, texts: Texts) -> JsonMap:
    """Return the view of a run: its texts, bars and picture."""
    context: AgentContext = history.values.get("context") or run.context
    spending: Spending = history.values.get("spending") or Spending()
    plan = history.values.get("plan") or Plan()
    transcript = transcript_of(history, has_begun=run.standing is not RunState.FORKED)
    outcome = _last_outcome(run, history, transcript)

    return {
        "title": texts.line(run.task, 80),
        "task": texts.shown(run.task, 2_000),
        "standing": str(run.standing),
        "look": _STYLES.get(run.standing, "calm"),
        "standing_says": _STATE_SENTENCES.get(run.standing, ""),
        "end": outcome and _outcome_view(outcome, texts),
        "facts": [(name, texts.line(value, 500)) for name, value in _facts(run, context, transcript)],
        "settings": _settings(context, texts),
        "picture": draw(transcript.edges, transcript.visited, transcript.at),
        "edges": [{**edge._asdict(), "count": transcript.edges.get(edge, 0)} for edge in TRANSITIONS],
        "turns": _turns(transcript, texts, working=run.standing is RunState.WORKING),
        "steps": len(transcript.steps),
        "totals": _totals(run, spending, transcript),
        "bars": [
            ("The last turn", turn_bars(spending, context)),
            ("The whole session", session_bars(spending, context)),
        ],
        "plan": [(step.status.value.replace("_", " "), texts.line(step.title)) for step in plan.steps],
        "files": [texts.line(path, 500) for path in run.files],
        "commands": [(what, command_line(root, *words)) for what, *words in _commands(run, transcript)],
        "gaps": list(_gaps(run, transcript)),
        "version": metadata.version("mendgraph"),
        "made": time_words(datetime.now(UTC)),
    }


def _facts(run: ListedRun, context: AgentContext, transcript: Transcript) -> list[tuple[str, str]]:
    models = {step.reply.model for step in transcript.steps if step.reply and step.reply.model}
    facts = [
        ("Begun", time_words(run.created)),
        ("Last at work", time_words(run.updated)),
        ("Model", ", ".join(sorted(models)) or context.model or "from the environment"),
        ("Mode", context.mode),
        ("Run", run.run_id),
        ("Workspace", context.workspace),
        ("Requests", str(run.turns)),
    ]
    if run.parent:
        facts.append(("Forked from", f"run {short_id(run.parent)} after step {run.forked_at}"))

    return facts


def _settings(context: AgentContext, texts: Texts) -> list[tuple[str, str]]:
    settings = context.model_dump(mode="json", exclude_defaults=True, exclude={"workspace", "mode", "model"})
    return [(field.name, texts.line(field.value.text, 500)) for field in texts.fields(settings)]


def _totals(run: ListedRun, spending: Spending, transcript: Transcript) -> list[tuple[str, str]]:
    steps = transcript.steps
    usage = spending.usage
    totals = []
    if steps:
        totals.append(_total("step", len(steps)))

    totals.append(_total("model call", usage.total_calls))
    totals.append(_total("token", usage.total_input_tokens + usage.total_output_tokens))
    if spending.cached_tokens:
        totals.append(("of the input from the cache", f"{spending.cached_tokens / usage.total_input_tokens:.0%}"))

    if steps:
        totals.append(("in its steps", seconds_words(sum(step.seconds for step in steps))))

    for name, number in spending.mending.counts().items():
        totals.append((name.replace("_", " "), f"{number:,}"))

    word = "files changed"
    if len(run.files) == 1:
        word = "file changed"

    return [*totals, (word, f"{len(run.files):,}")]


def _total(noun: str, number: int) -> tuple[str, str]:
    """Return the noun, plural unless the number is 1, and the number."""
    if number == 1:
        return noun, "1"

    return f"{noun}s", f"{number:,}"


def _turns(transcript: Transcript, texts: Texts, *, working: bool) -> list[JsonMap]:
    """Return each request with its steps and outcomes; of more than `MOST_STEPS` steps the first are omitted."""
    steps = transcript.steps
    longest_s = max((step.seconds for step in steps), default=0.0)
    scale = longest_s, max((sum(step.tokens) for step in steps), default=0)
    omitted = max(0, len(steps) - MOST_STEPS)
    prompts = {prefix.step: prefix for prefix in prefixes(steps)}
    place = 0
    turns = []

    for turn in transcript.turns:
        views = []
        for step in turn.steps:
            place += 1
            if place > omitted:
                views.append(step_view(step, place, scale, texts, prompts.get(step.number), working=working))

        turns.append(
            {
                "number": turn.number,
                "request": texts.shown(turn.request or ""),
                "steps": views,
                "left_out": len(turn.steps) - len(views),
                "ends": [_outcome_view(outcome, texts) for outcome in turn.outcomes],
            }
        )

    return turns


def _last_outcome(run: ListedRun, history: History, transcript: Transcript) -> Outcome | None:
    """Return the last outcome, from the list of runs if no checkpoint has it; None if the run has not ended."""
    if run.state != "ended" or not run.kind:
        return None

    last: Outcome | None = history.values.get("outcome")
    for turn in transcript.turns:
        for outcome in turn.outcomes:
            last = outcome

    if last is not None and last.reason.value == run.reason:
        return last

    return Outcome.model_construct(  # the reason of a run that was undone is no StopReason
        kind=OutcomeKind(run.kind),
        reason=run.reason,
        message=run.message,
        answer=run.answer,
        changed_files=run.changed,
    )


def _outcome_view(outcome: Outcome, texts: Texts) -> JsonMap:
    value: list[Field] = []
    if outcome.value is not None:
        value = texts.fields({"value": outcome.value})

    answer = None
    if outcome.answer != outcome.message:
        answer = texts.shown(outcome.answer)

    deleted = {mark.path for mark in outcome.marks if mark.kind in {"deleted", "tests_deleted"}}
    changed = []
    for path in outcome.changed_files:
        line = texts.line(path, 500)
        if path in deleted:
            line += " (deleted)"

        changed.append(line)

    return {
        "kind": outcome.kind.value,
        "reason": str(outcome.reason),
        "look": _STYLES[outcome.kind.value],
        "message": texts.shown(outcome.message),
        "diagnostics": [texts.line(diagnostic, 1_000) for diagnostic in outcome.diagnostics],
        "value": value,
        "ran": [texts.line(line, 500) for line in (*outcome.verified.ran, *outcome.verified.lines)],
        "refused": [texts.line(refusal, 500) for refusal in outcome.refused],
        "answer": answer,
        "changed": changed,
        "advice": texts.line(outcome.how_to_go_on, 2_000),
    }


def _commands(run: ListedRun, transcript: Transcript) -> Iterator[tuple[str, ...]]:
    short = short_id(run.run_id)
    if run.standing is RunState.ASKS:
        yield "Answer the question and continue", "resume", short
    elif run.standing is RunState.WORKING:
        yield "Write this page again", "report", short, "--force"
    elif run.resumable:
        yield "Continue it", "resume", short
    if run.standing is not RunState.WORKING:
        yield "Send another request", "chat", "--run", short
    if run.files:
        yield "Undo its changes", "undo", short
    if transcript.steps:
        first = min(step.number for step in transcript.steps)
        yield "Start a new run after one of its steps", "fork", short, "--at", str(first)
    yield "Show its steps in the terminal", "runs", "show", short


def _gaps(run: ListedRun, transcript: Transcript) -> Iterator[str]:
    if run.durability == "exit":
        yield (
            "Not every step is stored (durability exit stores only the end of a turn), so the picture, the"
            " counts and the steps are incomplete."
        )
    if run.parent:
        yield f"Its steps up to {run.forked_at} are in the report of run {short_id(run.parent)}."
    if run.standing is RunState.CUT_OFF and transcript.at:
        yield f"It was cut off in {transcript.at}; its checkpoints do not show whether that had an effect."


# --- Budgets


def session_bars(spending: Spending, context: AgentContext) -> list[JsonMap]:
    """Return the usage of all turns, and its limits."""
    usage = spending.usage
    cost = cost_words(spending.cost_usd, spending.unpriced_calls)
    return [
        _bar("Model calls", usage.total_calls, context.max_calls_per_session),
        _bar("Input tokens", usage.total_input_tokens, context.max_input_tokens_per_session),
        _bar("Output tokens", usage.total_output_tokens, context.max_output_tokens_per_session),
        _bar("Cost", spending.cost_usd, context.max_cost_usd) | {"used": cost},
    ]


def turn_bars(spending: Spending, context: AgentContext) -> list[JsonMap]:
    """Return the usage of the last turn, and its limits."""
    now = spending.usage
    start = spending.at_turn_start
    inputs = now.total_input_tokens - start.total_input_tokens
    outputs = now.total_output_tokens - start.total_output_tokens
    most_s = context.max_seconds
    time = {"used": seconds_words(spending.seconds), "limit": ""}
    if most_s:
        time["limit"] = seconds_words(most_s)

    return [
        _bar("Model calls", now.calls_in_current_turn, context.max_calls_per_turn),
        _bar("Input tokens", inputs, context.max_input_tokens_per_turn),
        _bar("Output tokens", outputs, context.max_output_tokens_per_turn),
        _bar("Rounds of tools", spending.steps, context.max_steps),
        _bar("Time in model and tools", spending.seconds, most_s) | time,
    ]


def _bar(name: str, usage: float, limit: float | None) -> JsonMap:
    """Return one budget: usage and limit in words, and the used share; `state` is ok, near (80 % or more) or full."""
    bar: JsonMap = {"name": name, "used": f"{usage:,}", "limit": "", "share": None, "state": "ok"}
    if limit is None:
        return bar

    share = usage / limit
    if share >= 1:
        bar["state"] = "full"
    elif share >= 0.8:
        bar["state"] = "near"

    return {**bar, "limit": f"{limit:,}", "share": share}
