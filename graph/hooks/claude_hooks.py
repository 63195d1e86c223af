"""The hooks of a workspace's `.claude/settings.json`, as Claude Code has them.

A hook is a command that runs by itself, so nothing of the file is used before the user trusts it. The mark of trust
pins the file and the scripts of the workspace that its commands name. Source: Claude Code, "Hooks reference".
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import X_OK, access, listdir
from os.path import isdir, isfile, join, normpath, realpath, relpath, splitext
from typing import Any, Final, NamedTuple

from mendgraph.nodes.records import ToolError, invalid
from mendgraph.nodes.workspace.files.atomic_write import read_state
from mendgraph.nodes.workspace.files.handles import closing, open_directory, open_root
from mendgraph.nodes.workspace.files.sandbox import is_below
from mendgraph.nodes.workspace.store.user_files import HOOKS_FILE, hash_of, read_settings_file, trusted_hash

EVENTS: Final = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "SessionStart")
"""The events whose hooks run; those of others are ignored."""

DEFAULT_TIMEOUT_S: Final = 60.0
MAX_TIMEOUT_S: Final = 3_600.0

_UNSUPPORTED: Final = ("args", "shell", "if", "async", "asyncRewake")
"""Fields that change what runs, or when."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_\-,| ]*")
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
"""In a matcher it may take exponential time."""

_PROJECT: Final = re.compile(
    r"[\"']?\$(?:\{?(?:CLAUDE_PROJECT_DIR|PWD)(?::-[^}]*)?\}?|\((?:pwd|git rev-parse --show-toplevel)\))[\"']?"
)
_WORD: Final = re.compile(r"(?:\$\w+/)?([\w.@+/-]+)")
_MODULE: Final = re.compile(r"-\w*?m\s*([\w.]+)")
_CODE: Final = frozenset([".sh", ".bash", ".zsh", ".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb", ".pl", ".php"])
_FOLDER: Final = (".claude", "hooks")
_RUNNER: Final = re.compile(
    r"(?<![\w./-])(?:make|just|task|rake|mvn|gradle|go|cargo|npm|npx|yarn|pnpm|bun|bunx|deno|uv|uvx|poetry|pipx|tox|nox"
    r"|pre-commit|pytest|python[\d.]* +-m)(?![\w./-])"
)
"""Programs that run code of the workspace which their command does not name."""

_REMEDY: Final = (
    "Read the file, then trust it with `mendgraph config trust`, or leave it out with --no-workspace-config."
)


class HookCommand(NamedTuple):
    """One hook; `timeout` is in seconds. With a `problem` it does not run."""

    command: str
    timeout: float = DEFAULT_TIMEOUT_S
    problem: str = ""


class HookGroup(NamedTuple):
    """The hooks of one event for the tools whose names match."""

    matcher: str
    commands: tuple[HookCommand, ...]

    def first_match(self, names: Sequence[str]) -> str:
        """Return the first of a tool's names that the hooks are for, or "". Without a matcher it is any."""
        if self.matcher in {"", "*"}:
            return names[0]

        if _NAMES.fullmatch(self.matcher):
            listed = [name.strip() for name in re.split(r"[,|]", self.matcher)]
            return next((name for name in names if name in listed), "")

        return next((name for name in names if re.search(self.matcher, name)), "")


EventHooks = Mapping[str, Sequence[HookGroup]]
"""The groups of each event that has commands."""


def parse_hooks(data: bytes) -> EventHooks | ToolError:
    """Return the hooks in a `.claude/settings.json`; an entry that cannot be read is a hook with a problem."""
    try:
        document = json.loads(data.decode("utf-8-sig"))
        if document.get("hooks") is None:
            return {}

        named = document["hooks"].items()
    except (ValueError, AttributeError, RecursionError):
        return invalid(f"{HOOKS_FILE} is no JSON object with an object `hooks`.")

    if document.get("disableAllHooks") is True:
        return {}

    events = {event: [_group(entry) for entry in _listed(entries)] for event, entries in named if event in EVENTS}
    return {event: groups for event, groups in events.items() if any(group.commands for group in groups)}


def each_hook(hooks: EventHooks) -> Iterator[tuple[str, str, HookCommand]]:
    """Yield each hook after its event and matcher."""
    for event, groups in hooks.items():
        for group in groups:
            for hook in group.commands:
                yield event, group.matcher, hook


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _group(entry: Any) -> HookGroup:
    fields = entry if isinstance(entry, dict) else {"hooks": [None]}
    matcher = fields.get("matcher") or ""
    commands = tuple(_command(hook) for hook in _listed(fields.get("hooks", [])))

    problem = _matcher_problem(matcher)
    if problem:
        return HookGroup("", tuple(hook._replace(problem=problem) for hook in commands))

    return HookGroup(str(matcher), commands)


def _matcher_problem(matcher: Any) -> str:
    try:
        with warnings.catch_warnings(action="error"):
            re.compile("" if matcher == "*" else matcher)
    except (TypeError, ValueError, OverflowError, RecursionError, Warning, re.error) as error:
        return f"the matcher is no regular expression: {error}"

    return "the matcher repeats a group" if _REPEATED_GROUP.search(matcher) else ""


