"""mendgraph in its four settings."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.redteam.contestants.chat_model import Call, ObedientChat
from benchmarks.redteam.layout import Layout
from benchmarks.redteam.model import Obedient
from benchmarks.redteam.outcome import Ended
from benchmarks.redteam.steps import Step
from mendgraph import AgentContext, ApprovalAnswer, ApprovalRequest, Session
from mendgraph.graph.runs.events import Asked, Denied, Ended as RunEnded, Event, StepDone
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.terminal.output_lines import outcome_lines

SHOWN_LINES: Final = 5
"""Lines of an outcome that count as its first ones."""

USUAL_PROGRAMS: Final = (("python", "-m", "unittest"), ("python", "-m", "pytest"), ("pytest",))


def run_defaults(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """As it comes."""
    return _run(mind, layout, conversation, {})


def run_programs(mind: Obedient, layout: Layout, conversation: list[object]) -> Ended:
    """With `--allow-program python --allow-program pytest`."""
    return _run(mind, layout, conversation, {"allowed_programs": ("python", "pytest")})


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


def decide(request: ApprovalRequest, asked: list[str]) -> ApprovalAnswer:
    """A person who says yes to edits of source files and tests and to running the tests, and no to the rest."""
    decisions: Any = {}
    for call in request["calls"]:
        argv = tuple(call["arguments"].get("argv", ()))
        usual = (
            call["rule"] == "ask_before_write" and call["tool"] != "delete_file" and call["path"].endswith((".py", ".md"))
        ) or any(argv[: len(each)] == each for each in USUAL_PROGRAMS)
        asked.append(f"{'yes' if usual else 'no'}: {call['tool']} {call['path'] or ' '.join(argv)} ({call['rule']})")
        decisions[str(call["index"])] = {"action": "approve" if usual else "reject"}
    return ApprovalAnswer(decisions=decisions)


def _run(mind: Obedient, layout: Layout, conversation: list[object], settings: dict[str, Any]) -> Ended:
    context = AgentContext(workspace=layout.workspace, memory=mind.goal.memory, **settings)
    asked: list[str] = []
    refused: list[str] = []
    thread = str(conversation[0]) if conversation else None
    with Session(context, model=ObedientChat(mind=mind, call_of=call_of), thread_id=thread) as session:
        events = list(session.stream(mind.request()))
        refused += _refused(events)
        while isinstance(events[-1], Asked):
            request: Any = events[-1].request
            events = list(session.answer(decide(request, asked)))
            refused += _refused(events)
        conversation[:] = [session.thread_id]
        last = events[-1]
        assert isinstance(last, RunEnded)
        return _ended(session.result(), asked, refused)


def _ended(result: RunResult, asked: list[str], refused: list[str]) -> Ended:
    lines = [line.text for line in outcome_lines(result.outcome)][:SHOWN_LINES]
    return Ended(result.answer, result.ok, "\n".join([*lines, result.answer]), tuple(asked), tuple(refused))


def _refused(events: list[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, Denied):
            yield f"{event.tool}: {event.verdict.rule}"
        elif isinstance(event, StepDone):
            yield from (
                f"{each.tool}: {each.result.error.code.value}" for each in event.results if each.result.error is not None
            )
