"""Guard's resources in one turn: its rules and tools, and the previews of calls that a person is asked about.

A preview is made by the tool's own function on a dry workspace. Nothing is changed and nothing is started: only tools
of this package that change files are run, on files as the run may see them; of a command or a user's tool the arguments
are shown. Calls are previewed in order, each after the changes of those before it.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from langgraph.config import get_config
from langgraph.runtime import get_runtime

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.configuration.settings import MAX_CALLS_PER_TURN_LIMIT, MOST
from mendgraph.graph.machine.begin_turn import report_raises, trace_event
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_step import foreign_to, scope_of, trace_sink
from mendgraph.graph.machine.turn_tools import TurnTools
from mendgraph.nodes.call_model.ledger import spent_by_limit
from mendgraph.nodes.execute_tools.edits.diffs import (
    MAX_DIFF_CHARACTERS,
    MAX_DIFF_LINES,
    change_diff,
    count_hunks,
    with_hunks,
)
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tool_attempt import call_tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approval_formats import ApprovalRequest, ShownPreview, hunk_texts
from mendgraph.nodes.guard.approvals import NO_PREVIEW, ApprovalPorts, GuardUpdate, Preview
from mendgraph.nodes.guard.node import ask_person, judge_step
from mendgraph.nodes.guard.permissions import Permission, call_subject, covers
from mendgraph.nodes.guard.policy import ASKED, QUESTION_TOOL, GuardConfig, judge_reply
from mendgraph.nodes.language.command_lines import SHELL_TOOL
from mendgraph.nodes.language.history import last_request
from mendgraph.nodes.loop_check.repetition import signature_of
from mendgraph.nodes.records import (
    CallError,
    Effect,
    JsonMap,
    LoopRecord,
    Plan,
    StopCause,
    ToolCall,
    ToolError,
    Verdict,
    VerdictKind,
)
from mendgraph.nodes.workspace.files.workspace import DryChange, DryWorkspace, Pin, change_mark

SECONDS = 10.0
"""The time limit of one dry run."""

_LONGEST_ARGUMENT = 2_000
_CUT = "[... "
"""The beginning of the line that says how much is not shown; no other line of a diff begins so."""


def known_files(turn: TurnTools, items: Sequence[ToolCall | CallError]) -> dict[str, str]:
    """Return the hashes of the files that writing calls name, so that a later change by others is noticed."""
    specs = turn.machine.specs
    calls = [item for item in items if isinstance(item, ToolCall) and item.tool in specs]
    writing = [call for call in calls if specs[call.tool].effect is Effect.WRITE]
    return Previewer(turn, AgentState(context=turn.context)).known_files(writing)


def judge_calls(turn: TurnTools, state: AgentState) -> GuardUpdate:
    """Judge the calls of one reply, and ask a person if that is needed."""
    context = turn.context
    machine = turn.machine
    scope = scope_of(state)
    counts = state.get("tool_counts")
    sink = trace_sink(turn, state)
    config = GuardConfig(
        mode=context.mode,
        root=context.workspace,
        rules=turn.rules(scope),
        allowed=turn.names,
        paths_of=turn.paths_of,
        leads_to=partial(turn.leads_to, observe=partial(sink.emit, "sandbox.refused")),
        scope=scope,
        need_approval=machine.need_approval,
        granted=machine.granted,
        questions=context.questions and QUESTION_TOOL in machine.added,
    )
    overrides = state.get("loop", LoopRecord()).overrides
    signature = partial(signature_of, root=context.workspace)

    def judge(items: Sequence[ToolCall | CallError]) -> list[Verdict]:
        verdicts = judge_reply(items, config, machine.specs, overrides, signature)
        if context.mode == "auto":
            return _with_permissions(turn, state, items, verdicts)
        return verdicts

    def keep(permission: Permission) -> None:
        error = None
        if machine.keep_permission:
            error = machine.keep_permission(permission)

        if error is not None:
            trace_event(state["run_id"], "permission.unkept", {"reason": error.message})

    def ports(ask: Callable[[ApprovalRequest], object]) -> ApprovalPorts:
        clean = machine.redactor().content
        # What a server's tenant allows itself is no more than the server does.
        listed = isinstance(get_runtime(AgentContext).context, Admission)

        return ApprovalPorts(
            ask=lambda request: clean(ask(clean(request))),
            subject=partial(turn.subject, scope=scope, counts=counts, listed=listed),
            preview=Previewer(turn, state),
            validate=machine.registry.validate,
            judge=lambda call: judge([call])[0],
            thread=str(get_config()["configurable"].get("thread_id") or state.get("run_id", "")),
            workspace=context.workspace,
            permissions=(*(state.get("permissions") or ()), *turn.permissions()),
            keep=machine.keep_permission and keep,
            known_hashes=state.get("known_files") or {},
        )

    return judge_step(state, judge, machine.specs, ports)


def settle_limit(turn: TurnTools, state: AgentState, cause: StopCause) -> Update:
    """Ask a person whether the limit that was reached is raised; the run ends with the `cause` if it is not.

    Tenants of a server raise no limit: theirs are the operator's.
    """
    from mendgraph.nodes.guard.raised_limit import ReachedLimit, ask_to_raise  # most runs reach no limit

    context = turn.context
    name = cause.limit
    maximum = getattr(context, name)
    most = MAX_CALLS_PER_TURN_LIMIT if name == "max_calls_per_turn" else MOST
    limit = ReachedLimit(name, spent_by_limit(state["spending"])[name], maximum, cause.required, most)
    value = None

    raised = state.get("raised_limits") or {}
    report_raises(state["run_id"], raised, state.get("step", 0))  # a process that resumes the run has not seen them

    if max(maximum, cause.required) < most and not isinstance(get_runtime(AgentContext).context, Admission):
        clean = turn.machine.redactor().content
        value = ask_to_raise(limit, lambda request: clean(ask_person(request)))

    if value is None:
        return {"stop": cause}

    setting, _ = raised.get(name, (maximum, maximum))
    raised = {**raised, name: [setting, value]}
    report_raises(state["run_id"], raised, state.get("step", 0))

    context = context.model_copy(update={name: value})
    return {"stop": None, "verdicts": [], "context": context, "raised_limits": raised}


def _with_permissions(
    turn: TurnTools, state: AgentState, items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """Return the verdicts of mode "auto": calls that the user has allowed in this workspace count as approved."""
    judged = list(verdicts)
    permissions = turn.permissions()

    for index, item in enumerate(items if permissions else ()):
        spec = turn.machine.specs.get(item.tool)
        if not isinstance(item, ToolCall) or spec is None or verdicts[index].kind is not VerdictKind.ALLOW:
            continue

        rule = ASKED.get(spec.effect, "")
        if any(permission.rule == rule for permission in permissions):
            subject = turn.subject(item, scope_of(state), state.get("tool_counts"), listed=False)
        else:
            subject = ""

        if isinstance(subject, ToolError):
            continue

        about = call_subject(item, subject, turn.context.workspace)
        if any(covers(permission, rule, item.tool, about) for permission in permissions):
            judged[index] = verdicts[index].model_copy(update={"rule": rule})

    return judged


class Previewer:
    """Makes dry runs of the calls of one step.

    A call whose dry run changes nothing gets empty pins: approved, it may change nothing either.
    """

    def __init__(self, turn: TurnTools, state: AgentState) -> None:
        self._turn = turn
        self._state = state
        self._shipped = {tool.name: tool for tool in default_tools()}

    def __call__(self, calls: Mapping[int, ToolCall]) -> dict[int, Preview]:
        """Return the preview of each call, in order. A call that would fail changes no file for the next ones."""
        dry = DryWorkspace.of(self._turn.workspace())
        hashes = dict(self._state.get("files_read") or {})
        return {index: self._preview(call, dry, hashes) for index, call in calls.items()}

    def known_files(self, calls: Sequence[ToolCall]) -> dict[str, str]:
        """Return the hashes of the files that these calls name, by each of their names; "" for a new file."""
        dry = DryWorkspace.of(self._turn.workspace())
        texts: dict[str, str] = {}

        for named in {path for call in calls for path in self._named(call)}:
            real = dry.real_name(named)
            if real:
                texts[named] = texts[real] = dry.on_disk(real)

        return texts

    def _preview(self, call: ToolCall, dry: DryWorkspace, known: dict[str, str]) -> Preview:
        tool = self._turn.machine.registry.get(call.tool)
        names = tuple(dict.fromkeys(real for path in self._named(call) if (real := dry.real_name(path))))
        if tool is not None and tool.effect is Effect.WRITE and tool == self._shipped.get(tool.name):
            return self._dry_run(tool, call, dry, known, names)

        if tool is not None and tool.effect is Effect.WRITE:
            pins = tuple((name, dry.on_disk(name), "") for name in names)
            return Preview(self._shown_preview("arguments", _lines_of(call.arguments)), names, pins or None)

        if call.tool == QUESTION_TOOL and call.tool in self._turn.machine.added:
            return Preview(self._shown_preview("question", _question_text(call.arguments)))

        line = _command_line(call)
        if line:
            folder = call.arguments.get("cwd")
            where = ""
            if isinstance(folder, str) and folder != ".":
                where = f"\nin {folder}"

            return Preview(self._shown_preview("argv", line + where), names)

        return Preview(self._shown_preview("arguments", _lines_of(call.arguments)), names)

    def _dry_run(
        self, tool: Tool, call: ToolCall, dry: DryWorkspace, known: dict[str, str], names: tuple[str, ...]
    ) -> Preview:
        before = len(dry.planned)

        try:
            output = call_tool(tool, self._context(dry, known), call.arguments, SECONDS)
        except Exception:  # noqa: BLE001 - the call itself will run, change nothing, and return the error
            return Preview(NO_PREVIEW.shown, names, ())

        changes = dry.planned[before:]
        if not isinstance(output, ToolOutput) or output.result.error is not None:
            return Preview(NO_PREVIEW.shown, names, ())

        known.update(output.files_read)
        if not changes:
            return Preview(NO_PREVIEW.shown, names, ())

        diff = self._shown_preview("diff", "".join(map(change_diff, changes)))
        changed = dict.fromkeys(
            [*(change.name for change in changes), *(change.target for change in changes if change.target), *names]
        )

        preview = Preview(diff, tuple(changed), _pins(changes))
        count = count_hunks(changes)
        if count < 2 or diff["truncated"] or len(hunk_texts(diff["text"])) != count:
            return preview

        return preview._replace(pins_of_hunks=lambda numbers: _pins(with_hunks(changes, numbers)))

    def _context(self, dry: DryWorkspace, known: Mapping[str, str]) -> ToolContext:
        context = self._turn.context
        return ToolContext(
            workspace=dry,
            files_read=dict(known),
            plan=Plan(),
            timeout_s=SECONDS,
            max_lines=context.read_max_lines,
            syntax_gate=context.syntax_gate,
            task=last_request(self._state.get("messages") or []),
            foreign=foreign_to(self._state),
            checks=self._turn.checks() if context.format_edits else None,
            is_last_edit=False,
        )

    def _named(self, call: ToolCall) -> Iterator[str]:
        spec = self._turn.machine.specs.get(call.tool)
        for name in spec.path_fields if spec else ():
            value = call.arguments.get(name)
            yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))

        yield from self._turn.paths_of(call)

    def _shown_preview(self, kind: Literal["diff", "argv", "arguments", "question"], text: str) -> ShownPreview:
        lines = self._turn.machine.redactor().text(text).removesuffix("\n").split("\n")
        shown_lines: list[str] = []
        characters = 0
        truncated = False

        for line in map(_visible, lines):
            characters += len(line) + 1
            truncated = len(shown_lines) > MAX_DIFF_LINES or characters > 2 * MAX_DIFF_CHARACTERS  # of several files
            if truncated:
                shown_lines.append(f"{_CUT}{len(lines) - len(shown_lines)} more lines]")
                break

            shown_lines.append(line)

        cut = truncated or (kind == "diff" and any(line.startswith(_CUT) for line in shown_lines))
        return ShownPreview(kind=kind, text="\n".join(shown_lines), truncated=cut)


def _command_line(call: ToolCall) -> str:
    """Return the command of a call as a shell would read it, or ""."""
    if call.tool == SHELL_TOOL:
        return str(call.arguments["command"])

    argv = call.arguments.get("argv")
    if isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        return shlex.join(argv)

    return ""


def _visible(line: str) -> str:
    """Return the line with control, bidi and other format characters as escapes, so that nothing steers a screen."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() or character == "\t" else character.encode("unicode_escape").decode()
        for character in line
    )


def _pins(changes: Sequence[DryChange | None]) -> tuple[Pin, ...]:
    return tuple(
        (change.path, change.sha256, change_mark(change.before, change.after, change.target))
        for change in changes
        if change is not None
    )


def _question_text(arguments: JsonMap) -> str:
    choices = [f"{number}. {choice}" for number, choice in enumerate(arguments.get("choices") or (), start=1)]
    return "\n".join([str(arguments.get("question", "")), *choices])


def _lines_of(arguments: JsonMap) -> str:
    lines = []

    for name, argument in arguments.items():
        value = " ".join(str(argument).split())
        more = len(value) - _LONGEST_ARGUMENT
        lines.append(f"{name}: {value[:_LONGEST_ARGUMENT]}" + (f"... {more} more characters" if more > 0 else ""))

    return "\n".join(lines)
