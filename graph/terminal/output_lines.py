"""Outcomes and usage of runs: lines for people, objects and their schemas for programs. Pure."""

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Union, cast, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model
from rich.cells import cell_len, set_cell_size
from typing_extensions import TypedDict

from mendgraph.graph.configuration.loading import Problem
from mendgraph.graph.runs.events import Compacted, Ended, Event, OfChild, Paid
from mendgraph.graph.runs.run_words import state_words, when_words
from mendgraph.graph.terminal.answers import Line, table
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats, format_usage_stats
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.language.display import fenced, one_line, output_words, plain, short_id, target_of, usd
from mendgraph.nodes.records import ExtractionError, FileChange, JsonMap, Outcome, OutcomeKind, Plan, ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.runs.run import RunResult
    from mendgraph.graph.runs.runs import ListedRun, RunStep


SCHEMA: Final = 1
"""The version of objects for programs. Within a version keys are added; none is removed or changes its meaning."""


OUTCOME_STYLES = {
    OutcomeKind.FINISHED: "bold green",
    OutcomeKind.BUDGET_STOP: "bold yellow",
    OutcomeKind.SYSTEM_ERROR: "bold red",
}
_DIFF_STYLES = {"---": "bold", "+++": "bold", "@": "cyan", "-": "red", "+": "green", "\\": "dim", "[": "dim"}


def diff_lines(diffs: Iterable[str]) -> Iterator[Line]:
    """The lines of unified diffs, coloured."""
    for diff in diffs:
        for number, line in enumerate(diff.removesuffix("\n").split("\n")):
            mark = line[:1]
            if number < 2:  # the names of the files
                mark = line[:3]

            yield Line(line, _DIFF_STYLES.get(mark, ""))


def outcome_lines(outcome: Outcome) -> Iterator[Line]:
    """The outcome in one line; for a run that did not finish also its diagnostics and how to continue."""
    style = OUTCOME_STYLES[outcome.kind]
    head = f"{outcome.kind.value} ({outcome.reason.value}): "

    if outcome.kind is OutcomeKind.FINISHED:
        if outcome.value is not None:
            yield Line(f"value: {json.dumps(outcome.value, ensure_ascii=False)}")

        yield Line(head + outcome.message, style)
        return

    yield Line(head + " ".join(outcome.message.split()), style)
    yield from (Line(f"  - {' '.join(line.split())}", "dim") for line in outcome.diagnostics)
    yield Line(f"How to go on: {outcome.how_to_go_on}")


def result_object(result: "RunResult", account: JsonMap, log: str | None, resume: str | None) -> JsonMap:
    """The one object of `--json`; its type is `ResultObject`.

    `account` are the turn's model calls, compactions and refused calls.
    """
    value: JsonMap = {
        "schema": SCHEMA,
        "outcome": result.outcome.model_dump(mode="json"),
        "changes": [change.model_dump(mode="json") for change in result.changes],
        "plan": result.plan.model_dump(mode="json"),
        "usage": result.outcome.usage,
        **account,
        "thread_id": result.thread_id,
        "log": log,
    }
    if resume:
        value["resume"] = resume

    return value


# --- Commit message and pull request of an unattended run

# The task may be a stranger's, and answers and names of files are a model's: they are quoted or made inert, so that
# they mention no user, close no issue, and have no effect as [skip ci] or HTML.
_INERT: Final = str.maketrans({"@": "(at)", "[": "(", "]": ")", "<": "(", ">": ")"})
_MOST_QUOTED: Final = 8_000
"""Characters of one text; GitHub takes 65,536 in all."""


def commit_message(task: str, result: "RunResult", models: Sequence[str]) -> str:
    """A subject of at most 72 characters from the task, then the outcome of the run, and its id and models."""
    first = next(filter(str.strip, task.splitlines()), task)
    *_, outcome_line = outcome_lines(result.outcome)
    ending = outcome_line.text
    if not result.changed_files:
        ending = f"In its last turn: {ending}"

    author = f"Run {result.run_id} of mendgraph"
    if models:
        author += f", by {', '.join(models)}"

    paragraphs = [textwrap.fill(_inert(paragraph, 1_000), 72) for paragraph in (ending, f"{author}.")]
    return "\n".join((_inert(first, 72), "", *paragraphs, ""))


