"""Guard's work with the things of one run: its rules, its tools, and what a person has to be shown and may answer.

What a call would do is found out by the tool's own function on a dry workspace. Nothing is changed and nothing is
started: only tools that come with this package and change files are run, on files as the run may see them; of a
command or a tool of a user's the arguments are shown. Calls are looked at one after the other, each after what those
before it would change.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import get_runtime

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.machine.state import AgentState, Update
from mendgraph.graph.machine.tool_runtime import ToolRuntime, foreign_to, scope_of
from mendgraph.nodes.execute_tools.edits.diffs import MAX_DIFF_CHARACTERS, MAX_DIFF_LINES, header, unified_diff
from mendgraph.nodes.execute_tools.files.text_files import decode_text, why_not_text
from mendgraph.nodes.execute_tools.files.workspace import DryChange, DryWorkspace, change_mark
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tool_attempt import call_tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approvals import (
    NO_PREVIEW,
    ApprovalPorts,
    ApprovalRequest,
    GuardUpdate,
    Preview,
    ShownPreview,
)
from mendgraph.nodes.guard.node import judge_step
from mendgraph.nodes.guard.permissions import Permission, call_subject, covers
from mendgraph.nodes.guard.policy import ASKED, GuardConfig, judge_path, judge_reply, paths_of_call, plain_target
from mendgraph.nodes.language.history import last_request
from mendgraph.nodes.loop_check.repetition import signature_of
from mendgraph.nodes.records import (
    CallError,
    Effect,
    JsonMap,
    LoopRecord,
    Plan,
    ToolCall,
    ToolError,
    Verdict,
    VerdictKind,
)

SECONDS = 10.0
"""How long one call may be thought about."""

_LONGEST_ARGUMENT = 2_000
_CUT = "[... "
"""How the line begins that says how much is not shown; no other line of a diff does."""


def with_known_files(tools: ToolRuntime, context: AgentContext, update: Update) -> Update:
    """What a reply was read as, with what the files that its calls name hold now, where a person will be asked."""
    if context.mode != "ask" or not update.get("items"):
        return update

    calls = [item for item in update["items"] if isinstance(item, ToolCall) and item.tool in tools.specs]
    writing = [call for call in calls if tools.specs[call.tool].effect is Effect.WRITE]
    return {**update, "known_files": Previewer(tools, AgentState(context=context)).known_files(writing)}


def judge_calls(tools: ToolRuntime, state: AgentState) -> GuardUpdate:
    """Judge the calls of one reply, and ask a person where that is needed."""
    context = state["context"]
    refused = partial(tools.report_refused, state, get_stream_writer())
    scope = scope_of(state)
    config = GuardConfig(
        mode=context.mode,
        root=context.workspace,
        rules=tools.rules(context, scope),
        allowed=tools.names(context),
        paths_of=tools.paths_of,
        leads_to=partial(tools.leads_to, context, observe=refused),
        scope=scope,
    )
    overrides = state.get("loop", LoopRecord()).overrides
    signature = partial(signature_of, root=context.workspace)

    def judge(items: Sequence[ToolCall | CallError]) -> list[Verdict]:
        verdicts = judge_reply(items, config, tools.specs, overrides, signature)
        if context.mode == "auto":
            return _permitted(tools, state, items, verdicts)
        return verdicts

    def keep(permission: Permission) -> None:
        error = None
        if tools.keep_permission:
            error = tools.keep_permission(permission)

        if error is not None:
            event = {"name": "permission.unkept", "payload": {"reason": error.message}, "step_id": "0", "ms": 0}
            get_stream_writer()({"type": "trace", "run_id": state["run_id"], **event})

    def ports(ask: Callable[[ApprovalRequest], object]) -> ApprovalPorts:
        clean = tools.redactor().content
        # What a server's tenant allows itself is no more than the server does.
        listed = isinstance(get_runtime(AgentContext).context, Admission)

        return ApprovalPorts(
            ask=lambda request: clean(ask(clean(request))),
            subject=partial(tools.subject, state, listed=listed),
            preview=Previewer(tools, state),
            validate=tools.registry.validate,
            judge=lambda call: judge([call])[0],
            thread=str(get_config()["configurable"].get("thread_id") or state.get("run_id", "")),
            workspace=context.workspace,
            permissions=(*(state.get("permissions") or ()), *tools.kept_permissions(context)),
            keep=tools.keep_permission and keep,
            known_hashes=state.get("known_files") or {},
        )

    return judge_step(state, judge, tools.specs, ports)


def _permitted(
    tools: ToolRuntime, state: AgentState, items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """The verdicts of mode "auto", in which calls that the user has allowed in this workspace count as approved."""
    context = state["context"]
    judged = list(verdicts)
    permissions = tools.kept_permissions(context)

    for index, item in enumerate(items if permissions else ()):
        spec = tools.specs.get(item.tool)
        if not isinstance(item, ToolCall) or spec is None or verdicts[index].kind is not VerdictKind.ALLOW:
            continue

        rule = ASKED.get(spec.effect, "")
        if any(permission.rule == rule for permission in permissions):
            subject = tools.subject(state, item, listed=False)
        else:
            subject = ""

        if isinstance(subject, ToolError):
            continue

        about = call_subject(item, subject, context.workspace)
        if any(covers(permission, rule, item.tool, about) for permission in permissions):
            judged[index] = verdicts[index].model_copy(update={"rule": rule})

    return judged


def is_judged_by_words(tools: ToolRuntime, state: AgentState) -> bool:
    """Whether all calls only read, and name files of the workspace plainly: to allow them no disk has to be asked."""
    context = state["context"]

    for item in state.get("items") or ():
        spec = None
        if isinstance(item, ToolCall):
            spec = tools.specs.get(item.tool)

        if spec is None or spec.effect is not Effect.READ or not isinstance(item, ToolCall):
            return False

        targets = [plain_target(named, context.workspace) for named in paths_of_call(item, spec, tools.paths_of)]
        rules = tools.rules(context)
        root = context.workspace

        if any(target is None or judge_path(target, False, rules, root) for target in targets):
            return False

    return not state.get("loop", LoopRecord()).overrides


class Previewer:
    """Looks at the calls of one step. The pins of a call that changes nothing now are none: it may not do so later."""

    def __init__(self, tools: ToolRuntime, state: AgentState) -> None:
        self._tools = tools
        self._state = state
        self._shipped = {tool.name: tool for tool in default_tools()}

    def __call__(self, calls: Mapping[int, ToolCall]) -> dict[int, Preview]:
        """What each call would do, in order. A call that would fail says so, and leaves the files to the next one."""
        dry = DryWorkspace.of(self._tools.workspace(self._state["context"]))
        hashes = dict(self._state.get("files_read") or {})
        return {index: self._preview(call, dry, hashes) for index, call in calls.items()}

    def known_files(self, calls: Sequence[ToolCall]) -> dict[str, str]:
        """The hashes of the files that these calls name, by each of their names; "" where there is none."""
        dry = DryWorkspace.of(self._tools.workspace(self._state["context"]))
        texts: dict[str, str] = {}

        for named in {path for call in calls for path in self._named(call)}:
            real = dry.real_name(named)
            if real:
                texts[named] = texts[real] = dry.on_disk(real)

        return texts

    def _preview(self, call: ToolCall, dry: DryWorkspace, known: dict[str, str]) -> Preview:
        tool = self._tools.registry.get(call.tool)
        names = tuple(dict.fromkeys(real for path in self._named(call) if (real := dry.real_name(path))))
        if tool is not None and tool.effect is Effect.WRITE and tool == self._shipped.get(tool.name):
            return self._dry_run(tool, call, dry, known, names)

        if tool is not None and tool.effect is Effect.WRITE:
            pins = tuple((name, dry.on_disk(name), "") for name in names)
            return Preview(self._shown("arguments", _lines_of(call.arguments)), names, pins or None)

        argv = call.arguments.get("argv")
        if isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv):
            folder = call.arguments.get("cwd")
            where = ""
            if isinstance(folder, str) and folder != ".":
                where = f"\nin {folder}"

            return Preview(self._shown("argv", shlex.join(argv) + where), names)

        return Preview(self._shown("arguments", _lines_of(call.arguments)), names)

    def _dry_run(
        self, tool: Tool, call: ToolCall, dry: DryWorkspace, known: dict[str, str], names: tuple[str, ...]
    ) -> Preview:
        before = len(dry.planned)

        try:
            output = call_tool(tool, self._context(dry, known), call.arguments, SECONDS)
        except Exception:  # noqa: BLE001 - the call runs, changes nothing, and says itself what is wrong
            return Preview(NO_PREVIEW.shown, names, ())

        changes = dry.planned[before:]
        if not isinstance(output, ToolOutput) or output.result.error is not None:
            return Preview(NO_PREVIEW.shown, names, ())

        known.update(output.files_read)
        if not changes:
            return Preview(NO_PREVIEW.shown, names, ())

        text = "".join(map(_diff, changes))
        pins = tuple(
            (change.path, change.sha256, change_mark(change.before, change.after, change.target)) for change in changes
        )
        changed = dict.fromkeys(
            [*(change.name for change in changes), *(change.target for change in changes if change.target), *names]
        )

        return Preview(self._shown("diff", text), tuple(changed), pins)

    def _context(self, dry: DryWorkspace, known: Mapping[str, str]) -> ToolContext:
        context = self._state["context"]
        return ToolContext(
            workspace=dry,
            files_read=dict(known),
            plan=Plan(),
            timeout_s=SECONDS,
            max_lines=context.read_max_lines,
            syntax_gate=context.syntax_gate,
            task=last_request(self._state.get("messages") or []),
            foreign=foreign_to(self._state),
        )

    def _named(self, call: ToolCall) -> Iterator[str]:
        spec = self._tools.specs.get(call.tool)
        for name in spec.path_fields if spec else ():
            value = call.arguments.get(name)
            yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))

        yield from self._tools.paths_of(call)

    def _shown(self, kind: Literal["diff", "argv", "arguments"], text: str) -> ShownPreview:
        lines = self._tools.redactor().text(text).removesuffix("\n").split("\n")
        kept: list[str] = []
        characters = 0
        truncated = False

        for line in map(_visible, lines):
            characters += len(line) + 1
            truncated = len(kept) > MAX_DIFF_LINES or characters > 2 * MAX_DIFF_CHARACTERS  # of several files
            if truncated:
                kept.append(f"{_CUT}{len(lines) - len(kept)} more lines]")
                break

            kept.append(line)

        cut = truncated or (kind == "diff" and any(line.startswith(_CUT) for line in kept))
        return ShownPreview(kind=kind, text="\n".join(kept), truncated=cut)


def _visible(line: str) -> str:
    """A line in which nothing steers a screen: control, bidi and other format characters are written as escapes."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() or character == "\t" else character.encode("unicode_escape").decode()
        for character in line
    )


def _diff(change: DryChange) -> str:
    moved = ""
    if change.target:
        moved = f"rename from {change.name}\nrename to {change.target}\n"

    if change.before == change.after:
        return moved

    texts = [None if data is None else decode_text(data) for data in (change.before, change.after)]
    if any(text is None and data is not None for text, data in zip(texts, (change.before, change.after), strict=True)):
        gone = ", and would be gone" if change.after is None else ""
        return f"{moved}{change.target or change.name} is {why_not_text(change.before or change.after or b'')}{gone}\n"

    old, new = (text.text if text else None for text in texts)
    diff = unified_diff(change.target or change.name, old, new)
    return moved + (diff or "".join(header(change.name, old, new)))


def _lines_of(arguments: JsonMap) -> str:
    lines = []

    for name, argument in arguments.items():
        value = " ".join(str(argument).split())
        more = len(value) - _LONGEST_ARGUMENT
        lines.append(f"{name}: {value[:_LONGEST_ARGUMENT]}" + (f"... {more} more characters" if more > 0 else ""))

    return "\n".join(lines)
