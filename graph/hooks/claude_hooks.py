"""The hooks of a workspace's `.claude/settings.json`, as Claude Code has them.

A hook is a command that runs by itself, so nothing of the file is used before the user trusts it. The mark of trust
pins the file and the scripts of the workspace that its commands name. Source: Claude Code, "Hooks reference".
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from os import X_OK, access
from os.path import isfile, join, realpath, relpath
from typing import Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from mendgraph.nodes.records import Record, ToolError, invalid
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE, hash_of, read_settings_file, trusted_hash

EVENTS: Final = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "SessionStart")
"""The events whose hooks run; those of others are ignored."""

_PROJECT: Final = re.compile(r"\$\{?CLAUDE_PROJECT_DIR\}?")
_PATH: Final = re.compile(r"[\w.@+-]*/[\w./@+-]*")
_SEPARATOR: Final = re.compile(r"[;|&()]+|[{}!]|if|then|elif|else|while|until|do")
_RUNNER: Final = re.compile(
    r"\w+=.*|python[\d.]*|pypy[\d.]*|node|bun|deno|tsx|ts-node|ruby|perl|php|bash|sh|zsh|dash|source|\.|env|exec|sudo"
    r"|time|nohup|timeout|\d+s?|xargs|npx|bunx|uv|uvx|run"
)
"""Words after which another one names what is run."""
_UNTRUSTED: Final = (
    f"The hooks of {HOOKS_FILE} do not run{{}}. Read the file, then trust it with `mendgraph config trust`, or leave it"
    " out with --no-workspace-config"
)


class HookCommand(Record):
    """One hook; one of another `type` than "command" does not run. `timeout` is in seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str
    command: str = ""
    timeout: float = Field(default=60.0, gt=0, le=3_600)


class HookGroup(Record):
    """The hooks of one event for the tools whose names match."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    matcher: str = ""
    hooks: tuple[HookCommand, ...] = ()

    @field_validator("matcher")
    @classmethod
    def _is_pattern(cls, matcher: str) -> str:
        try:
            re.compile(matcher.removeprefix("*"))
        except re.error as error:
            raise ValueError(f"the matcher is no regular expression: {error}") from None

        return matcher

    @property
    def commands(self) -> list[HookCommand]:
        """The hooks that run."""
        return [hook for hook in self.hooks if hook.type == "command" and hook.command.strip()]

    def first_match(self, names: Sequence[str]) -> str:
        """Return the first of a tool's names that the hooks are for, or "". Without a matcher it is any."""
        matcher = self.matcher.removeprefix("*") or ".*"
        return next((name for name in names if re.fullmatch(matcher, name)), "")


Hooks = Mapping[str, tuple[HookGroup, ...]]
"""The groups of each event that has commands."""

_EVENTS: Final = TypeAdapter(dict[str, tuple[HookGroup, ...]])


def parse_hooks(data: bytes) -> Hooks | ToolError:
    """Return the hooks in a `.claude/settings.json`, or its first problem."""
    try:
        hooks = json.loads(data.decode("utf-8-sig")).get("hooks", {})
        named = {event: groups for event, groups in hooks.items() if event in EVENTS}
        events = _EVENTS.validate_json(json.dumps(named))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return invalid(f"{HOOKS_FILE}: {'.'.join(map(str, first['loc']))}: {first['msg']}.")
    except (ValueError, AttributeError, RecursionError):
        return invalid(f"{HOOKS_FILE} is no JSON object with an object `hooks`.")

    return {event: groups for event, groups in events.items() if any(group.commands for group in groups)}


def trusted_hooks(root: str) -> Hooks | ToolError:
    """Return the hooks of the workspace, none without any; the error says how to trust them."""
    data = read_settings_file(root, HOOKS_FILE)
    if data is None:
        return {}
    if isinstance(data, ToolError):
        return data

    hooks = parse_hooks(data)
    if isinstance(hooks, ToolError) or not hooks:
        return hooks

    mark = trusted_hash(root, HOOKS_FILE)
    if not mark:
        return invalid(f"{_UNTRUSTED.format('')}.")
    if not mark.startswith(hash_of(data)) or fingerprint(root, data) != mark:
        return invalid(f"{_UNTRUSTED.format(', as it or what it runs has changed')}.")

    return hooks


def fingerprint(root: str, data: bytes) -> str:
    """Return the mark by which the hooks are trusted: the hash of the file, and that of the scripts that it names."""
    files = Workspace(realpath(root), lambda *_: None)
    digest = sha256()
    hooks = parse_hooks(data)

    for path in () if isinstance(hooks, ToolError) else scripts_of(hooks, root):
        content = files.read_file(relpath(path, realpath(root)))
        if isinstance(content, FileContent):
            digest.update(f"{content.sha256}\n".encode())

    return hash_of(data) + digest.hexdigest()


def executed_by_hooks(root: str) -> tuple[str, ...]:
    """Return the absolute names of the files of the workspace that its trusted hooks name."""
    hooks = trusted_hooks(root)
    return () if isinstance(hooks, ToolError) else scripts_of(hooks, root)


def scripts_of(hooks: Hooks, root: str) -> tuple[str, ...]:
    """Return the absolute names of the scripts below `root` that the commands run, in order; one need not exist yet."""
    root = realpath(root)
    paths: dict[str, None] = {}

    for groups in hooks.values():
        for command in chain.from_iterable(group.commands for group in groups):
            for word in _programs(_PROJECT.sub(lambda _: root, command.command), root):
                path = realpath(join(root, word))
                if path != root and is_below(path, root):
                    paths[path] = None

    return tuple(paths)


def _programs(line: str, root: str) -> Iterator[str]:
    """Yield the words of a command line that name a program, an executable file, or what an interpreter runs."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # an open quote, as in a here-document
        words = line.split()

    runs_next = True
    for word in words:
        if _SEPARATOR.fullmatch(word):
            runs_next = True
        elif not word.startswith(("-", "~", "$")):
            path = join(root, word)
            is_file = isfile(path)
            if (is_file and access(path, X_OK)) or (runs_next and (is_file or _PATH.fullmatch(word))):
                yield word
            elif runs_next and " " in word:  # the script of `bash -c`
                yield from _programs(word, root)

            runs_next = runs_next and bool(_RUNNER.fullmatch(word.rpartition("/")[2]))
