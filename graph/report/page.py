"""The report of a run as one page: HTML that needs no network, no script and no other file."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata, resources
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.redaction import CurrentRedactor
from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.graph.report.history import Course, History, Turn, course_of, read_history
from mendgraph.graph.report.picture import draw
from mendgraph.graph.report.step_view import Scale, Texts, cost_words, seconds_words, step_view, time_words, visible
from mendgraph.graph.runs.kept_run import command_line, short_id
from mendgraph.graph.runs.runs import ListedRun, RunState, get_run, list_runs, with_store
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import JsonMap, Outcome, Plan, ToolError, ToolErrorCode

MOST_STEPS: Final = 300
"""Of a page; of more the first and the last are shown."""

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


@dataclass(frozen=True)
class Bar:
    """One budget: what it counts, what was used of which limit, both in words; `share` is None without a limit."""

    name: str
    used: str
    limit: str
    share: float | None

    @property
    def state(self) -> str:
        """How near the limit is: ok, near (80 %) or full."""
        if self.share is None or self.share < 0.8:
            return "ok"
        return "near" if self.share < 1 else "full"


class Report(NamedTuple):
    """Which run it is about, and the page."""

    run_id: str
    html: str


@dataclass(frozen=True)
class Stored:
    """What is known of a run, and the folder as it was named."""

    run: ListedRun
    history: History
    root: str

    @property
    def spending(self) -> Spending:
        """What the thread has used."""
        return self.history.values.get("spending") or Spending()

    @property
    def context(self) -> AgentContext:
        """The settings of the last turn."""
        return self.history.values.get("context") or self.run.context


def report_html(run: str = "", workspace: str = ".", *, secrets: Sequence[str] = ()) -> str | ToolError:
    """The page of a run's report; the run is named by its id or the beginning of it, by default it is the newest one.

    Nothing is changed, and a run that is at work goes on: the page shows what is on the disk. `secrets` are values that
    it does not show, beside those of the environment and whatever has a secret's shape.

    Returns:
        The page; NOT_FOUND or INVALID_ARGUMENT where no single run is meant, IO_ERROR where the store cannot be read.
    """
    made = make_report(run, workspace, secrets=secrets)
    return made if isinstance(made, ToolError) else made.html


def make_report(run: str = "", workspace: str = ".", *, secrets: Sequence[str] = ()) -> Report | ToolError:
    """The same, with the id of the run."""
    if not run:
        listed = list_runs(workspace)
        if isinstance(listed, ToolError):
            return listed
        if not listed:
            return ToolError(code=ToolErrorCode.NOT_FOUND, message="There are no runs of this folder yet.")
        run = listed[0].run_id
    found = get_run(run, workspace)
    if isinstance(found, ToolError):
        return found
    history = with_store(workspace, lambda store: read_history(store.saver, found.run_id))
    if isinstance(history, ToolError):
        return history
    redactor = CurrentRedactor(secrets).now()
    return Report(found.run_id, _rendered(page_view(Stored(found, history, workspace), Texts(redactor)), redactor))


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


# --- What the template prints


def page_view(stored: Stored, texts: Texts) -> JsonMap:
    """All that the page shows of a run: words, bars and the picture, by the names that `report.html` has for them."""
    run, history = stored.run, stored.history
    course = course_of(history, begun=run.standing is not RunState.FORKED)
    ends = [outcome for turn in course.turns for outcome in turn.outcomes]
    last: Outcome | None = ends[-1] if ends else history.values.get("outcome")
    if last is None or run.state != "ended" or last.reason.value != run.reason:
        end = _stored_end(run, texts)
    else:
        end = _end(last, texts)
    plan = history.values.get("plan") or Plan()
    return {
        "title": texts.line(run.task, 80),
        "task": texts.shown(run.task, 2_000),
        "standing": str(run.standing),
        "look": _LOOKS.get(run.standing, "calm"),
        "standing_says": _STANDINGS.get(run.standing, ""),
        "end": end,
        "facts": [(name, texts.line(value, 500)) for name, value in _facts(stored, course)],
        "settings": _settings(stored.context, texts),
        "picture": draw(course.edges, course.visited, course.at),
        "edges": [{**each._asdict(), "count": course.edges.get(each, 0)} for each in TRANSITIONS],
        "turns": _turns(course, stored, texts),
        "steps": len(course.steps),
        "totals": _totals(stored, course),
        "bars": [
            ("The last turn", turn_bars(stored.spending, stored.context)),
            ("The whole session", session_bars(stored.spending, stored.context)),
        ],
        "plan": [(each.status.value.replace("_", " "), texts.line(each.title)) for each in plan.steps],
        "files": [texts.line(path, 500) for path in run.files],
        "commands": [(what, command_line(stored.root, *words)) for what, *words in _commands(stored, course)],
        "gaps": list(_gaps(stored, course)),
        "version": metadata.version("mendgraph"),
        "made": time_words(datetime.now(UTC)),
    }


def _facts(stored: Stored, course: Course) -> list[tuple[str, str]]:
    run, context = stored.run, stored.context
    said = {step.reply.model for step in course.steps if step.reply and step.reply.model}
    facts = [
        ("Begun", time_words(run.created)),
        ("Last at work", time_words(run.updated)),
        ("Model", ", ".join(sorted(said)) or context.model or "found from the environment"),
        ("Mode", context.mode),
        ("Run", run.run_id),
        ("Workspace", context.workspace),
        ("Requests", str(run.turns)),
    ]
    return [*facts, ("Forked from", f"run {short_id(run.parent)} after step {run.forked_at}")] if run.parent else facts


def _settings(context: AgentContext, texts: Texts) -> list[tuple[str, str]]:
    given = context.model_dump(mode="json", exclude_defaults=True, exclude={"workspace", "mode", "model"})
    return [(field.name, texts.line(field.value.text, 500)) for field in texts.fields(given)]


def _totals(stored: Stored, course: Course) -> list[tuple[str, str]]:
    steps, usage = course.steps, stored.spending.usage
    counts = [("step", len(steps))] if steps else []
    counts += [("model call", usage.total_calls), ("token", usage.total_input_tokens + usage.total_output_tokens)]
    totals = [(name if number == 1 else f"{name}s", f"{number:,}") for name, number in counts]
    if steps:
        totals.append(("in its steps", seconds_words(sum(step.seconds for step in steps))))
    files = len(stored.run.files)
    return [*totals, ("file changed" if files == 1 else "files changed", f"{files:,}")]


def _turns(course: Course, stored: Stored, texts: Texts) -> list[JsonMap]:
    """Each request with its steps and its ends; of very many steps those in the middle are left out."""
    steps = course.steps
    working = stored.run.standing is RunState.WORKING
    scale = Scale(
        max((step.seconds for step in steps), default=0.0), max((sum(step.tokens) for step in steps), default=0)
    )
    most, count = MOST_STEPS, len(steps)
    chosen = {*range(count)} if count <= most else {*range(most // 4), *range(count - most + most // 4, count)}
    places = {id(step): at for at, step in enumerate(steps) if at in chosen}

    def view(turn: Turn) -> JsonMap:
        shown = [
            step_view(step, places[id(step)] + 1, scale, texts, working=working)
            for step in turn.steps
            if id(step) in places
        ]
        return {
            "number": turn.number,
            "request": texts.shown(turn.request or ""),
            "steps": shown,
            "left_out": len(turn.steps) - len(shown),
            "ends": [_end(outcome, texts) for outcome in turn.outcomes],
        }

    return list(map(view, course.turns))


def _end(outcome: Outcome, texts: Texts) -> JsonMap:
    return {
        "kind": outcome.kind.value,
        "reason": outcome.reason.value,
        "look": _LOOKS[outcome.kind.value],
        "message": texts.shown(outcome.message),
        "diagnostics": [texts.line(each, 1_000) for each in outcome.diagnostics],
        "value": [] if outcome.value is None else texts.fields({"value": outcome.value}),
        "checks": outcome.checks,
        "changed": [texts.line(path, 500) for path in outcome.changed_files],
        "advice": texts.line(outcome.how_to_go_on, 2_000),
    }


def _stored_end(run: ListedRun, texts: Texts) -> JsonMap | None:
    """The end as the list of runs has it, where no checkpoint tells of one."""
    if run.state != "ended" or not run.kind:
        return None
    told = {"kind": run.kind, "reason": run.reason, "look": _LOOKS.get(run.kind, "warn")}
    changed = [texts.line(path, 500) for path in run.changed]
    nothing: JsonMap = {"diagnostics": [], "value": [], "checks": "", "advice": ""}
    return {**told, **nothing, "message": texts.shown(run.message), "changed": changed}


def _commands(stored: Stored, course: Course) -> Iterator[tuple[str, ...]]:
    run, short = stored.run, short_id(stored.run.run_id)
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


def _gaps(stored: Stored, course: Course) -> Iterator[str]:
    run = stored.run
    if run.durability == "exit" or not stored.history.whole:
        yield (
            "Not every step was kept (durability exit writes a turn down when it has ended), so the picture, the"
            " counts and the steps show only what is known."
        )
    if run.parent:
        yield f"What it has from run {short_id(run.parent)}, up to step {run.forked_at}, is in that run's report."
    if run.standing is RunState.CUT_OFF and course.at:
        yield f"It was cut off in {course.at}: whether that did anything is not in its checkpoints."


# --- Budgets


def session_bars(spending: Spending, context: AgentContext) -> list[Bar]:
    """What the thread has used in all its turns."""
    usage = spending.usage
    return [
        _count("Model calls", usage.total_calls, context.max_calls_per_session),
        _count("Input tokens", usage.total_input_tokens, context.max_input_tokens_per_session),
        _count("Output tokens", usage.total_output_tokens, context.max_output_tokens_per_session),
        _cost("Cost", spending.cost_usd, context.max_cost_usd, spending.unpriced_calls),
    ]


def turn_bars(spending: Spending, context: AgentContext) -> list[Bar]:
    """What the last turn has used."""
    now, start = spending.usage, spending.at_turn_start
    inputs = now.total_input_tokens - start.total_input_tokens
    outputs = now.total_output_tokens - start.total_output_tokens
    most, used = context.max_seconds, spending.seconds
    limit, share = ("", None) if most is None else (seconds_words(most), used / most)
    return [
        _count("Model calls", now.calls_in_current_turn, context.max_calls_per_turn),
        _count("Input tokens", inputs, context.max_input_tokens_per_turn),
        _count("Output tokens", outputs, context.max_output_tokens_per_turn),
        _count("Rounds of tools", spending.steps, context.max_steps),
        Bar("Time in model and tools", seconds_words(used), limit, share),
    ]


def _count(name: str, used: int, limit: int | None) -> Bar:
    return Bar(name, f"{used:,}", "" if limit is None else f"{limit:,}", None if limit is None else used / limit)


def _cost(name: str, used: float, limit: float | None, unpriced: int) -> Bar:
    words = cost_words(used, unpriced)
    return Bar(name, words, "" if limit is None else f"{limit:g} USD", None if limit is None else used / limit)
