"""Runs the hooks of a workspace's `.claude/settings.json` around tool calls and turns. Imported where there are some.

A hook can only forbid: guard has allowed a call before its hooks run. Source: Claude Code, "Hooks reference".
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os.path import join, normpath, realpath, relpath
from typing import Any, Final, NamedTuple

import orjson

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.hooks.claude_hooks import EventHooks, HookCommand, HookGroup, runners_in, scripts_of, trusted_hooks
from mendgraph.nodes.execute_tools.commands.command_changes import Unwatched, watched
from mendgraph.nodes.execute_tools.commands.commands import Commands
from mendgraph.nodes.execute_tools.commands.hook_command import HookOutput, run_in_sandbox, run_unconfined
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome, refused
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.guard.policy import paths_of_call
from mendgraph.nodes.language.command_lines import COMMAND_TOOL, command_argv
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import json_map
from mendgraph.nodes.language.prompt_files import foreign_names
from mendgraph.nodes.records import CHANGING, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult, ToolSpec, quoted
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError

_MOST_TEXT: Final = 10_000
"""The maximum length of a hook's text for a model or a person, in characters."""
_CANNOT_RUN: Final = 126
"""The first exit code by which bash says that a program cannot run; those of signals are above it."""

_MODES: Final = {"ask": "default", "auto": "acceptEdits", "plan": "plan", "read-only": "plan"}
_MODULE: Final = re.compile(r"python[^|;&\n]*\s-\w*?m")
"""Python with the option that runs a module, perhaps one of the workspace."""

_REMEDY: Final = (
    ' It ran in the sandbox, without your home and network: hooks = "unconfined" in your own config.toml runs hooks'
    " with your rights."
)
_ARGUMENTS: Final = {"old_str": "old_string", "new_str": "new_string"}
"""Claude Code's names of arguments, by those of our tools."""


class HookAnswer(NamedTuple):
    """What the hooks of an event say: why they block it, words for the model, and that no further hook counts."""

    blocks: str = ""
    words: str = ""
    ends: bool = False

    @property
    def text(self) -> str:
        """Everything that they say."""
        return "\n".join(filter(None, (self.blocks, self.words)))


