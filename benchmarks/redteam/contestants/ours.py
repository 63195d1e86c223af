"""mendgraph in several settings."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.redteam.contestants.chat_model import Call, ObedientChat
from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.goal import WORKS
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import ObedientModel
from benchmarks.redteam.outcome import RunEnd
from benchmarks.redteam.steps import Step
from mendgraph import AgentContext, ApprovalAnswer, ApprovalRequest, Session
from mendgraph.graph.runs.events import Asked, Denied, Event, StepDone, ToolStarted
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.terminal.outcome_lines import outcome_lines

OUTCOME_LINES: Final = 5
"""The number of an outcome's lines that a person reads."""

PLAIN_PARTS: Final = ("Changed ", "Nothing checked ", "not checked: no test runner for ")
"""The beginnings of the parts of an outcome that only list files."""

ACTING: Final = (
    "write_file",
    "edit_file",
    "delete_file",
    "run_command",
    "run_shell",
    "http_get",
    "remember",
    "delegate",
)
"""The tools that can achieve a goal."""

USUAL_PROGRAMS: Final = (("python", "-m", "unittest"), ("python", "-m", "pytest"), ("pytest",))


def run_defaults(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with the defaults."""
    return _run(obedient, layout, conversation, {})


def run_programs(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with `--allow-program python --allow-program pytest`."""
    return _run(obedient, layout, conversation, {"allowed_programs": ("python", "pytest")})


def run_shell(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with `--allow-program bash --jobs`, and with command lines for all steps that a shell can do."""
    settings = {"allowed_programs": ("bash",), "jobs": True}
    return _run(obedient, layout, conversation, settings, shell_call_of)


def run_network(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with the docs server as an allowed host."""
    settings = {"allowed_hosts": (layout.docs.address,), "allowed_private_hosts": ("127.0.0.1",)}
    return _run(obedient, layout, conversation, settings)


def run_ask(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run in mode `ask` with a person who answers, programs and the docs server."""
    settings = {
        "mode": "ask",
        "allowed_programs": ("python", "pytest"),
        "allowed_hosts": (layout.docs.address,),
        "allowed_private_hosts": ("127.0.0.1",),
    }
    return _run(obedient, layout, conversation, settings)


def run_paths(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with `--writable` for the files of the user's work."""
    work = WORKS[obedient.goal.work]
    files = {step.target for step in work.steps if step.act in {"write", "edit", "delete"}}
    return _run(obedient, layout, conversation, {"writable_paths": tuple(sorted(files))})


def run_strict(obedient: ObedientModel, layout: Layout, conversation: list[object]) -> RunEnd:
    """Run with `--strict`."""
    return _run(obedient, layout, conversation, {"strict": True})


def call_of(step: Step) -> Call | None:
    """Return the call of mendgraph's tool for a step."""
    path = {"path": step.target}
    calls: dict[str, Call] = {
        "read": ("read_file", path),
        "write": ("write_file", {**path, "content": step.text}),
        "edit": ("edit_file", {**path, "old_str": step.text, "new_str": step.new}),
        "delete": ("delete_file", path),
        "run": ("run_command", {"argv": list(step.argv)}),
        "fetch": ("http_get", {"url": step.target}),
        "search": ("search_files", {"pattern": step.target}),
        "list": ("list_files", path),
        "remember": ("remember", {"text": step.text}),
        "delegate": ("delegate", {"task": step.text}),
    }
    return calls[step.act]


def shell_call_of(step: Step) -> Call | None:
    """Return the command line of a step if it has one, otherwise the call of another tool."""
    if command := command_of(step):
        return "run_shell", {"command": command}
    return call_of(step)


def decide(request: ApprovalRequest, user_request: str, approvals: list[str]) -> ApprovalAnswer:
    """Answer as a person who approves edits of Python files and of named files, and runs of the tests.

    Args:
        request: The approval request.
        user_request: The user's request, which names files.
        approvals: The list of decisions, to which this function adds its own.
    """
    decisions: Any = {}
    for call in request["calls"]:
        argv = tuple(call["arguments"].get("argv", ()))
        path = call["path"]

        is_edit = call["rule"] == "ask_before_write" and call["tool"] != "delete_file"
        is_usual_file = path != "" and (path.endswith(".py") or path in user_request)
        is_usual_program = any(argv[: len(program)] == program for program in USUAL_PROGRAMS)
        action = "approve" if (is_edit and is_usual_file) or is_usual_program else "reject"

        approvals.append(f"{action}: {call['tool']} {path} {' '.join(argv)} ({call['rule']})")
        decisions[str(call["index"])] = {"action": action}
    return ApprovalAnswer(decisions=decisions)


def _run(
    obedient: ObedientModel,
    layout: Layout,
    conversation: list[object],
    settings: dict[str, Any],
    translate: Callable[[Step], Call | None] = call_of,
) -> RunEnd:
    context = AgentContext(workspace=layout.workspace, memory=obedient.goal.memory, **settings)
    model = ObedientChat(obedient=obedient, call_of=translate)
    thread_id = str(conversation[0]) if conversation else None
    approvals: list[str] = []

    with Session(context, model=model, thread_id=thread_id) as session:
        events = list(session.stream(obedient.request()))
        while isinstance(events[-1], Asked):
            request: Any = events[-1].request
            events += session.answer(decide(request, obedient.request(), approvals))

        conversation[:] = [session.thread_id]
        return _run_end(session.result(), approvals, events)


def _run_end(result: RunResult, approvals: list[str], events: list[Event]) -> RunEnd:
    lines = [line.text for line in outcome_lines(result.outcome)][:OUTCOME_LINES]
    answer = [result.answer] if result.answer else []
    return RunEnd(
        result.answer,
        is_finished=result.ok,
        lines="\n".join(lines + answer),
        marks="\n".join([*_marks(lines), *answer]),
        first="\n".join(_marks(lines[:1])),
        approvals=tuple(approvals),
        executed=tuple(dict.fromkeys(_executed_calls(events))),
        rejected=tuple(dict.fromkeys(_rejected_calls(events))),
    )


def _marks(lines: list[str]) -> Iterator[str]:
    """Yield the parts of an outcome's lines that do more than list files."""
    for line in lines:
        for part in line.removeprefix("FINISHED (answered): ").split("; "):
            if not part.startswith(PLAIN_PARTS):
                yield part


def _executed_calls(events: list[Event]) -> Iterator[str]:
    """Yield the successful calls of the tools that can achieve a goal."""
    failures = set()
    for event in events:
        if isinstance(event, StepDone):
            failures |= {call.call_id for call in event.results if not call.result.ok}

    for event in events:
        if not isinstance(event, ToolStarted) or event.call.call_id in failures or event.call.tool not in ACTING:
            continue
        target = next(iter(event.call.arguments.values()), "")
        words = target[:2] if isinstance(target, list) else str(target).split()
        yield f"{event.call.tool} {' '.join(words)}"[:80]


def _rejected_calls(events: list[Event]) -> Iterator[str]:
    """Yield the denied calls with their rules, and the failed calls with their error codes."""
    for event in events:
        if isinstance(event, Denied):
            yield f"{event.tool}: {event.verdict.rule}"
        elif isinstance(event, StepDone):
            for call in event.results:
                if call.result.error is not None:
                    yield f"{call.tool}: {call.result.error.code.value}"
