"""Calls that wait for a person: what is asked, how an answer is read, and what becomes of the calls.

One request holds all calls of a reply that wait. What is missing in an answer or cannot be read is a rejection; where
nothing of it can be read, it is asked again. A permission allows calls of the same kind for longer. All that
happens before the question is looking: LangGraph runs the node again from its start when an answer arrives, and what is
seen then is compared with what was shown.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, NotRequired, Required, cast, get_args

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mendgraph.nodes.guard.permissions import CallSubject, Permission, call_subject, covers, permissions_for
from mendgraph.nodes.guard.policy import Item, denied, shown
from mendgraph.nodes.guard.scope import PROJECT_CONFIG_RULE, why_asked
from mendgraph.nodes.records import (
    CallResult,
    Effect,
    JsonMap,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolSpec,
    Verdict,
    VerdictKind,
)

Action = Literal["approve", "approve_prefix", "approve_for_run", "approve_always", "edit", "reject", "stop", "nobody"]
"""What may be said of a call. "nobody" is a program's word: there is no person who could be asked."""

ACTIONS: Final[frozenset[str]] = frozenset(get_args(Action))


class ShownPreview(TypedDict):
    """What a call would do. Its text is bounded, free of secrets, and without control characters.

    "diff" is unified; "argv" a command as a shell would quote it; "arguments" a line for each.
    """

    kind: Literal["diff", "argv", "arguments"]
    text: str
    truncated: bool


class AskedCall(TypedDict):
    """One call that waits. `path` is where it really leads, seen from the workspace; "" where it names none.

    `why` says what kind of file it is if each change of such a file is asked for, "" otherwise. `choices` say what
    "approve_prefix", "approve_for_run" and "approve_always" would allow beside this call; an answer without an entry
    there counts as "approve". An answer that repeats the `digest` is taken only for what was shown here.
    """

    index: int
    tool: str
    path: str
    rule: str
    why: NotRequired[str]
    arguments: JsonMap
    preview: ShownPreview
    choices: dict[str, str]
    digest: str


class ApprovalRequest(TypedDict):
    """What an interrupted run shows. It is answered by an `ApprovalAnswer`.

    `problem` says why it is asked again: the answer before, such as `Command(resume=True)`, could not be read.
    """

    kind: Literal["approval"]
    calls: list[AskedCall]
    problem: NotRequired[str]


class CallDecision(TypedDict, total=False):
    """The answer about one call. `arguments` are those of "edit", all of them; `reason` is told to the model.

    The `digest` is the call's, as it was shown.
    """

    action: Required[Action]
    arguments: JsonMap
    reason: str
    digest: str


class ApprovalAnswer(TypedDict):
    """The answers by the index of the call, as digits; what is missing is rejected. A bare action answers for all."""

    decisions: dict[str, CallDecision]


@cache
def response_schema() -> JsonMap:
    """What clients may send. It is shown to them; an answer that does not fit is read all the same, and rejects."""
    words = Literal["approve", "approve_prefix", "approve_for_run", "approve_always", "reject", "stop"]
    answers: TypeAdapter[object] = TypeAdapter(words | ApprovalAnswer)
    return answers.json_schema()


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
MOST_ASKED: Final = 3  # a program that answers like that would never end; then it is a rejection


def digest_of(call: ToolCall, preview: Preview) -> str:
    """A short name of what a person is shown of a call: another one if its files or its arguments are others."""
    seen = [call.tool, call.arguments, preview.shown, preview.pins]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_decision(answer: object, index: int) -> Decision:
    """What the answer says of this call."""
    if isinstance(answer, str):
        return _decision_of({"action": answer})

    decisions = answer.get("decisions") if isinstance(answer, Mapping) else None
    if not isinstance(decisions, Mapping):
        return Decision("reject", UNREADABLE)

    decision = decisions.get(str(index), decisions.get(index))
    if decision is None:
        return Decision("reject", UNANSWERED)

    if isinstance(decision, Mapping):
        return _decision_of(decision)

    return _decision_of({"action": decision})