@dataclass(frozen=True)
class ShellHooks:
    """The trusted hooks of one turn.

    `session` is the id of its thread, `specs` are its tools.
    `paths_of` returns the paths of a call beside its path fields, `commands` the sandbox in which bash may run.
    `redact` removes secrets from what hooks write, and `tell` takes warnings for the person.
    """

    context: AgentContext
    session: str
    specs: Mapping[str, ToolSpec]
    paths_of: Callable[[ToolCall], Sequence[str]]
    commands: Callable[[], Commands | ToolError | None]
    redact: Callable[[str], str]
    tell: Callable[[str], None]

    @cached_property
    def _hooks(self) -> EventHooks:
        """The hooks. Without trust in them, or if it is lost during the run, all calls are blocked."""
        hooks = trusted_hooks(self.context.workspace)
        if not isinstance(hooks, ToolError):
            return hooks

        self.tell(hooks.message)
        return {"PreToolUse": (HookGroup("", (HookCommand("", problem=hooks.message),)),)}

    def around(
        self, run: Callable[[ToolCall, ToolContext], ToolOutcome], call: ToolCall, context: ToolContext
    ) -> ToolOutcome:
        """Run a call with the hooks before and after it. What a hook changes after it is a part of the call."""
        refusal = self.refusal(call, context)
        if refusal is not None:
            return refusal

        outcome = run(call, context)
        if not outcome.result.ok or "PostToolUse" not in self._hooks:
            return outcome

        inputs = self._inputs(call)
        for fields in inputs:
            fields["tool_response"] = outcome.result.data

        fire = partial(self._fire, "PostToolUse", inputs, context)
        if not self._may_change(call):
            return _with_words(outcome, fire().text)

        after, changes, _, unrecorded = watched(context.workspace, partial(fire, changes=True), context.timeout_s)
        if unrecorded or isinstance(changes, Unwatched):
            self.tell(f"What hooks have changed is not recorded: {unrecorded or changes}")
            return _with_words(outcome, after.text)

        changed = file_changes(changes)
        outcome = replace(outcome, output=replace(outcome.output, changes=(*outcome.output.changes, *changed)))
        notes = [f"Hooks have changed {change.path}: read it again before the next edit." for change in changed]
        return _with_words(outcome, *notes, after.text)

    def refusal(self, call: ToolCall, context: ToolContext) -> ToolOutcome | None:
        """Run the hooks before a call; return its outcome if one of them blocks it."""
        before = self._fire("PreToolUse", self._inputs(call), context)
        if not before.blocks:
            return None

        message = f"A hook of the project blocks this call: {before.blocks}"
        outcome = refused(call.tool, message, ToolErrorCode.PERMISSION_DENIED, "Hook")
        return replace(outcome, call_id=call.call_id)

    def of_turn(self, event: str, **fields: Any) -> HookAnswer:
        """Run the hooks of an event of a turn."""
        return self._fire(event, [fields])

    def _may_change(self, call: ToolCall) -> bool:
        context = self.context
        is_bound = context.is_read_only or context.strict or context.writable_paths
        return self.specs[call.tool].effect in CHANGING and (is_unconfined(context) or not is_bound)

    def _inputs(self, call: ToolCall) -> list[JsonMap]:
        """Return the fields of a call for its hooks, one for each path that it names or leads to."""
        arguments: JsonMap = {_ARGUMENTS.get(name, name): value for name, value in call.arguments.items()}
        argv = command_argv(call.tool, call.arguments)
        files: list[JsonMap] = []

        if call.tool == COMMAND_TOOL:
            arguments["command"] = shlex.join(argv)
        elif not argv:
            root = self.context.workspace
            paths = [join(root, str(path)) for path in paths_of_call(call, self.specs[call.tool], self.paths_of)]
            paths += [join(root, relpath(realpath(path), realpath(root))) for path in paths]  # where links lead
            files = [{"file_path": path} for path in dict.fromkeys(map(normpath, paths))]

        named = {"tool_name": call.tool, "tool_use_id": call.call_id}
        return [{**named, "tool_input": {**arguments, **file}} for file in files or [{}]]

    def _fire(
        self, event: str, inputs: Sequence[JsonMap], context: ToolContext | None = None, *, changes: bool = False
    ) -> HookAnswer:
        """Run the hooks of an event with each of the inputs, until one blocks it."""
        words: list[str] = []

        for hook, document in self._matches(event, inputs):
            if hook.problem and event == "PreToolUse":
                return HookAnswer(self._text(hook.problem))
            if hook.problem:
                continue

            answer = self._read(event, hook, self._run(event, hook, document, context, changes=changes))
            if answer.blocks or answer.ends:
                return answer

            words.append(answer.words)

        return HookAnswer(words="\n".join(filter(None, words)))

    def _matches(self, event: str, inputs: Sequence[JsonMap]) -> Iterator[tuple[HookCommand, bytes]]:
        """Yield each hook of an event that is for one of the inputs, with its standard input."""
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
                    yield hook, document

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
        self, event: str, hook: HookCommand, document: bytes, context: ToolContext | None, *, changes: bool
    ) -> HookOutput | ToolError:
        root = self.context.workspace
        variables = {"CLAUDE_PROJECT_DIR": root}

        # A file json.py of the agent would run in place of the module: in a guard, or with the user's rights.
        # What make and the like run needs the modules of the workspace, whose code runs there in any case.
        is_exposed = event == "PreToolUse" or is_unconfined(self.context)
        runs_project = runners_in(hook.command) and not scripts_of(hook.command, root)
        if is_exposed and not (runs_project or _MODULE.search(hook.command)):
            variables["PYTHONSAFEPATH"] = "1"

        scope = CancellationScope()
        if context is not None and context.scope is not None:
            scope = context.scope

        try:
            if is_unconfined(self.context):
                return run_unconfined(root, hook.command, document, hook.timeout, variables, scope.check)

            commands = self.commands()
            if not isinstance(commands, Commands):
                return commands or ToolError(code=ToolErrorCode.UNAVAILABLE, message="No program may run.")

            commands = commands.in_scope(scope)
            return run_in_sandbox(commands, hook.command, document, hook.timeout, variables, changes=changes)
        except ScopeOverError as error:
            return ToolError(code=ToolErrorCode.CANCELLED, message=str(error))

    def _read_failure(self, event: str, hook: HookCommand, output: HookOutput) -> HookAnswer:
        """Warn a person of an exit code that decides nothing; a guard that could not be run blocks its call."""
        has_run = 0 < output.exit_code < _CANNOT_RUN
        message = f"ended with exit code {output.exit_code}: {self._text(output.stderr).removesuffix('.')}."
        if not (has_run or is_unconfined(self.context)):
            message += _REMEDY
        if has_run and event == "PreToolUse":
            message += " The call runs."

        self.tell(f"{quoted(hook.command)} {message}")
        if has_run or event != "PreToolUse":
            return HookAnswer()

        return HookAnswer(f"it could not be run (exit code {output.exit_code}).")

    def _read(self, event: str, hook: HookCommand, output: HookOutput | ToolError) -> HookAnswer:
        """Return the answer of a hook; a person is warned of one that fails, and a guard that cannot be read blocks."""
        if isinstance(output, ToolError):
            self.tell(f"{quoted(hook.command)} could not be run: {output.message}")
            return HookAnswer("it could not be run." if event == "PreToolUse" else "")

        if output.exit_code == 2:  # Source: the exit code that blocks
            return HookAnswer(self._text(output.stderr) or "It gives no reason.")
        if output.exit_code:
            return self._read_failure(event, hook, output)

        text = output.stdout.strip().removeprefix("\ufeff")
        document = json_map(text)
        if not document:
            if event == "PreToolUse" and text.lstrip("[ \r\n\t").startswith("{") and text != "{}":
                return HookAnswer("its output is too long or no JSON object.")

            is_told = event in {"UserPromptSubmit", "SessionStart"}
            return HookAnswer(words=self._text(text) if is_told else "")

        specific = document.get("hookSpecificOutput") or {}
        if not isinstance(specific, dict):
            return HookAnswer("its hookSpecificOutput is no JSON object.")

        decision = specific.get("permissionDecision") or document.get("decision") or "allow"
        if not isinstance(decision, str):
            return HookAnswer("its decision is no text.")

        reason = specific.get("permissionDecisionReason") or document.get("reason") or document.get("stopReason")
        is_stopped = document.get("continue") is False
        if event == "Stop" and is_stopped:
            return HookAnswer(ends=True)
        if "updatedInput" in specific:
            return HookAnswer("it changes the arguments (updatedInput), which is not supported.")
        if is_stopped:
            return HookAnswer(self._text(reason) or "Its decision is to stop.")
        if decision not in {"allow", "approve"}:
            return HookAnswer(self._text(reason) or f"Its decision is {self._text(decision)}.")

        return HookAnswer(words=self._text(specific.get("additionalContext")))

    def _text(self, value: object) -> str:
        return self.redact(storable(str(value or "")).strip())[:_MOST_TEXT]


def is_unconfined(context: AgentContext) -> bool:
    """Return whether hooks run with the user's rights: where the request is not the user's, they do not."""
    return context.hooks == "unconfined" and context.request_permits and not context.strict


def _with_words(outcome: ToolOutcome, *texts: str) -> ToolOutcome:
    words = "\n".join(filter(None, texts))
    if not words:
        return outcome

    result = ToolResult(ok=True, data={**outcome.result.data, "hooks": words})
    return replace(outcome, output=replace(outcome.output, result=result))
