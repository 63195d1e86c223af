"""Permissions: what an approval allows beyond the shown call, for a thread or for a workspace.

A command is identified by the program's real path and its first words, which tables define. A program that is in no
table, such as an interpreter, a wrapper or `make`, has no prefix.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from mendgraph.nodes.guard.policy import shown
from mendgraph.nodes.guard.scope import PROJECT_CONFIG_RULE
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
            return f"{self.tool} {shown(shlex.join(self.prefix))}{shown(program)} with any further arguments"
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
    """Return the subject of a call. A program in the workspace may change, so it has no prefix."""
    argv = call.arguments.get("argv")
    if not isinstance(argv, list) or not argv:
        return CallSubject(subject)

    name = str(argv[0]).rpartition("/")[2]
    resolved = subject.startswith("/") and not PurePath(subject).is_relative_to(workspace or "/")
    return CallSubject(subject, (name,), command_prefix(name, argv[1:]) if resolved else None)


def covers(permission: Permission, rule: str, tool: str, subject: CallSubject, thread: str = "") -> bool:
    """Return whether the permission covers a call of this tool under this rule.

    A permission for a thread may cover a program with any arguments, one for a workspace only simple commands.
    """
    if (permission.rule, permission.tool, permission.subject) != (rule, tool, subject.subject):
        return False
    if permission.scope == "thread" and permission.place != thread:  # a fork does not inherit it
        return False
    if not subject.name:
        return permission.prefix == ()

    covers_name = permission.scope == "thread" and permission.prefix == subject.name
    return covers_name or permission.prefix == subject.prefix


def permissions_for(
    rule: str, call: ToolCall, spec: ToolSpec, subject: CallSubject, *, thread: str, workspace: str
) -> dict[str, Permission]:
    """Return the permissions that answers would grant; `workspace` is "" if permissions are not stored."""
    if not thread or rule == PROJECT_CONFIG_RULE.name:
        return {}

    named = (subject.subject, *subject.name, *(subject.prefix or ()))
    if any(shown(name) != name for name in named):  # names that are shortened could look alike
        return {}

    def permission(prefix: tuple[str, ...], scope: Literal["thread", "workspace"], place: str) -> Permission:
        return Permission(rule=rule, tool=call.tool, subject=subject.subject, prefix=prefix, scope=scope, place=place)

    offered = {}
    if subject.prefix is not None and subject.prefix != subject.name:
        offered["approve_prefix"] = permission(subject.prefix, "thread", thread)

    offered["approve_for_run"] = permission(subject.name, "thread", thread)

    if workspace and subject.prefix is not None:
        offered["approve_always"] = permission(subject.prefix, "workspace", workspace)
    elif workspace and spec.effect is Effect.NETWORK and subject.subject:
        offered["approve_always"] = permission((), "workspace", workspace)

    return offered


# --- Simple commands


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALONE: Final = _names("""
basename cat cmp comm cut date df diff dirname du echo egrep fgrep file find grep head jq ls md5sum mypy nl od printf
pwd pyright pytest readlink realpath rg sha1sum sha256sum stat tail tr wc
""")
"""Programs that are simple with any arguments, except the options below."""

_WITH_SUBCOMMAND: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "cargo": _names("build check clippy doc fmt metadata test tree"),
        "git": _names("""
    add blame branch checkout cherry-pick commit describe diff log ls-files merge mv reset restore rev-parse revert rm
    show stash status switch tag
    """),
        "go": _names("build doc fmt list mod test version vet"),
        "npm": _names("ls outdated test"),
        "pnpm": _names("list outdated test"),
        "ruff": _names("check format rule"),
        "yarn": _names("list outdated test"),
    }
)
"""Programs whose prefix includes one of these subcommands. Source: VS Code approves terminal commands like that."""

_OF_SCRIPTS: Final = _names("npm pnpm yarn")
"""`run` is followed by the name of a script, and options may name a shell."""

_STARTING: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cargo": ("--config", "-Z"),
        "find": ("-exec", "-ok", "-delete", "-fprint", "-fls"),
        "go": ("-exec", "--exec", "-toolexec", "--toolexec", "-vettool", "--vettool"),
        "rg": ("--pre", "--hostname-bin"),
        **dict.fromkeys(_OF_SCRIPTS, ("-",)),
    }
)
"""Prefixes of options that start other programs, or delete or write files."""


def command_prefix(name: str, arguments: Sequence[object]) -> tuple[str, ...] | None:
    """Return the prefix of a simple command, such as `ls`, `git log` or `npm run build`, or None."""
    words = [str(argument) for argument in arguments]
    if "--" in words and name in _OF_SCRIPTS:
        options = words[: words.index("--")]
    else:
        options = words

    if any(word.startswith(_STARTING.get(name, ())) for word in options):
        return None
    if name in _ALONE:
        return (name,)
    if name in _OF_SCRIPTS and words[:1] == ["run"] and len(words) > 1:
        return (name, *words[:2])

    subcommands = _WITH_SUBCOMMAND.get(name, frozenset())
    if words and words[0] in subcommands:
        return (name, words[0])

    return None
