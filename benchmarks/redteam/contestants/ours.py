"""mendgraph in its settings."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.redteam.contestants.chat_model import Call, ObedientChat
from benchmarks.redteam.contestants.shell import command_of
from benchmarks.redteam.goal import WORKS
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Obedient
from benchmarks.redteam.outcome import Ended
from benchmarks.redteam.steps import Step
from mendgraph import AgentContext, ApprovalAnswer, ApprovalRequest, Session
from mendgraph.graph.runs.events import Asked, Denied, Event, StepDone, ToolStarted
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.terminal.outcome_lines import outcome_lines

SHOWN_LINES: Final = 5
"""Lines of an outcome that count as its first ones."""

PLAIN_PARTS: Final = ("Changed ", "Nothing checked ", "not checked: no test runner for ")
"""How the parts of an outcome begin that only list files."""

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
"""Tools whose calls may be a deed."""

USUAL_PROGRAMS: Final = (("python", "-m", "unittest"), ("python", "-m", "pytest"), ("pytest",))


def run_defaults(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """As it comes."""
    return _run(mind, layout, conversation, {})


def run_programs(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With `--allow-program python --allow-program pytest`."""
    return _run(mind, layout, conversation, {"allowed_programs": ("python", "pytest")})


def run_shell(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With `--allow-program bash --jobs`: what a shell can do is a command line, and may go on in the background."""
    return _run(mind, layout, conversation, {"allowed_programs": ("bash",), "jobs": True}, shell_call_of)


def run_network(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With the documentation's server on the list of hosts."""
    hosts = (layout.docs.address,)
    return _run(mind, layout, conversation, {"allowed_hosts": hosts, "allowed_private_hosts": ("127.0.0.1",)})


def run_ask(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With a person, programs and the documentation's server: who asks for approval can be allowed more."""
    settings = {
        "mode": "ask",
        "allowed_programs": ("python", "pytest"),
        "allowed_hosts": (layout.docs.address,),
        "allowed_private_hosts": ("127.0.0.1",),
    }
    return _run(mind, layout, conversation, settings)


def run_paths(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With the files that the user's work changes as the only ones that may be changed."""
    files = {step.target for step in WORKS[mind.goal.work].steps if step.act in {"write", "edit", "delete"}}
    return _run(mind, layout, conversation, {"writable_paths": tuple(sorted(files))})


def run_strict(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With `--strict`."""
    return _run(mind, layout, conversation, {"strict": True})


def call_of(step: Step) -> Call | None:
    """The step as a call of one of our tools."""
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
    """The step as a command line, if it can be one; else as a call of another tool."""
    command = command_of(step)
    return ("run_shell", {"command": command}) if command else call_of(step)


def decide(request: ApprovalRequest, wanted: str, asked: list[str]) -> ApprovalAnswer:
    """A person who says yes to edits of Python files and of what was `wanted`, to running the tests, and to no more."""
    decisions: Any = {}
    for call in request["calls"]:
        argv, path = tuple(call["arguments"].get("argv", ())), call["path"]
        edits = call["rule"] == "ask_before_write" and call["tool"] != "delete_file"
        usual = edits and path != "" and (path.endswith(".py") or path in wanted)
        usual = usual or any(argv[: len(each)] == each for each in USUAL_PROGRAMS)
        said = {"action": "approve" if usual else "reject"}
        asked.append(f"{said['action']}: {call['tool']} {path} {' '.join(argv)} ({call['rule']})")
        decisions[str(call["index"])] = said
    return ApprovalAnswer(decisions=decisions)


def _run(
    mind: Obedient,
    layout: Layout,
    conversation: list[object],
    settings: dict[str, Any],
    calls: Callable[[Step], Call | None] = call_of,
) -> Ended:
    context = AgentContext(workspace=layout.workspace, memory=mind.goal.memory, **settings)
    asked: list[str] = []
    thread = str(conversation[0]) if conversation else None
    with Session(context, model=ObedientChat(mind=mind, call_of=calls), thread_id=thread) as session:
        events = list(session.stream(mind.request()))
        while isinstance(events[-1], Asked):
            request: Any = events[-1].request
            events += session.answer(decide(request, mind.request(), asked))
        conversation[:] = [session.thread_id]
        return _ended(session.result(), asked, events)


def _ended(result: RunResult, asked: list[str], events: list[Event]) -> Ended:
    lines = [line.text for line in outcome_lines(result.outcome)][:SHOWN_LINES]
    marks, first = ([*_marks(some)] for some in (lines, lines[:1]))
    said = [result.answer] * bool(result.answer)
    refused = dict.fromkeys(_refused(events))
    return Ended(
        result.answer,
        result.ok,
        "\n".join(lines + said),
        "\n".join(marks + said),
        "\n".join(first),
        tuple(asked),
        tuple(dict.fromkeys(_ran(events))),
        tuple(refused),
    )


def _marks(lines: list[str]) -> Iterator[str]:
    """The parts of these lines of an outcome that do more than list files."""
    parts = (part for line in lines for part in line.removeprefix("FINISHED (answered): ").split("; "))
    return (part for part in parts if not part.startswith(PLAIN_PARTS))


def _ran(events: list[Event]) -> Iterator[str]:
    """The calls that changed, ran, got or noted something."""
    failed = {
        each.call_id for event in events if isinstance(event, StepDone) for each in event.results if not each.result.ok
    }
    for event in events:
        if isinstance(event, ToolStarted) and event.call.call_id not in failed and event.call.tool in ACTING:
            target = next(iter(event.call.arguments.values()), "")
            words = target[:2] if isinstance(target, list) else str(target).split()
            yield f"{event.call.tool} {' '.join(words)}"[:80]


def _refused(events: list[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, Denied):
            yield f"{event.tool}: {event.verdict.rule}"
        elif isinstance(event, StepDone):
            yield from (
                f"{each.tool}: {each.result.error.code.value}"
                for each in event.results
                if each.result.error is not None
            )
