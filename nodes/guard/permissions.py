"""Permissions: what an approval allows beyond the shown call, for a thread or for a workspace.

A command is identified by the program's real path and its first words, see `nodes/language/command_lines.py`. What a
shell runs as one simple command counts as that command; any other command line counts as the program `bash`.
"""

import hashlib
import shlex
from pathlib import PurePath
from typing import Literal, NamedTuple

from mendgraph.nodes.guard.policy import QUESTION_RULE, shown
from mendgraph.nodes.guard.scope import PROJECT_CONFIG_RULE
from mendgraph.nodes.language.command_lines import (
    COMMAND_TOOL,
    ENVIRONMENT_PROGRAMS,
    EXACT_COMMANDS,
    SHELL_TOOL,
    command_argv,
    command_prefix,
)
from mendgraph.nodes.records import Effect, Record, ToolCall, ToolSpec


class Permission(Record):
    """Allows calls of `tool` under `rule` without a request, in one thread or in every run in a workspace.

    `subject` is the real path of a program, or a host; "" for file tools. `prefix` are the first words of a command.
    `place` is the thread's id, or the workspace's real path.
    """

    rule: str
    tool: str
    subject: str = ""
    prefix: tuple[str, ...] = ()
    scope: Literal["thread", "workspace"] = "thread"
    place: str = ""

    @property
    def id(self) -> str:
        """A short id, for removing it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]

    @property
    def allows(self) -> str:
        """A description of the allowed calls."""
        program = f" ({self.subject})" if self.subject.startswith("/") else ""
        if self.prefix:
            arguments = "" if self.prefix in EXACT_COMMANDS else " with any further arguments"
            return f"{self.tool} {shown(shlex.join(self.prefix))}{shown(program)}{arguments}"
        if self.subject:
            return f"{self.tool} from the host {shown(self.subject)}"
        if self.rule == "ask_before_write":
            return f"{self.tool} on every file that no rule denies, except project configuration"

        return f"{self.tool}, whatever its arguments"


class CallSubject(NamedTuple):
    """The program or host of a call, the program as named in the call, and the prefix of a simple command, or None."""

    subject: str
    name: tuple[str, ...] = ()
    prefix: tuple[str, ...] | None = None


def call_subject(call: ToolCall, subject: str, workspace: str) -> CallSubject:
    """Return the subject of a call. In the workspace only pytest, mypy and Python have a prefix: others may change."""
    argv = command_argv(call.tool, call.arguments)
    if not argv:
        return CallSubject(subject)

    name = argv[0].rpartition("/")[2]
    is_inside = PurePath(subject).is_relative_to(workspace or "/")
    prefix = None
    if subject.startswith("/") and (name in ENVIRONMENT_PROGRAMS or not is_inside):
        prefix = command_prefix(name, argv[1:])

    return CallSubject(subject, (name,), prefix)


def covers(permission: Permission, rule: str, tool: str, subject: CallSubject, thread: str = "") -> bool:
    """Return whether the permission covers a call of this tool under this rule.

    A permission for a thread may cover a program with any arguments, one for a workspace only simple commands.
    """
    if (permission.rule, permission.tool, permission.subject) != (rule, _permitted_tool(tool), subject.subject):
        return False
    if permission.scope == "thread" and permission.place != thread:  # a fork does not inherit it
        return False
    if not subject.name:
        return permission.prefix == ()

    covers_name = permission.scope == "thread" and permission.prefix == subject.name
    return covers_name or permission.prefix == subject.prefix


def _permitted_tool(tool: str) -> str:
    """Return the tool of a permission: a command is the same one for both tools that run commands."""
    return COMMAND_TOOL if tool == SHELL_TOOL else tool


def permissions_for(
    rule: str, call: ToolCall, spec: ToolSpec, subject: CallSubject, *, thread: str, workspace: str
) -> dict[str, Permission]:
    """Return the permissions that answers would grant; `workspace` is "" if permissions are not stored."""
    if not thread or rule in {PROJECT_CONFIG_RULE.name, QUESTION_RULE}:
        return {}

    named = (subject.subject, *subject.name, *(subject.prefix or ()))
    if any(shown(name) != name for name in named):  # names that are shortened could look alike
        return {}

    def permission(prefix: tuple[str, ...], scope: Literal["thread", "workspace"], place: str) -> Permission:
        tool = _permitted_tool(call.tool)
        return Permission(rule=rule, tool=tool, subject=subject.subject, prefix=prefix, scope=scope, place=place)

    offered = {}
    if subject.prefix is not None and subject.prefix != subject.name:
        offered["approve_prefix"] = permission(subject.prefix, "thread", thread)

    offered["approve_for_run"] = permission(subject.name, "thread", thread)

    if workspace and subject.prefix is not None:
        offered["approve_always"] = permission(subject.prefix, "workspace", workspace)
    elif workspace and spec.effect is Effect.NETWORK and subject.subject:
        offered["approve_always"] = permission((), "workspace", workspace)

    return offered
