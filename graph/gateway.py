"""The `execute_tools` room of one machine: its tools, what a run may do with them, and where that is written down.

A run's own permissions come from the context that is stored in its state. What outlives a run (circuits, rates) is
kept here, by name or by run.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from math import inf
from os.path import join, realpath
from typing import Any

from graph.context import AgentContext
from graph.slices import ExecuteToolsSlice
from nodes.execute_tools.cache import ToolCache
from nodes.execute_tools.engine import Engine, EngineConfig
from nodes.execute_tools.environment.audit_log import AuditLog
from nodes.execute_tools.environment.command_rules import CommandRules
from nodes.execute_tools.environment.commands import Commands, open_commands
from nodes.execute_tools.environment.deadline import monotonic_s
from nodes.execute_tools.environment.kept_results import KeptResults
from nodes.execute_tools.environment.network import Network
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE, run_folder, run_folder_path
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.node import execute_tools
from nodes.execute_tools.policy.call_policy import CallPolicy, PolicyMemory
from nodes.execute_tools.policy.idempotency import call_fingerprint
from nodes.execute_tools.policy.roles import allowed_tools
from nodes.execute_tools.redact import Redactor, known_values
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from nodes.execute_tools.tools import default_tools
from nodes.execute_tools.trace import TraceEvent, TraceSink
from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.policy import judge_path
from nodes.guard.verdicts import results_of_denied
from nodes.records import CallError, CallResult, JsonMap, Plan, ToolCall, ToolError, ToolErrorCode, Verdict

Update = dict[str, Any]
Write = Callable[[Any], None]
"""LangGraph's stream writer: what it is given reaches whoever streams the run with mode "custom"."""

_COMMAND_TOOL, _NETWORK_TOOL = "run_command", "http_get"
_NO_PATH = "\0"
"""Named instead of paths that nobody knows: no file can have this name, so guard denies the call."""
_PUBLIC_CERTIFICATES = "site-packages/certifi/cacert.pem"
_MOST_COMMANDS = 64
"""Workspaces whose sandboxes are remembered."""


