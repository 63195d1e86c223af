"""Runs the hooks of a workspace's `.claude/settings.json` around tool calls and turns. Imported where there are some.

A hook can only forbid: guard has allowed a call before its hooks run. Source: Claude Code, "Hooks reference".
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os.path import join
from typing import Any, Final, NamedTuple

import orjson

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.hooks.claude_hooks import HookCommand, Hooks, trusted_hooks
from mendgraph.nodes.execute_tools.commands.command_changes import Unwatched, watched
from mendgraph.nodes.execute_tools.commands.commands import Commands
from mendgraph.nodes.execute_tools.commands.hook_command import HookOutput, run_in_sandbox, run_unconfined
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome, refused
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.guard.policy import ASKED, paths_of_call
from mendgraph.nodes.language.command_lines import COMMAND_TOOL, command_argv
from mendgraph.nodes.language.history import json_map
from mendgraph.nodes.language.prompt_files import foreign_names
from mendgraph.nodes.records import CHANGING, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult, ToolSpec, quoted
from mendgraph.nodes.workspace.files.deadline import ScopeOverError

_MOST_TEXT: Final = 10_000
"""Characters of a hook's words that are told."""
_MODES: Final = {"ask": "default", "auto": "acceptEdits", "plan": "plan", "read-only": "plan"}
_ARGUMENTS: Final = {"old_str": "old_string", "new_str": "new_string"}
"""Claude Code's names of arguments, by those of our tools."""


class HookAnswer(NamedTuple):
    """What the hooks of an event say: why they block it, and words for the model."""

    blocks: str = ""
    words: str = ""