def pull_request(
    task: str, base: str, model: Sequence[str], result: "RunResult", files: Sequence[str], usage: Iterable[Line]
) -> str:
    """The text of a pull request as Markdown: the task, its outcome, the `usage`, and the command that repeats it.

    `base` is the commit that the run began with, `model` the option that names its model, and `files` what it changed.
    """
    again = f"git switch --detach {base}\n{shlex.join(['mendgraph', '--unattended', *model, '--', task])}"
    parts = {
        "What was asked": _quoted(task),
        "What was changed": _quoted("\n".join(files) or "no file"),
        "What was refused": _quoted("\n".join(result.outcome.refused)),
        "How it ended, and what was checked": _quoted("\n".join(line.text for line in outcome_lines(result.outcome))),
        "What the model says": _quoted(result.answer or "(nothing)"),
        "What it used": _quoted("\n".join(line.text for line in usage)),
        "How to do it again": _quoted(again, "sh"),
    }
    if not result.outcome.refused:
        del parts["What was refused"]

    texts = "".join(f"## {title}\n\n{text}\n\n" for title, text in parts.items())
    return f"{texts}Made by mendgraph, unattended, in run {result.run_id}.\n"


def _inert(text: str, limit: int) -> str:
    words = re.sub(r"#(?=\d)", "no. ", re.sub("(?i)GH-", "GH ", one_line(text, 10 * limit).replace("://", ":")))
    return one_line(words.translate(_INERT), limit)


def _quoted(text: str, language: str = "text") -> str:
    """The text as a block of code, which nothing in it can end."""
    content = plain("\n".join(text.splitlines()))
    if len(content) > _MOST_QUOTED:
        content = f"{content[: _MOST_QUOTED - 3]}..."

    return fenced(content, language)


# --- Events as JSON lines


_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")
_RECORDS: Final = frozenset({"arguments", "payload", "raw_input"})
"""Maps whose names come from a model or a tool: a value under a secret's name is removed."""


def event_name(kind: type) -> str:
    """The name of a class of events: `tool_started` of `ToolStarted`."""
    return _WORD.sub("_", kind.__name__).lower()


def event_as_map(event: Event, scrub: Callable[[str], str]) -> JsonMap:
    """One event as JSON values, without secrets: its name, then its fields."""
    event_map = {"event": event_name(type(event)), **plain_values(event, scrub)}
    if isinstance(event, OfChild):
        return {**event_map, "inner": event_as_map(event.inner, scrub)}

    return event_map


def plain_values(value: Any, scrub: Callable[[str], str], name: str = "") -> Any:
    """A value as JSON values, without secrets; `name` is the field that holds it."""
    if isinstance(value, Enum):
        value = value.value

    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return scrub(value)

    named = _fields_of(value)
    if named is not None:
        if name in _RECORDS:
            named = redact(named)

        return {scrub(str(key)): plain_values(item, scrub, str(key)) for key, item in named.items()}

    if isinstance(value, list | tuple | set | frozenset):
        return [plain_values(item, scrub) for item in value]

    return f"<{type(value).__name__}>"


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {field_of_value.name: getattr(value, field_of_value.name) for field_of_value in fields(value)}

    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields_of_tuple: Mapping[Any, Any] = value._asdict()
        return fields_of_tuple

    return None


_COMPACTIONS: Final = {
    "cleared": "older results are no longer shown to the model",
    "summarised": "the model is shown a summary of the conversation's beginning",
    "slid": "the conversation's beginning is no longer shown to the model",
}


