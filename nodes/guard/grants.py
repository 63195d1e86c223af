"""What a person allowed for the rest of a run: calls of the same kind, typed, and no more than was said. Pure.

A grant answers a question and nothing else: what a rule denies stays denied, and so does every change in mode
"read-only". It belongs to one thread, so that a fork begins without any. A change of project configuration is asked
for each time.
"""

import posixpath
from urllib.parse import urlsplit

from mendgraph.nodes.guard.file_rules import PROJECT_CONFIG_RULE
from mendgraph.nodes.guard.paths import shown
from mendgraph.nodes.records import Effect, JsonMap, Record, ToolCall, ToolSpec


class Grant(Record):
    """Calls of `tool` that `rule` asks for are allowed in `thread`: of one program or host where `subject` names it."""

    thread: str
    rule: str
    tool: str
    subject: str = ""


def grant_for(thread: str, rule: str, call: ToolCall, spec: ToolSpec) -> Grant | None:
    """What "approve for this run" would allow, None where it is not offered: what it covers could not be told."""
    if not thread or rule == PROJECT_CONFIG_RULE.name:
        return None
    subject = _subject(call, spec)
    if subject is None or shown(subject) != subject:  # two that are cut alike would look like one
        return None
    return Grant(thread=thread, rule=rule, tool=call.tool, subject=subject)


def grant_words(grant: Grant | None, spec: ToolSpec) -> str:
    """The grant for a person, "" for none."""
    if grant is None:
        return ""
    if spec.effect is Effect.EXECUTE:
        return f"{grant.tool} with the program {shown(grant.subject)}, whatever its arguments"
    if spec.effect is Effect.NETWORK:
        return f"{grant.tool} from the host {shown(grant.subject)}"
    return f"{grant.tool} on every file that no rule denies, except project configuration"


def _subject(call: ToolCall, spec: ToolSpec) -> str | None:
    """The program or the host; "" where none is needed, None where it cannot be told."""
    if spec.effect is Effect.WRITE:
        return ""
    if spec.effect is Effect.EXECUTE:
        return _program(call.arguments)
    url = call.arguments.get("url")
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = parts.port if parts else None
    except ValueError:
        return None
    host = parts.hostname if parts else None
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}" if parts and host else None


def _program(arguments: JsonMap) -> str | None:
    """The program by its name, or by its place, which depends on the directory where that is relative."""
    argv, folder = arguments.get("argv"), arguments.get("cwd", ".")
    if not isinstance(argv, list) or not argv or not isinstance(argv[0], str) or not isinstance(folder, str):
        return None
    return (posixpath.normpath(posixpath.join(folder, argv[0])) if "/" in argv[0] else argv[0]) or None