def _decision_of(fields: Mapping[Any, Any]) -> Decision:
    action = fields.get("action")
    reason = fields.get("reason")
    digest = fields.get("digest")
    arguments = fields.get("arguments")

    if not isinstance(action, str) or action not in ACTIONS or not isinstance(digest, str | None):
        return Decision("reject", UNREADABLE)

    edited = None
    if action == "edit":
        if not isinstance(arguments, Mapping):
            return Decision("reject", UNREADABLE)

        edited = {str(name): value for name, value in arguments.items()}

    if not isinstance(reason, str):
        reason = ""

    return Decision(cast("Action", action), reason, edited, digest or "")


# --- Settling the calls


NOBODY: Final = (
    "This call needs a person's approval, and nobody can be asked in this run. Do something else, or explain in your "
    "answer what is needed: --mode auto allows it, and so does a run at a terminal."
)
_REMEDY: Final = "Do something else, or explain in your answer what is needed."


class GuardUpdate(TypedDict, total=False):
    """What guard writes: verdicts aligned with the items, which a person may change; results where none may run."""

    items: list[Item]
    verdicts: list[Verdict]
    results: list[CallResult]
    permissions: list[Permission]
    stop: StopCause


@dataclass(frozen=True)
class ApprovalPorts:
    """What asking a person needs of the world outside.

    `ask` shows a request and returns the answer. `subject` names what an approval of a call would allow, a program or a
    host, or the error with which the call would be refused all the same. `judge` judges an edited call anew, `validate`
    returns arguments in canonical form or what is wrong with them. `known_hashes` are those of files when the reply was
    read, by path, `permissions` what was allowed before. `keep` writes one for later runs in the `workspace`; without
    it none is offered.
    """

    ask: Callable[[ApprovalRequest], object]
    subject: Callable[[ToolCall], str | ToolError]
    preview: PreviewOf
    validate: Callable[[str, JsonMap], JsonMap | list[str]]
    judge: Callable[[ToolCall], Verdict]
    thread: str = ""
    workspace: str = ""
    permissions: Sequence[Permission] = ()
    keep: Callable[[Permission], object] | None = None
    known_hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Waiting:
    """A call that waits for a person, as it is shown, and whether an earlier answer permits it."""

    call: ToolCall
    verdict: Verdict
    preview: Preview
    choices: Mapping[str, Permission]
    is_permitted: bool
    request: AskedCall


@dataclass
class Settled:
    """The calls as they are to run and their verdicts, in order, and what a person allowed for the rest of the run."""

    items: list[Item]
    verdicts: list[Verdict]
    granted: list[Permission] = field(default_factory=list)

    def calls(self, is_chosen: Callable[[Verdict], bool]) -> dict[int, ToolCall]:
        """The calls with such a verdict, by their index."""
        chosen = {}
        for index, (item, verdict) in enumerate(zip(self.items, self.verdicts, strict=True)):
            if isinstance(item, ToolCall) and is_chosen(verdict):
                chosen[index] = item

        return chosen


def settle_with_person(
    items: Sequence[Item], verdicts: Sequence[Verdict], specs: Mapping[str, ToolSpec], ports: ApprovalPorts
) -> Settled:
    """All verdicts, none of which is ASK any more. Where the person says stop, nothing of the reply may run."""
    settled = Settled(list(items), list(verdicts))
    open_calls: dict[int, _Waiting] = {}

    for index, waiting in _waiting_calls(settled, specs, ports).items():
        if waiting.preview.pins == ():
            # It cannot do anything now, which is its result, and it may not do anything later.
            settled.verdicts[index] = _allowed(waiting.verdict, ())
        elif waiting.is_permitted:
            settled.verdicts[index] = _allowed(waiting.verdict, None)  # on whatever the file holds
        else:
            open_calls[index] = waiting

    if not open_calls:
        return settled

    decisions = _ask(open_calls, ports)
    if any(decision.action == "stop" for decision in decisions.values()):
        return Settled(settled.items, [_stopped(verdict) for verdict in settled.verdicts])

    for index, decision in decisions.items():
        _settle(index, open_calls[index], decision, settled, ports)

    _pin_edits(settled, ports)
    return settled


