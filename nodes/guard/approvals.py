"""What a person is asked, and how an answer is read: typed on both sides, and closed where something is missing. Pure.

One request holds all calls of a reply that wait. An answer counts only where it says something: what is missing or
cannot be read is a rejection. A grant allows calls of the same kind for the rest of a run.
"""

import hashlib
import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, NotRequired, cast, get_args
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from mendgraph.nodes.guard.file_rules import PROJECT_CONFIG_RULE
from mendgraph.nodes.guard.paths import shown
from mendgraph.nodes.records import Effect, JsonMap, Record, ToolCall, ToolSpec, Verdict


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


Action = Literal["approve", "approve_for_run", "edit", "reject", "stop", "nobody"]
"""What may be said of a call. "nobody" is a program's word: there is no person who could be asked."""

ACTIONS: Final[frozenset[str]] = frozenset(get_args(Action))


class ShownPreview(TypedDict):
    """What a call would do. Its text is bounded, free of secrets, and without control characters.

    "diff" is unified; "argv" a command as a shell would quote it; "arguments" a line for each; "problem" says why the
    call would do nothing.
    """

    kind: Literal["diff", "argv", "arguments", "problem"]
    text: str
    truncated: bool


class AskedCall(TypedDict):
    """One call that waits. `path` is where it really leads, seen from the workspace; "" where it names none.

    `grant` says what "approve_for_run" would allow, "" where that is no more than "approve". An answer that repeats the
    `digest` is taken only for what was shown here. `problem` says what was wrong with the answer before.
    """

    index: int
    tool: str
    path: str
    rule: str
    arguments: JsonMap
    preview: ShownPreview
    grant: str
    digest: str
    problem: NotRequired[str]


class ApprovalRequest(TypedDict):
    """What an interrupted run shows. It is answered by an `ApprovalAnswer`."""

    kind: Literal["approval"]
    calls: list[AskedCall]


class CallDecision(TypedDict, total=False):
    """The answer about one call. `arguments` are those of "edit", all of them; `reason` is told to the model."""

    action: Action
    arguments: JsonMap
    reason: str
    digest: str


class ApprovalAnswer(TypedDict):
    """The answers by the index of the call, as digits. A bare action, such as "approve", answers for all calls."""

    decisions: dict[str, CallDecision]


RESPONSE_SCHEMA: Final[JsonMap] = {
    "title": "ApprovalAnswer",
    "description": "One word for all calls, or a decision for each call by its index. What is missing is rejected.",
    "anyOf": [
        {"type": "string", "enum": ["approve", "approve_for_run", "reject", "stop"]},
        {
            "type": "object",
            "required": ["decisions"],
            "additionalProperties": False,
            "properties": {
                "decisions": {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]+$"},
                    "additionalProperties": {
                        "type": "object",
                        "required": ["action"],
                        "additionalProperties": False,
                        "properties": {
                            "action": {"type": "string", "enum": sorted(ACTIONS)},
                            "arguments": {"type": "object", "description": "With edit: all arguments of the call."},
                            "reason": {"type": "string", "description": "With reject: why, for the model."},
                            "digest": {"type": "string", "description": "The call's digest: take it as it was shown."},
                        },
                    },
                }
            },
        },
    ],
}
"""What clients may send. It is shown to them; an answer that does not fit is read all the same, and rejects."""


class Preview(NamedTuple):
    """What a call would do. `names` are the real names of the files that it names or changes, `pins` as in `Verdict`.

    `shown` is for a person.
    """

    shown: ShownPreview
    names: tuple[str, ...] = ()
    pins: tuple[tuple[str, str, str], ...] | None = None


NO_PREVIEW: Final = Preview(ShownPreview(kind="arguments", text="", truncated=False))

PreviewOf = Callable[[Mapping[int, ToolCall]], Mapping[int, Preview]]
"""Calls by their index, in order -> what they would do, one after the other, without doing it."""


class Decision(NamedTuple):
    """An answer about one call, as it was read: `arguments` are None unless they were edited."""

    action: Action
    reason: str = ""
    arguments: JsonMap | None = None
    digest: str = ""


UNREADABLE: Final = "the answer could not be read"
UNANSWERED: Final = "there was no answer for this call"


def asked_call(index: int, call: ToolCall, verdict: Verdict, preview: Preview, grant: str) -> AskedCall:
    """The call as it is shown."""
    return AskedCall(
        index=index,
        tool=call.tool,
        path=verdict.path,
        rule=verdict.rule,
        arguments=call.arguments,
        preview=preview.shown,
        grant=grant,
        digest=digest_of(call, preview),
    )


def digest_of(call: ToolCall, preview: Preview) -> str:
    """A short name of what a person is shown of a call: another one if its files or its arguments are others."""
    seen = [call.tool, call.arguments, preview.shown, preview.pins]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_decision(answer: object, index: int) -> Decision:
    """What the answer says of this call."""
    if isinstance(answer, str):
        return _decision({"action": answer}, all_calls=True)
    decisions = answer.get("decisions") if isinstance(answer, Mapping) else None
    if not isinstance(decisions, Mapping):
        return Decision("reject", UNREADABLE)
    said = decisions.get(str(index), decisions.get(index))
    if said is None:
        return Decision("reject", UNANSWERED)
    return _decision({"action": said} if isinstance(said, str) else said)


def _decision(said: object, *, all_calls: bool = False) -> Decision:
    if not isinstance(said, Mapping):
        return Decision("reject", UNREADABLE)
    action, reason, digest = said.get("action"), said.get("reason"), said.get("digest")
    if not isinstance(action, str) or action not in ACTIONS or (all_calls and action == "edit"):
        return Decision("reject", UNREADABLE)
    if digest is not None and not isinstance(digest, str):
        return Decision("reject", UNREADABLE)
    arguments: Any = said.get("arguments")
    if action == "edit" and not isinstance(arguments, Mapping):
        return Decision("reject", UNREADABLE)
    edited = {str(name): value for name, value in arguments.items()} if action == "edit" else None
    return Decision(cast("Action", action), reason if isinstance(reason, str) else "", edited, digest or "")