def _command(entry: Any) -> HookCommand:
    fields = entry if isinstance(entry, dict) else {}
    line = fields.get("command")
    timeout = fields.get("timeout")
    others = [name for name in _UNSUPPORTED if fields.get(name) and (name, fields[name]) != ("shell", "bash")]

    problem = ""
    if fields.get("type") != "command" or not isinstance(line, str) or not line.strip():
        problem = "it is no command"
    elif others:
        problem = f"{', '.join(others)} is not supported"

    if not isinstance(timeout, int | float) or not timeout > 0:
        timeout = DEFAULT_TIMEOUT_S

    return HookCommand(str(line), min(timeout, MAX_TIMEOUT_S), problem)


# --- Trust


def trusted_hooks(root: str) -> EventHooks | ToolError:
    """Return the hooks of the workspace, none without any; the error says how to trust them."""
    data = read_settings_file(root, HOOKS_FILE)
    mark = trusted_hash(root, HOOKS_FILE)
    if data is None and not mark:
        return {}
    if isinstance(data, ToolError):
        return data

    data = data or b""
    hooks = parse_hooks(data)
    if not mark:
        is_untrusted = hooks and not isinstance(hooks, ToolError)
        return invalid(f"The hooks of {HOOKS_FILE} do not run. {_REMEDY}") if is_untrusted else hooks

    changed = [] if mark.startswith(f"{hash_of(data)}\n") else [HOOKS_FILE]
    changed += [path for path, pin in _pins(mark).items() if _pin_of(root, path) != pin]
    if changed:
        return invalid(f"The hooks of {HOOKS_FILE} do not run, as {changed[0]} has changed or is missing. {_REMEDY}")

    return hooks


def problems_of(hooks: EventHooks) -> Iterator[str]:
    """Yield a line for each hook that does not run."""
    for event, _, hook in each_hook(hooks):
        if hook.problem:
            effect = "; the calls that it is for are blocked" if event == "PreToolUse" else ""
            yield f"A hook of {event} in {HOOKS_FILE} does not run: {hook.problem}{effect}"


def mark_of(root: str, data: bytes) -> str:
    """Return the mark by which the hooks are trusted: the hash of the file, and the pins of their scripts."""
    hooks = parse_hooks(data)
    paths: list[str] = []
    if not isinstance(hooks, ToolError):
        paths = [path for _, _, hook in each_hook(hooks) for path in scripts_of(hook.command, root)]

    with suppress(OSError), closing(open_root(root)) as top, closing(open_directory(top, _FOLDER)) as folder:
        paths += ["/".join((*_FOLDER, name)) for name in sorted(listdir(folder))]

    return f"{hash_of(data)}\n{json.dumps({path: _pin_of(root, path) for path in paths})}"


def _pins(mark: str) -> dict[str, str]:
    """Return the pins of the scripts by their paths in the workspace."""
    pins: dict[str, str] = json.loads(mark.partition("\n")[2] or "{}")
    return pins


def _pin_of(root: str, path: str) -> str:
    """Return where a path leads, and the hash of this file, "" without one."""
    target = relpath(realpath(join(root, path)), realpath(root))
    with suppress(OSError), closing(open_root(root)) as folder:
        return f"{target} {read_state(folder, target.split('/'))[0].sha256}"

    return f"{target} "


def executed_by_hooks(root: str) -> tuple[str, ...]:
    """Return the absolute names of the files of the workspace that are pinned, also after one has changed."""
    root = realpath(root)
    return tuple(join(root, path) for path in (HOOKS_FILE, *_pins(trusted_hash(root, HOOKS_FILE))))


def scripts_of(command: str, root: str) -> tuple[str, ...]:
    """Return the paths of the scripts in the workspace that a command names, in order; one need not exist yet.

    A word may name one in each folder that another word names, as after `cd`. A data file is no script.
    """
    root = realpath(root)
    line = _PROJECT.sub(".", command).replace(f"{root}/", "./")
    words = _WORD.findall(line)
    paths = [join(root, word) for word in words if word[0] != "/" and splitext(word)[1] in _CODE]

    words += re.split("[\"']", line)
    for module in _MODULE.findall(line):
        name = module.replace(".", "/")
        words += [f"{name}.py", f"{name}/__init__.py", f"{name}/__main__.py"]

    words = [word.lstrip("/") for word in words]
    folders = [root, *(folder for folder in (join(root, word) for word in words) if isdir(folder))]
    paths += [path for folder in folders for path in (join(folder, word) for word in words) if isfile(path)]

    normal = dict.fromkeys(real for path in paths for real in (normpath(path), realpath(path)))
    return tuple(relpath(path, root) for path in normal if is_below(path, root) and _is_script(path))


def _is_script(path: str) -> bool:
    return not isdir(path) and (splitext(path)[1] in _CODE or access(path, X_OK))


def runners_in(command: str) -> str:
    """Return the programs in a command that run code of the workspace which it does not name, "" for none."""
    return ", ".join(dict.fromkeys(_RUNNER.findall(command)))
