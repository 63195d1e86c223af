"""All that the page shows of a run, ready to be laid out: words, bars and the picture. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graph.context import AgentContext
from graph.report.amounts import Bar, DayUse, account_bars, day_bars, seconds_words, session_bars, time_words, turn_bars
from graph.report.booked import BookedCall
from graph.report.history import History
from graph.report.picture import Picture, draw
from graph.report.step_view import Scale, StepView, step_view
from graph.report.steps import Course, Step, Turn, course_of
from graph.report.texts import Field, Shown, Texts
from graph.routes import TRANSITIONS
from graph.runs import ListedRun, RunState
from graph.spending_report import AccountSpent
from graph.terminal.run_words import KeptRun, short_id
from nodes.call_model.ledger import Spending
from nodes.records import Outcome, Plan

_LOOKS: Final = {
    RunState.FINISHED: "good",
    RunState.STOPPED: "warn",
    RunState.FAILED: "bad",
    RunState.CUT_OFF: "warn",
}
_STANDINGS: Final = {
    RunState.WORKING: "It is at work: this page shows what was on the disk when it was made.",
    RunState.ASKS: "It waits for a person to decide about the calls of its last step.",
    RunState.CUT_OFF: "It was cut off: its process ended before the turn did.",
    RunState.FORKED: "It was forked from another run, and has not gone on yet.",
}


@dataclass(frozen=True)
class Stored:
    """What is known of a run. `booked`, `day` and `account` are None where the spending book cannot be read."""

    run: ListedRun
    history: History
    booked: Sequence[BookedCall] | None
    day: DayUse | None
    account: AccountSpent | None
    version: str
    made: str
    root: str


@dataclass(frozen=True)
class EdgeRow:
    """One transition of the table, and how often the run took it."""

    source: str
    label: str
    target: str
    count: int


@dataclass(frozen=True)
class End:
    """How a turn ended. `look` is good, warn or bad."""

    kind: str
    reason: str
    look: str
    message: Shown
    diagnostics: list[str]
    account: Shown
    value: list[Field]
    checks: str
    changed: list[str]
    advice: str


@dataclass(frozen=True)
class TurnView:
    """A request, its steps (`left_out` of them are not shown), and its ends."""

    number: int
    request: Shown
    steps: list[StepView]
    left_out: int
    ends: list[End]


@dataclass(frozen=True)
class Command:
    """What can be done now, and the command that does it."""

    what: str
    command: str


@dataclass(frozen=True)
class PageView:
    """The page."""

    title: str
    task: Shown
    standing: str
    look: str
    standing_says: str
    end: End | None
    facts: list[tuple[str, str]]
    settings: list[tuple[str, str]]
    picture: Picture
    edges: list[EdgeRow]
    path: list[str]
    path_left_out: int
    turns: list[TurnView]
    steps: int
    totals: list[tuple[str, str]]
    bars: list[tuple[str, list[Bar]]]
    plan: list[tuple[str, str]]
    files: list[str]
    commands: list[Command]
    gaps: list[str]
    conversation: list[tuple[str, Shown]]
    version: str
    made: str


def page_view(stored: Stored, texts: Texts) -> PageView:
    """The page of this run."""
    run, history = stored.run, stored.history
    course = course_of(history, begun=run.standing is not RunState.FORKED)
    spending, context = _spending(history), _context(stored)
    ends = [outcome for turn in course.turns for outcome in turn.outcomes]
    last = ends[-1] if ends else history.values.get("outcome")
    told = isinstance(last, Outcome) and run.state == "ended" and last.reason.value == run.reason
    plan = history.values.get("plan") or Plan()
    most = texts.bounds.path
    conversation = [(who, texts.shown(said, 2_000)) for who, said in history.messages] if not history.whole else []
    return PageView(
        title=texts.line(run.task, 80),
        task=texts.shown(run.task, 2_000),
        standing=str(run.standing),
        look=_LOOKS.get(run.standing, "calm"),
        standing_says=_STANDINGS.get(run.standing, ""),
        end=_end(last, texts) if told and isinstance(last, Outcome) else _stored_end(run, texts),
        facts=_facts(stored, course, context, texts),
        settings=_settings(context, texts),
        picture=draw(course.edges, course.visited, course.at),
        edges=[EdgeRow(*each, course.edges.get(each, 0)) for each in TRANSITIONS],
        path=list(course.path[:most]),
        path_left_out=max(0, len(course.path) - most),
        turns=_turns(course, stored, texts),
        steps=len(course.steps),
        totals=_totals(stored, course, spending),
        bars=_bars(stored, spending, context, texts),
        plan=[(each.status.value.replace("_", " "), texts.line(each.title)) for each in plan.steps],
        files=[texts.line(path, 500) for path in run.files],
        commands=_commands(stored, course),
        gaps=_gaps(stored, course),
        conversation=conversation[-200:],
        version=stored.version,
        made=time_words(stored.made),
    )


# --- The run


def _facts(stored: Stored, course: Course, context: AgentContext, texts: Texts) -> list[tuple[str, str]]:
    run = stored.run
    said = {step.reply.model for step in course.steps if step.reply and step.reply.model}
    facts = [
        ("Begun", time_words(run.created)),
        ("Last at work", time_words(run.updated)),
        ("Model", ", ".join(sorted(said)) or context.model or "found from the environment"),
        ("Mode", context.mode),
        ("Run", run.run_id),
        ("Workspace", context.workspace),
        ("Requests", str(run.turns)),
        ("On the disk", _DURABILITIES[run.durability]),
    ]
    if run.parent:
        facts.append(("Forked from", f"run {short_id(run.parent)} after step {run.forked_at}"))
    return [(name, texts.line(value, 500)) for name, value in facts]


_DURABILITIES: Final = {
    "sync": "each step before the next one began",
    "async": "each step while the next one ran",
    "exit": "each turn when it had ended",
}


def _settings(context: AgentContext, texts: Texts) -> list[tuple[str, str]]:
    """The fields of the context that are not as they are by default."""
    given: dict[str, Any] = context.model_dump(mode="json", exclude_defaults=True)
    fields = texts.fields({name: value for name, value in given.items() if name not in {"workspace", "mode", "model"}})
    return [(field.name, texts.line(field.value.text, 500)) for field in fields]


def _totals(stored: Stored, course: Course, spending: Spending) -> list[tuple[str, str]]:
    """The numbers at the top of the page: what is counted, and how many."""
    steps, usage = course.steps, spending.usage
    tokens = usage.total_input_tokens + usage.total_output_tokens
    counts = [("step", len(steps))] if steps else []
    counts += [("model call", usage.total_calls), ("token", tokens)]
    totals = [(name if number == 1 else f"{name}s", f"{number:,}") for name, number in counts]
    if steps:
        totals.append(("in its steps", seconds_words(sum(step.seconds for step in steps))))
    files = len(stored.run.files)
    return [*totals, ("file changed" if files == 1 else "files changed", f"{files:,}")]


def _bars(stored: Stored, spending: Spending, context: AgentContext, texts: Texts) -> list[tuple[str, list[Bar]]]:
    groups = [
        ("The last turn", turn_bars(spending, context)),
        ("The whole session", session_bars(spending, context)),
    ]
    if stored.day is not None:
        whose = (
            f"account {texts.line(context.account)}"
            if context.account_days and context.account
            else "all runs of all folders"
        )
        name = f"{stored.day.day} (UTC), {whose}"
        groups.append((name, day_bars(stored.day, context)))
    if stored.account is not None and context.account:
        groups.append((f"Account {texts.line(context.account)}, in all", account_bars(stored.account, context)))
    return groups


def _spending(history: History) -> Spending:
    found = history.values.get("spending")
    return found if isinstance(found, Spending) else Spending()


def _context(stored: Stored) -> AgentContext:
    found = stored.history.values.get("context")
    return found if isinstance(found, AgentContext) else stored.run.context


# --- Turns


def _turns(course: Course, stored: Stored, texts: Texts) -> list[TurnView]:
    steps, booked = course.steps, stored.booked or ()
    working = stored.run.standing is RunState.WORKING
    scale = Scale(
        max((step.seconds for step in steps), default=0.0),
        max((step.used[1] + step.used[2] for step in steps), default=0),
    )
    first, most = texts.bounds.steps // 4, texts.bounds.steps
    chosen = (
        {*range(len(steps))} if len(steps) <= most else {*range(first), *range(len(steps) - most + first, len(steps))}
    )
    places = {id(step): at for at, step in enumerate(steps)}

    def shown(step: Step) -> StepView:
        mine = _booked_in(step, booked)
        return step_view(step, places[id(step)] + 1, scale, mine, texts, working=working)

    def view(turn: Turn) -> TurnView:
        steps = [shown(step) for step in turn.steps if places[id(step)] in chosen]
        return TurnView(
            number=turn.number,
            request=texts.shown(turn.request or ""),
            steps=steps,
            left_out=len(turn.steps) - len(steps),
            ends=[_end(outcome, texts) for outcome in turn.outcomes],
        )

    return [view(turn) for turn in course.turns]


def _booked_in(step: Step, booked: Sequence[BookedCall]) -> list[BookedCall]:
    """What the book has of the time in which the step's model call ran; it counts in milliseconds."""
    visit = step.visits[0]
    began = visit.began.replace(microsecond=visit.began.microsecond // 1_000 * 1_000)
    return [each for each in booked if began <= each.reserved and (visit.ended is None or each.reserved <= visit.ended)]


def _end(outcome: Outcome, texts: Texts) -> End:
    looks = {"FINISHED": "good", "BUDGET_STOP": "warn", "SYSTEM_ERROR": "bad"}
    return End(
        kind=outcome.kind.value,
        reason=outcome.reason.value,
        look=looks[outcome.kind.value],
        message=texts.shown(outcome.message),
        diagnostics=[texts.line(each, 1_000) for each in outcome.diagnostics],
        account=texts.shown(outcome.account),
        value=[] if outcome.value is None else texts.fields({"value": outcome.value}),
        checks=outcome.checks,
        changed=[texts.line(path, 500) for path in outcome.changed_files],
        advice=texts.line(outcome.how_to_go_on, 2_000),
    )


def _stored_end(run: ListedRun, texts: Texts) -> End | None:
    """The end as the list of runs has it, where no checkpoint tells of one."""
    if run.state != "ended" or not run.kind:
        return None
    looks = {"FINISHED": "good", "BUDGET_STOP": "warn", "SYSTEM_ERROR": "bad"}
    changed = [texts.line(path, 500) for path in run.changed]
    message = texts.shown(run.message)
    return End(run.kind, run.reason, looks.get(run.kind, "warn"), message, [], Shown(""), [], "", changed, "")


# --- What can be done now, and what is not known


def _commands(stored: Stored, course: Course) -> list[Command]:
    run, short = stored.run, short_id(stored.run.run_id)
    kept = KeptRun(run.run_id, run.resumable, stored.root)
    commands: list[Command] = []
    if run.standing is RunState.ASKS:
        commands.append(Command("Answer the question, and go on", kept.command("resume", short)))
    elif run.standing is RunState.WORKING:
        commands.append(Command("Make this page again, later", kept.command("report", short, "--force")))
    elif run.resumable:
        commands.append(Command("Go on from where it is", kept.command("resume", short)))
    if run.standing is not RunState.WORKING:
        commands.append(Command("Send it another request", kept.command("chat", "--run", short)))
    if run.files:
        commands.append(Command("Restore the files as they were before it", kept.command("undo", short)))
    numbers = sorted({step.number for step in course.steps})
    if numbers:
        commands.append(
            Command("Begin a new run after one of its steps", kept.command("fork", short, "--at", str(numbers[0])))
        )
    commands.append(Command("Show its steps in the terminal", kept.command("runs", "show", short)))
    return commands


def _gaps(stored: Stored, course: Course) -> list[str]:
    """What the page does not know, and why."""
    return [*_gaps_of(stored, course)]


def _gaps_of(stored: Stored, course: Course) -> Iterator[str]:
    run = stored.run
    if run.durability == "exit" or not stored.history.whole:
        yield (
            "Not every step was kept (durability exit writes a turn down when it has ended), so the picture, the"
            " counts and the steps show only what is known. What was said is listed below as the run remembers it."
        )
    if run.parent:
        yield f"What it has from run {short_id(run.parent)}, up to step {run.forked_at}, is in that run's report."
    if run.standing is RunState.CUT_OFF and course.at:
        yield f"It was cut off in {course.at}: whether that did anything is not in its checkpoints."
    if stored.booked is None or stored.day is None:
        yield "The spending book cannot be read, so retries, fallbacks and the day's budgets are not shown."
    if run.standing is RunState.ASKS:
        yield "How the person decides is not known yet."