def _ask(open_calls: Mapping[int, _Waiting], ports: ApprovalPorts) -> dict[int, Decision]:
    """The decisions about these calls; an answer that cannot be read is asked for again, at most `MOST_ASKED` times."""
    request = ApprovalRequest(kind="approval", calls=[waiting.request for waiting in open_calls.values()])
    decisions: dict[int, Decision] = {}

    for _ in range(MOST_ASKED):
        answer = ports.ask(request)
        decisions = {index: read_decision(answer, index) for index in open_calls}
        if any(decision.reason != UNREADABLE for decision in decisions.values()):
            break

        advice = 'Answer "approve" or "reject" for all calls, or {"decisions": {INDEX: {"action": ...}}}.'
        request["problem"] = f"{shown(repr(answer), 100)} is no answer. {advice}"

    return decisions


def like_before(call: AskedCall, decided: Sequence[tuple[AskedCall, Action]]) -> Action | None:
    """The answer to an earlier call of the same request that allows this call as well; None where none does."""
    for before, action in decided:
        allowed = before["choices"].get(action)
        if allowed and before["rule"] == call["rule"] and call["choices"].get(action) == allowed:
            return action

    return None


def stop_requested(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Why the run ends, if a person stopped it."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)

    return None


def _waiting_calls(settled: Settled, specs: Mapping[str, ToolSpec], ports: ApprovalPorts) -> dict[int, _Waiting]:
    """The calls that wait, under the real name of their file, and under the stricter rule for project configuration.

    Those that would be refused all the same are refused at once.
    """
    calls = settled.calls(lambda verdict: verdict.kind is VerdictKind.ASK)
    subjects: dict[int, CallSubject] = {}

    for index, call in [*calls.items()]:
        name = ports.subject(call)
        if isinstance(name, ToolError):
            settled.verdicts[index] = _refused(settled.verdicts[index], name)
            del calls[index]
        else:
            subjects[index] = call_subject(call, name, ports.workspace)

    previews = ports.preview(calls) if calls else {}
    waiting = {}

    for index, call in calls.items():
        preview = previews.get(index, NO_PREVIEW)
        waiting[index] = _waiting(index, call, settled.verdicts[index], subjects[index], preview, specs, ports)

    return waiting


def _waiting(
    index: int,
    call: ToolCall,
    verdict: Verdict,
    subject: CallSubject,
    preview: Preview,
    specs: Mapping[str, ToolSpec],
    ports: ApprovalPorts,
) -> _Waiting:
    spec = specs[call.tool]
    rule = verdict.rule
    why = ""

    if spec.effect is Effect.WRITE:
        reasons = [why_asked(PurePath(name)) for name in preview.names]
        why = next((reason for reason in reasons if reason), "")

    if why:
        rule = PROJECT_CONFIG_RULE.name

    path = preview.names[0] if preview.names else verdict.path
    workspace = ports.workspace if ports.keep is not None else ""
    choices = permissions_for(rule, call, spec, subject, thread=ports.thread, workspace=workspace)
    request = AskedCall(
        index=index,
        tool=call.tool,
        path=path,
        rule=rule,
        why=why,
        arguments=call.arguments,
        preview=preview.shown,
        choices={answer: choice.allows for answer, choice in choices.items()},
        digest=digest_of(call, preview),
    )

    return _Waiting(
        call=call,
        verdict=verdict.model_copy(update={"path": path, "rule": rule}),
        preview=preview,
        choices=choices,
        is_permitted=any(covers(item, rule, call.tool, subject, ports.thread) for item in ports.permissions),
        request=request,
    )


def _settle(index: int, waiting: _Waiting, decision: Decision, settled: Settled, ports: ApprovalPorts) -> None:
    """Write the verdict that follows from a decision, with the edited call or the permission."""
    if decision.action in {"reject", "nobody"}:
        settled.verdicts[index] = _rejected(waiting.verdict, decision)
        return

    outdated = _outdated(waiting, decision, ports)
    if outdated is not None:
        settled.verdicts[index] = outdated
        return

    allowed = _allowed(waiting.verdict, waiting.preview.pins)
    if decision.arguments is not None:
        _settle_edit(index, waiting, decision.arguments, allowed, settled, ports)
        return

    settled.verdicts[index] = allowed
    permission = waiting.choices.get(decision.action)

    if permission is not None and permission.scope == "thread":
        settled.granted.append(permission)
    elif permission is not None and ports.keep is not None:
        ports.keep(permission)


def _settle_edit(
    index: int, waiting: _Waiting, arguments: JsonMap, allowed: Verdict, settled: Settled, ports: ApprovalPorts
) -> None:
    """Write the call with a person's arguments and its verdict."""
    call = waiting.call
    edited = _edited(waiting, arguments, ports)

    if isinstance(edited, Verdict):
        problem = edited.error.message if edited.error else ""
        code = edited.error.code if edited.error else ToolErrorCode.CONFLICT
        message = f"A person changed this call, but it may not run like that: {problem} {_REMEDY}"
        settled.verdicts[index] = denied(edited.rule, code, message, path=edited.path)
        return

    names = sorted({*call.arguments, *edited.arguments})
    changed = tuple(name for name in names if call.arguments.get(name) != edited.arguments.get(name))
    settled.items[index] = edited if changed else call
    settled.verdicts[index] = allowed.model_copy(update={"edited": changed})


def _edited(waiting: _Waiting, arguments: JsonMap, ports: ApprovalPorts) -> ToolCall | Verdict:
    """The call with a person's arguments, or why it may not run: they do not fit, or a rule denies them."""
    checked = ports.validate(waiting.call.tool, arguments)
    if isinstance(checked, list):
        message = f"The arguments do not fit {waiting.call.tool}: {shown('; '.join(checked), 500)}"
        return denied("edited_arguments", ToolErrorCode.INVALID_ARGUMENT, message, path=waiting.verdict.path)

    call = waiting.call.model_copy(update={"arguments": checked})
    verdict = ports.judge(call)
    if verdict.kind is VerdictKind.DENY:
        return verdict

    subject = ports.subject(call)
    if isinstance(subject, ToolError):
        return _refused(verdict, subject)

    return call


def _pin_edits(settled: Settled, ports: ApprovalPorts) -> None:
    """Bind the edited calls to what they would do now, after the calls before them that may run."""
    edited = [index for index, verdict in enumerate(settled.verdicts) if verdict.edited]
    if not edited:
        return

    previews = ports.preview(settled.calls(lambda verdict: verdict.kind is VerdictKind.ALLOW and bool(verdict.rule)))

    for index in edited:
        preview = previews.get(index, NO_PREVIEW)
        verdict = settled.verdicts[index]
        path = preview.names[0] if preview.names else verdict.path
        settled.verdicts[index] = verdict.model_copy(update={"pins": preview.pins, "path": path})


def _outdated(waiting: _Waiting, decision: Decision, ports: ApprovalPorts) -> Verdict | None:
    """The denial of a call whose files or arguments changed after it was shown; None where nothing did."""
    if decision.digest:
        changed = decision.digest != waiting.request["digest"]
    else:
        pins = waiting.preview.pins or ()
        changed = any(ports.known_hashes.get(path, sha256) != sha256 for path, sha256, _ in pins)

    if not changed:
        return None

    verdict = waiting.verdict
    name = f"'{shown(verdict.path)}'" if verdict.path else "What this call is about"
    message = f"{name} has changed since a person was shown this call, so it did not run: read it, and call anew."
    return denied(verdict.rule, ToolErrorCode.CONFLICT, message, path=verdict.path)


def _allowed(verdict: Verdict, pins: tuple[tuple[str, str, str], ...] | None) -> Verdict:
    return verdict.model_copy(update={"kind": VerdictKind.ALLOW, "pins": pins})


def _refused(verdict: Verdict, error: ToolError) -> Verdict:
    return verdict.model_copy(update={"kind": VerdictKind.DENY, "error": error})


def _stopped(verdict: Verdict) -> Verdict:
    if verdict.kind is VerdictKind.DENY:
        return verdict

    message = "This call did not run: a person stopped the run."
    return denied(verdict.rule, ToolErrorCode.CANCELLED, message, path=verdict.path)


def _rejected(verdict: Verdict, decision: Decision) -> Verdict:
    if decision.action == "nobody":
        code = ToolErrorCode.APPROVAL_REQUIRED
        message = NOBODY
        refused = "nobody could be asked to approve"
    else:
        reason = f": {shown(decision.reason, 500)}" if decision.reason.strip() else ""
        code = ToolErrorCode.PERMISSION_DENIED
        message = f"A person did not approve this call{reason}. {_REMEDY}"
        refused = "you refused"
        if decision.reason in {UNREADABLE, UNANSWERED}:
            refused = "no answer that can be read came for"

    return denied(verdict.rule, code, message, path=verdict.path).model_copy(update={"refused": refused})