@dataclass(frozen=True)
class ShellHooks:
    """The trusted hooks of one turn.

    `session` is the id of its thread, `specs` are its tools, of which the `granted` ones run without an approval.
    `paths_of` returns the paths of a call beside its path fields, `commands` the sandbox in which bash may run.
    `redact` removes secrets from what hooks write, and `tell` takes warnings for the person.
    """

    context: AgentContext
    session: str
    specs: Mapping[str, ToolSpec]
    granted: Collection[str]
    paths_of: Callable[[ToolCall], Sequence[str]]
    commands: Callable[[], Commands | ToolError | None]
    redact: Callable[[str], str]
    tell: Callable[[str], None]

    @cached_property
    def _hooks(self) -> Hooks:
        hooks = trusted_hooks(self.context.workspace)
        if not isinstance(hooks, ToolError):
            return hooks

        self.tell(hooks.message)
        return {}

    def around(
        self, run: Callable[[ToolCall, ToolContext], ToolOutcome], call: ToolCall, context: ToolContext
    ) -> ToolOutcome:
        """Run a call with the hooks before and after it. What a hook changes after it is a part of the call."""
        inputs = self._inputs(call)
        before = self._fire("PreToolUse", inputs, context)
        if before.blocks:
            message = f"A hook of the project blocks this call: {before.blocks}"
            outcome = refused(call.tool, message, ToolErrorCode.PERMISSION_DENIED, "Hook")
            return replace(outcome, call_id=call.call_id)

        outcome = run(call, context)
        if not outcome.result.ok or "PostToolUse" not in self._hooks:
            return outcome

        for fields in inputs:
            fields["tool_response"] = outcome.result.data

        fire = partial(self._fire, "PostToolUse", inputs, context)
        if not self._may_change(call):
            return _with_words(outcome, *fire())

        after, changes, _, unrecorded = watched(context.workspace, partial(fire, changes=True), context.timeout_s)
        if unrecorded or isinstance(changes, Unwatched):
            self.tell(f"What hooks have changed is not recorded: {unrecorded or changes}")
            return _with_words(outcome, *after)

        changed = file_changes(changes)
        outcome = replace(outcome, output=replace(outcome.output, changes=(*outcome.output.changes, *changed)))
        notes = [f"Hooks have changed {change.path}: read it again before the next edit." for change in changed]
        return _with_words(outcome, *notes, *after)

    def of_turn(self, event: str, **fields: Any) -> HookAnswer:
        """Run the hooks of an event of a turn."""
        return self._fire(event, [fields])

    def _may_change(self, call: ToolCall) -> bool:
        context = self.context
        is_bound = context.is_read_only or context.strict or context.writable_paths
        return not is_bound and self.specs[call.tool].effect in CHANGING

    def _inputs(self, call: ToolCall) -> list[JsonMap]:
        """Return the fields of a call for its hooks, one for each path that it names."""
        arguments: JsonMap = {_ARGUMENTS.get(name, name): value for name, value in call.arguments.items()}
        argv = command_argv(call.tool, call.arguments)
        files: list[JsonMap] = []

        if call.tool == COMMAND_TOOL:
            arguments["command"] = shlex.join(argv)
        elif not argv:
            paths = paths_of_call(call, self.specs[call.tool], self.paths_of)
            files = [{"file_path": join(self.context.workspace, str(path))} for path in paths]

        named = {"tool_name": call.tool, "tool_use_id": call.call_id}
        return [{**named, "tool_input": {**arguments, **file}} for file in files or [{}]]

    def _fire(
        self, event: str, inputs: Sequence[JsonMap], context: ToolContext | None = None, *, changes: bool = False
    ) -> HookAnswer:
        """Run the hooks of an event with each of the inputs, until one blocks it."""
        words: list[str] = []
        for fields in inputs:
            tool = fields.get("tool_name", "")
            subject = tool or fields.get("source", "")
            for group in self._hooks.get(event, ()):
                name = group.first_match((*foreign_names(tool), subject))
                if subject and not name:
                    continue

                named = {"tool_name": name} if tool else {}
                document = orjson.dumps({**self._common_fields(event), **fields, **named}, default=str)
                for hook in group.commands:
                    answer = self._read(event, tool, hook, self._run(hook, document, context, changes=changes))
                    words.append(answer.words)
                    if answer.blocks:
                        return answer

        return HookAnswer(words="\n".join(filter(None, words)))

    def _common_fields(self, event: str) -> JsonMap:
        context = self.context
        return {
            "session_id": self.session,
            "transcript_path": "",
            "cwd": context.workspace,
            "permission_mode": _MODES[context.mode],
            "hook_event_name": event,
        }

    def _run(
        self, hook: HookCommand, document: bytes, context: ToolContext | None, *, changes: bool
    ) -> HookOutput | ToolError:
        root = self.context.workspace
        variables = {"CLAUDE_PROJECT_DIR": root}
        if self.context.hooks == "unconfined":
            return run_unconfined(root, hook.command, document, hook.timeout, variables)

        commands = self.commands()
        if not isinstance(commands, Commands):
            return commands or ToolError(code=ToolErrorCode.UNAVAILABLE, message="No program may run.")
        if context is not None and context.scope is not None:
            commands = commands.in_scope(context.scope)

        try:
            return run_in_sandbox(commands, hook.command, document, hook.timeout, variables, changes=changes)
        except ScopeOverError as error:
            return ToolError(code=ToolErrorCode.CANCELLED, message=str(error))

    def _read(self, event: str, tool: str, hook: HookCommand, output: HookOutput | ToolError) -> HookAnswer:
        """Return what a hook says; of one that fails a person is told, and without its judgement no call runs."""
        if isinstance(output, ToolError):
            self.tell(f"{quoted(hook.command)} could not be run: {output.message}")
            return HookAnswer("it could not be run." if event == "PreToolUse" else "")

        if output.exit_code == 2:  # Source: the exit code that blocks
            return self._answer(output.stderr or "It gives no reason.")
        if output.exit_code:
            self.tell(f"{quoted(hook.command)} ended with exit code {output.exit_code}: {output.stderr[:_MOST_TEXT]}")
            return HookAnswer()

        document = json_map(output.stdout)
        if not document:
            is_told = event in {"UserPromptSubmit", "SessionStart"}
            return self._answer("", output.stdout if is_told else "")

        specific = document.get("hookSpecificOutput")
        if not isinstance(specific, dict):
            specific = {}

        decision = specific.get("permissionDecision") or document.get("decision")
        reason = specific.get("permissionDecisionReason") or document.get("reason") or document.get("stopReason")
        is_stopped = document.get("continue") is False and event != "Stop"
        if decision in {"deny", "block"} or is_stopped or (decision == "ask" and not self._is_asked_about(tool)):
            return self._answer(reason or f"Its decision is {decision or 'to stop'}.")

        return self._answer("", specific.get("additionalContext") or "")

    def _is_asked_about(self, tool: str) -> bool:
        """Return whether a person approves each call of this tool, so that they have approved the running one."""
        spec = self.specs.get(tool)
        return self.context.mode == "ask" and spec is not None and spec.effect in ASKED and tool not in self.granted

    def _answer(self, *texts: object) -> HookAnswer:
        return HookAnswer(*(self.redact(str(text).strip()[:_MOST_TEXT]) for text in texts))


def _with_words(outcome: ToolOutcome, *texts: str) -> ToolOutcome:
    words = "\n".join(filter(None, texts))
    if not words:
        return outcome

    result = ToolResult(ok=True, data={**outcome.result.data, "hooks": words})
    return replace(outcome, output=replace(outcome.output, result=result))