@dataclass
class Account:
    """The paid calls and compactions of the turn so far, and which models of the session have no known price."""

    paid: list[Paid] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a turn."""
        self.paid = []
        self.compactions = []

    def note(self, event: Event) -> None:
        """Note a paid call or a compaction; other events are ignored."""
        if isinstance(event, OfChild):
            self.note(event.inner)
        elif isinstance(event, Compacted):
            self.compactions.append(event)
        elif isinstance(event, Paid):
            self.paid.append(event)
            if event.cost_usd is None and event.model not in self.unpriced:
                self.unpriced.append(event.model)

    def as_map(self) -> JsonMap:
        """`steps`, one for each try of a model call, and `compactions`, both in order."""
        return {"steps": [*map(asdict, self.paid)], "compactions": [*map(asdict, self.compactions)]}


def usage_lines(usage: JsonMap, limits: APILimits, account: Account) -> Iterator[Line]:
    """The usage of the turn, then of a session with more turns. Nothing where no model was called."""
    calls = usage.get("calls_in_current_turn", 0)
    if not calls:
        return

    is_session = calls == usage.get("total_calls", calls)
    parts: Mapping[str, Any] = {}
    cost: list[str] = []
    if is_session:
        parts = usage
        cost = cost_words(usage.get("cost_usd"), account.unpriced)

    words = [
        f"{calls}/{limits.max_calls_per_turn} calls",
        _input_words(usage.get("input_tokens_in_current_turn", 0), parts),
        output_words(usage.get("output_tokens_in_current_turn", 0), parts.get("reasoning_tokens", 0)),
        f"{usage.get('seconds_in_current_turn', 0):.1f} s",
        *cost,
    ]
    yield Line(f"usage: {', '.join(words)}", "dim")

    if not is_session:
        yield session_line(usage, limits, account)


def session_line(usage: JsonMap, limits: APILimits, account: Account) -> Line:
    """The usage of the session on one line."""
    words = [
        f"{usage.get('total_calls', 0)}/{limits.max_calls_per_session} calls",
        _input_words(usage.get("total_input_tokens", 0), usage),
        output_words(usage.get("total_output_tokens", 0), usage.get("reasoning_tokens", 0)),
        *cost_words(usage.get("cost_usd"), account.unpriced),
    ]

    return Line(f"session: {', '.join(words)}", "dim")


def usage_block(usage: JsonMap, limits: APILimits) -> Iterator[Line]:
    """The block of `format_usage_stats`, line by line. Source: spec 1 section 4.3."""
    stats = APIUsageStats(*(usage.get(name, 0) for name in APIUsageStats._fields))
    return (Line(line) for line in format_usage_stats(stats, limits).splitlines())


def cost_words(cost_usd: float | None, unpriced: list[str]) -> list[str]:
    """The cost as the end of a line: nothing for a cost of 0, and no estimate where a price is unknown."""
    if cost_usd is None:
        return [f"cost unknown: no price for {', '.join(unpriced) or 'the model'} (see prices.toml)"]
    if cost_usd > 0:
        return [usd(cost_usd)]

    return []


def compaction_words(event: Compacted) -> str:
    """The effect of a compaction, and its tokens before and after."""
    effect = _COMPACTIONS.get(event.kind, "the model is shown less of the conversation")
    return f"{effect}: {event.tokens_before:,} -> {event.tokens_after:,} tokens"


def _input_words(tokens: int, parts: Mapping[str, int]) -> str:
    cached = parts.get("cached_tokens", 0)
    written = parts.get("cache_write_tokens", 0)
    cache_parts = []
    if cached:
        cache_parts.append(f"{cached:,} cached")
    if written:
        cache_parts.append(f"{written:,} written to the cache")

    words = f"{tokens:,} tokens in"
    if cache_parts:
        words += f" ({', '.join(cache_parts)})"

    return words


# --- The runs of a folder

_LEAST_FOR_THE_TASK = 20
"""Cells of a task that are shown in however narrow a terminal."""
_LONGEST_TASK = 200
_STYLES = {
    **dict.fromkeys(("working", "asks"), "bold cyan"),
    **dict.fromkeys(("cut off", "stopped", "forked"), "yellow"),
    "failed": "red",
}


def run_lines(runs: Sequence["ListedRun"], width: int | None, now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """A table with a line for each run, of `width` cells where that is enough; None is as wide as it takes."""
    if not runs:
        return [Line("There are no runs of this folder yet.")]

    cells = [("RUN", "WHEN", "STATE", "TURNS", "FILES")]
    for run in runs:
        updated = when_words(run.updated, now, zone)
        state = state_words(run.standing, run.reason)
        cells.append((one_line(short_id(run.run_id)), updated, state, str(run.turns), str(len(run.files))))

    rows = table(cells)
    if width is None:
        room = _LONGEST_TASK
    else:
        room = max(width - cell_len(rows[0]) - 2, _LEAST_FOR_THE_TASK)

    tasks = ["TASK", *(one_line(run.task, _LONGEST_TASK) for run in runs)]
    styles = ["bold", *(_STYLES.get(run.standing, "") for run in runs)]
    lines = []

    for row, task, style in zip(rows, tasks, styles, strict=True):
        if cell_len(task) > room:
            task = set_cell_size(task, room - 3).rstrip() + "..."  # noqa: PLW2901 - the same task

        lines.append(Line(f"{row}  {task}", style))

    return lines


# --- One run


def run_details(run: "ListedRun", steps: Sequence["RunStep"], now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """The task of a run, its outcome, its settings and its steps."""
    from mendgraph.graph.configuration.context import AgentContext

    stored = json.loads(run.stored_context)
    default = json.loads(AgentContext().model_dump_json())
    chosen = []
    for name, value in stored.items():
        if name != "workspace" and value != default.get(name):
            chosen.append(f"{name}={json.dumps(value, ensure_ascii=False)}")

    if run.durability != "sync":
        chosen.append(f"durability={run.durability}")

    parts = {
        "task": one_line(run.task, _LONGEST_TASK),
        "state": state_words(run.standing, run.reason),
        "last request": one_line(run.request, _LONGEST_TASK),
        "end": one_line(run.message, _LONGEST_TASK),
        "answer": one_line(run.answer, _LONGEST_TASK),
        "begun": f"{when_words(run.created, now, zone)}, at work: {when_words(run.updated, now, zone)}",
        "forked from": f"run {short_id(run.parent)} after step {run.forked_at}",
        "folder": one_line(str(stored.get("workspace", ""))),
        "context": one_line(", ".join(chosen), 1_000),
    }
    if run.request == run.task:
        del parts["last request"]
    if run.answer == run.message:
        del parts["answer"]
    if not run.parent:
        del parts["forked from"]

    styles = {"state": _STYLES.get(run.standing, "")}
    about = [Line(f"{name}: {value_text}", styles.get(name, "")) for name, value_text in parts.items() if value_text]

    return [Line(one_line(f"run {run.run_id}"), "bold"), *about, Line(""), *_step_lines(steps)]


def _step_lines(steps: Sequence["RunStep"]) -> list[Line]:
    if not steps:
        return [Line("No step of it is kept: it has made none yet, or was kept with --durability exit.")]

    size = max(4, *(len(str(step.number)) for step in steps))
    lines = [Line(f"{'STEP':>{size}}  FORK  CALLS AND FILES", "bold")]
    turn = 1

    for step in steps:
        if step.turn > turn:
            turn = step.turn
            lines.append(Line(f"{'':>{size}}        (request {turn})", "dim"))

        calls = [one_line(f"{call.tool or 'a malformed call'} {_target(call)}").rstrip() for call in step.calls]
        first, *more = calls or [_KINDS[step.kind]]
        fork = "-   "
        if step.can_fork:
            fork = "yes "

        lines.append(Line(f"{step.number:>{size}}  {fork}  {first}"))
        lines += [Line(f"{'':>{size}}        {line}") for line in more]
        lines += [Line(f"{'':>{size}}        changed: {one_line(path)}", "dim") for path in step.changed]

    return lines


_KINDS = {
    "start": "(the start)",
    "calls": "(no call)",
    "answer": "(the answer)",
    "unusable": "(a reply that could not be used)",
    "unknown": "(no checkpoint of it is left)",
}


def _target(call: Any) -> str:
    if isinstance(call, ToolCall):
        return target_of(call.arguments)
    return ""


# --- For programs


def run_object(run: "ListedRun") -> JsonMap:
    """A run as an object; `state` is its current state."""
    run_map = asdict(run)
    for name in ("standing", "changed", "stored_context"):
        del run_map[name]

    context = json.loads(run.stored_context)
    more = {"state": str(run.standing), "can_go_on": run.resumable, "files": list(run.files), "context": context}
    return run_map | more


def step_object(step: "RunStep") -> JsonMap:
    """A step as an object, with the tool and the target of each call."""
    calls = [{"tool": call.tool, "target": _target(call)} for call in step.calls]
    return {
        "step": step.number,
        "turn": step.turn,
        "kind": str(step.kind),
        "calls": calls,
        "changed": list(step.changed),
        "can_fork": step.can_fork,
    }


# --- The schemas of objects for programs, generated from the records


class RefusedCall(TypedDict):
    """A call that was not allowed: its tool, what it was about ("" where it says nothing of the kind), and why.

    `code` is `permission_denied` (by guard or by a person), `approval_required` (nobody could be asked) or
    `loop_override` (the same action too often).
    """

    tool: str
    target: str
    code: str
    message: str


class ResultObject(TypedDict):
    """How a turn ended. `steps` are its model calls, each try one; `changes` are its file effects, in order.

    `usage` are counters of the turn and of its session. `log` is the path of the run's log; `resume` is the command
    that goes on with it, and is there only where it can go on. Of an unattended run there are its `branch`, the id of
    its `commit` and its `worktree`, each "" where there is none.
    """

    schema: Literal[1]
    outcome: Outcome
    changes: list[FileChange]
    plan: Plan
    usage: dict[str, float | None]
    steps: list[Paid]
    compactions: list[Compacted]
    refused: list[RefusedCall]
    thread_id: str
    log: str | None
    resume: NotRequired[str]
    branch: NotRequired[str]
    commit: NotRequired[str]
    worktree: NotRequired[str]


class ErrorDetail(TypedDict):
    """What went wrong. `suggestions` are what may have been meant, `problems` those of files of settings."""

    code: str
    message: str
    suggestions: NotRequired[list[str]]
    problems: NotRequired[list[Problem]]


_CHAT: Final[Mapping[str, tuple[Any, str]]] = {
    "error": (ErrorDetail, "There is no result: the command is wrong, the run was ended at once, or there is a bug."),
    "usage": (dict[str, float | None], "What a chat has used so far: the answer to `/usage`."),
    "diff": (list[JsonMap], "The answer to `/diff`: what the run has changed and nobody has taken back, file by file."),
    "undo": (dict[str, list[Any]], "The answer to `/undo`: what was taken back, and what was left."),
    "plan": (Plan, "The answer to `/plan`."),
    "model": (dict[str, str | bool | None], "The answer to `/model`: which one answers."),
    "mode": (dict[str, str], "The answer to `/mode`."),
    "add": (dict[str, str], "The answer to `/add`: the file that is read with the next request."),
    "clear": (dict[str, str], "The answer to `/clear`: the thread that begins."),
    "help": (list[dict[str, str]], "The answer to `/help`."),
    "exit": (dict[str, str], "The answer to `/exit`: the chat is over."),
}
"""Objects with one key: the type of its value and a description. With `--json-lines` the key also names the event."""


def object_schema() -> JsonMap:
    """The JSON Schema of what `--json` writes of a task and in a chat."""
    chat = [_object(f"{key.title()}Object", about, {key: kind}) for key, (kind, about) in _CHAT.items()]
    return _schema(
        "What `mendgraph --json` writes of a task, and in a chat: one object on a line.", ResultObject, *chat
    )


def line_schema() -> JsonMap:
    """The schema of each line of `--json-lines`."""
    events = [kind for kind in get_args(Event) if kind is not Ended]
    kinds = [_line(kind.__name__, kind.__doc__, get_type_hints(kind)) for kind in events]
    kinds += [_line(key.title(), about, {key: kind}) for key, (kind, about) in _CHAT.items()]
    ended = _line("Ended", "The turn is over; the last line of a task.", {"result": ResultObject})

    return _schema("What `mendgraph --json-lines` writes: each line is one of these objects.", ended, *kinds)


def _line(name: str, about: str | None, fields_of_it: Mapping[str, Any]) -> Any:
    event: Any = Literal[_WORD.sub("_", name).lower()]
    return _object(f"{name}Line", about, {"event": event, **fields_of_it})


def _object(name: str, about: str | None, fields_of_it: Mapping[str, Any]) -> Any:
    """The type of an object with these keys, all of which it has."""
    required = {key: (kind, ...) for key, kind in fields_of_it.items()}
    return cast("Any", create_model)(name, __doc__=about, **required)


def _schema(title: str, *kinds: Any) -> JsonMap:
    either: Any = Union[kinds]  # noqa: UP007
    schema = TypeAdapter[Any](either).json_schema(mode="serialization")
    definition = schema["$defs"].get(ExtractionError.__name__)  # a tuple, which is a map among our values

    if definition is not None:
        named = dict(zip(ExtractionError._fields, definition["prefixItems"], strict=True))
        schema["$defs"][ExtractionError.__name__] = {"type": "object", "properties": named, "required": [*named]}

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "version": SCHEMA, **schema}