class Gateway:
    """Holds the tools and their policy; every effect of every run goes through `run`."""

    def __init__(
        self,
        tools: Sequence[Tool] | None,
        rules: tuple[FileGuardrailRule, ...],
        roles: Mapping[str, Collection[str]],
        secrets: Iterable[str],
    ) -> None:
        """Nothing is opened yet. `roles` are lists of tool names, `secrets` values that are never shown."""
        self.registry = ActionRegistry(default_tools() if tools is None else tools)
        self.specs = {spec.name: spec for spec in self.registry.specs()}
        self._terminal = frozenset(spec.name for spec in self.specs.values() if spec.terminal)
        self._judge = partial(judge_path, rules=rules)
        self._roles, self._secrets = dict(roles), tuple(secrets)
        self._memory = PolicyMemory(monotonic_s)
        self._commands: dict[tuple[str, CommandRules], Commands] = {}

    def redactor(self) -> Redactor:
        """What takes out secrets: the given values and those of the environment first, then shapes and names."""
        return _redactor((*self._secrets, *known_values(os.environ)))

    def allowed(self, context: AgentContext) -> frozenset[str] | ToolError:
        """The names of the tools that this run's role may use."""
        return allowed_tools(context.role, self._roles, self.specs.values())

    def usable(self, context: AgentContext) -> frozenset[str]:
        """The tools that are worth telling the model of: allowed ones that have what they need."""
        allowed = self.allowed(context)
        names = frozenset[str]() if isinstance(allowed, ToolError) else allowed
        if not isinstance(self.commands(context), Commands):
            names -= {_COMMAND_TOOL}
        return names if context.allowed_hosts else names - {_NETWORK_TOOL}

    def notes(self, context: AgentContext) -> Mapping[str, str]:
        """What the model has to know of this run's permissions, by tool."""
        return {
            _COMMAND_TOOL: f"Allowed: {', '.join(context.allowed_programs)}.",
            _NETWORK_TOOL: f"Allowed hosts: {', '.join(context.allowed_hosts)}.",
        }

    def paths_of(self, call: ToolCall) -> Sequence[str]:
        """The paths that a call names inside of other arguments."""
        tool = self.registry.get(call.tool)
        if tool is None or tool.paths_of is None:
            return ()
        try:
            return tool.paths_of(call.arguments)
        except Exception:  # noqa: BLE001 - a user's function may fail in any way, and none of them opens the way
            return (_NO_PATH,)

    def workspace(self, context: AgentContext, observe: Callable[[JsonMap], None] | None = None) -> Workspace:
        """The only door to the files of the run."""
        extensions = frozenset(context.allowed_extensions)
        return Workspace(context.workspace, self._judge, observe=observe, allowed_extensions=extensions)

    def commands(self, context: AgentContext) -> Commands | ToolError | None:
        """What may be started; None where nothing may, and why it cannot where no sandbox starts.

        The same one for the same workspace and rules: it remembers what it has to hide.
        """
        if not context.allowed_programs:
            return None
        rules = CommandRules(context.allowed_programs, context.tool_timeout_s, readable=context.readable_folders)
        key = (context.workspace, rules)
        known = self._commands.get(key)
        if known is None:
            opened = open_commands(context.workspace, rules, self._is_hidden)
            if isinstance(opened, ToolError):
                return opened
            if len(self._commands) >= _MOST_COMMANDS:
                self._commands.clear()
            known = self._commands.setdefault(key, opened)
        return known

    def _is_hidden(self, path: str) -> bool:
        """Whether a command may not see this file. Certificates of public authorities look like keys, and are none."""
        return not path.endswith(_PUBLIC_CERTIFICATES) and self._judge(path, for_write=False) is not None

    def run(self, state: ExecuteToolsSlice, run_id: str, write: Write) -> Update:
        """Run the calls that guard allowed, and charge their time to the turn."""
        context, spending = state["context"], state["spending"]
        redactor = self.redactor()
        sink = TraceSink(run_id, str(state.get("step", 0)), forward=partial(_forward, write), redactor=redactor)
        used = dict(state.get("tool_counts", {}))
        allowed = self.allowed(context)
        rules = context.calls(frozenset() if isinstance(allowed, ToolError) else allowed)
        # A cache that lives for one step cannot serve what an editor beside us has changed since.
        engine = Engine(
            self.registry,
            sink,
            EngineConfig(async_timeout_s=context.tool_timeout_s),
            cache=ToolCache(),
            policy=CallPolicy(rules, self._memory, scope=run_id, used=used),
            redactor=redactor,
        )
        update = execute_tools(
            state, engine.run_sync, self._tool_context(state, run_id, sink), self._terminal, results_of_denied
        )
        self.note(context, run_id, state, update["results"])
        seconds = spending.seconds + sum(result.ms for result in update["results"]) / 1_000
        return {**update, "tool_counts": used, "spending": spending.model_copy(update={"seconds": seconds})}

    def note(self, context: AgentContext, run_id: str, state: Any, results: Sequence[CallResult]) -> None:
        """Write what became of each call into the run's audit log."""
        log = self._audit(context, run_id)
        if log is None:
            return
        redactor = self.redactor()
        step = state.get("step", 0)
        for item, verdict, result in zip(state["items"], state["verdicts"], results, strict=False):
            log.write(redactor.value(_audit_record(run_id, step, item, verdict, result)))

    def note_alert(self, context: AgentContext, run_id: str, alert: JsonMap) -> None:
        """Write an alert into the run's audit log."""
        log = self._audit(context, run_id)
        if log is not None:
            log.write({"time": _now(), "event": "alert", "run_id": run_id, **alert})

    def folder(self, context: AgentContext, run_id: str) -> str | ToolError:
        """The run's own folder, for its log and its kept results. It may not lie where the agent works."""
        folder = run_folder_path(run_id)
        if not realpath(folder).startswith(join(context.workspace, "")):
            return run_folder(run_id)
        message = (
            f"The folder for the runs' own files, {folder}, lies inside the workspace, where the agent could change it:"
            f" let {DATA_DIR_VARIABLE} name another one."
        )
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    def _audit(self, context: AgentContext, run_id: str) -> AuditLog | None:
        folder = self.folder(context, run_id) if context.audit else None
        return AuditLog(folder) if isinstance(folder, str) else None

    def _tool_context(self, state: ExecuteToolsSlice, run_id: str, sink: TraceSink) -> ToolContext:
        context, spending = state["context"], state["spending"]
        limit = context.limits().max_seconds
        folder, commands = self.folder(context, run_id), self.commands(context)
        if isinstance(commands, ToolError):
            sink.emit("commands.unavailable", {"reason": commands.message})
        if isinstance(folder, ToolError):
            sink.emit("audit.unavailable", {"reason": folder.message})
        return ToolContext(
            workspace=self.workspace(context, partial(sink.emit, "sandbox.refused")),
            files_read=state.get("files_read", {}),
            plan=state.get("plan") or Plan(),
            timeout_s=context.tool_timeout_s,
            seconds_left=inf if limit is None else limit - spending.seconds,
            kept=KeptResults(join(folder, "results")) if isinstance(folder, str) else None,
            commands=commands,
            network=Network(context.network()) if context.allowed_hosts else None,
        )


@lru_cache(maxsize=8)
def _redactor(values: tuple[str, ...]) -> Redactor:
    return Redactor(values)


def _forward(write: Write, event: TraceEvent) -> None:
    write({"type": "trace", **asdict(event)})


def _audit_record(run_id: str, step: int, item: ToolCall | CallError, verdict: Verdict, result: CallResult) -> JsonMap:
    """What is kept of a call: what was asked and judged, and how it ended; of its arguments only their hash."""
    error = result.result.error
    return {
        "time": _now(),
        "event": "call",
        "run_id": run_id,
        "step": step,
        "tool": item.tool,
        "path": verdict.path,
        "verdict": verdict.kind.value,
        "rule": verdict.rule,
        "arguments_sha256": _fingerprint(item),
        "ok": result.result.ok,
        "error_type": "" if error is None else error.code.value,
        "ms": result.ms,
        "attempts": result.attempts,
        "changed": [change.path for change in result.changes],
    }


def _fingerprint(item: ToolCall | CallError) -> str:
    if isinstance(item, ToolCall):
        return call_fingerprint(item.tool, item.arguments)
    return sha256(item.raw_arguments.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
