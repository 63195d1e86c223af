"""Calls that wait for a person: the request, and the verdicts that follow from the answer.

One request holds all waiting calls of a reply. A permission allows calls of the same kind for longer. Nothing before
the question has an effect: LangGraph runs the node again from its start when the answer arrives, and the calls are then
compared with what was shown.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, NamedTuple

from typing_extensions import TypedDict

from mendgraph.nodes.guard.approval_formats import (
    UNANSWERED,
    UNREADABLE,
    Action,
    ApprovalRequest,
    AskedCall,
    Decision,
    ShownPreview,
    hunk_texts,
    read_answer,
)
from mendgraph.nodes.guard.permissions import CallSubject, Permission, call_subject, covers, permissions_for
from mendgraph.nodes.guard.policy import QUESTION_RULE, Item, denied, shown
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

Pins = tuple[tuple[str, str, str], ...]
"""As in `Verdict`."""


class Preview(NamedTuple):
    """What a call would do: for a person, the real names of its files, and its changes.

    `pins_of_hunks` returns the changes with only these hunks of the diff; None if single ones cannot be approved.
    """

    shown: ShownPreview
    names: tuple[str, ...] = ()
    pins: Pins | None = None
    pins_of_hunks: Callable[[Sequence[int]], Pins] | None = None


NO_PREVIEW: Final = Preview(ShownPreview(kind="arguments", text="", truncated=False))

PreviewOf = Callable[[Mapping[int, ToolCall]], Mapping[int, Preview]]
"""Returns what calls would do, by index, one after the other, without running them."""

MOST_ASKED: Final = 3  # requests for one approval: after unreadable answers to all of them it is a rejection


def digest_of(call: ToolCall, preview: Preview) -> str:
    """Return a short hash of what a person is shown of a call."""
    seen = [call.tool, call.arguments, preview.shown, preview.pins]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:16]


NOBODY: Final = (
    "This call needs a person's approval, and nobody can be asked in this run. Do something else, or explain in your "
    "answer what is needed: --mode auto allows it, and so does a run at a terminal."
)
_REMEDY: Final = "Do something else, or explain in your answer what is needed."


class GuardUpdate(TypedDict, total=False):
    """The update of guard: verdicts in the order of the items, which a person may edit; results if no call may run."""

    items: list[Item]
    verdicts: list[Verdict]
    results: list[CallResult]
    permissions: list[Permission]
    stop: StopCause


@dataclass(frozen=True)
class ApprovalPorts:
    """The functions and facts that an approval needs.

    Attributes:
        ask: shows a request and returns the answer.
        subject: returns the program or host of a call, or the error with which it would be refused anyway.
        preview: returns what calls would do.
        validate: returns arguments in canonical form, or their mistakes.
        judge: returns the verdict on an edited call.
        permissions: permissions granted before.
        keep: stores a permission for later runs in the `workspace`; None offers no such permission.
        known_hashes: hashes of files by path, from when the reply was read.
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
    """A call that waits for approval, its request, and whether an earlier permission covers it."""

    call: ToolCall
    verdict: Verdict
    preview: Preview
    choices: Mapping[str, Permission]
    is_permitted: bool
    request: AskedCall


@dataclass
class Settled:
    """The calls to run and their verdicts, in order, and the permissions that were granted."""

    items: list[Item]
    verdicts: list[Verdict]
    granted: list[Permission] = field(default_factory=list)

    def calls(self, is_chosen: Callable[[Verdict], bool]) -> dict[int, ToolCall]:
        """Return the calls with chosen verdicts by their index."""
        chosen = {}
        for index, (item, verdict) in enumerate(zip(self.items, self.verdicts, strict=True)):
            if isinstance(item, ToolCall) and is_chosen(verdict):
                chosen[index] = item

        return chosen


def settle_with_person(
    items: Sequence[Item], verdicts: Sequence[Verdict], specs: Mapping[str, ToolSpec], ports: ApprovalPorts
) -> Settled:
    """Return the verdicts without ASK. If the person answers "stop", no call of the reply may run."""
    settled = Settled(list(items), list(verdicts))
    open_calls: dict[int, _Waiting] = {}

    for index, waiting in _waiting_calls(settled, specs, ports).items():
        if waiting.preview.pins == ():
            # The call would do nothing, and may do nothing later.
            settled.verdicts[index] = _allowed(waiting.verdict, ())
        elif waiting.is_permitted:
            settled.verdicts[index] = _allowed(waiting.verdict, None)  # for any content of the file
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
    """Request the decisions about these calls, at most `MOST_ASKED` times if the answers cannot be read."""
    calls = [waiting.request for waiting in open_calls.values()]
    request = ApprovalRequest(kind="approval", calls=calls)
    decisions: dict[int, Decision] = {}

    for _ in range(MOST_ASKED):
        answer = ports.ask(request)
        decisions = read_answer(answer, calls)
        if any(decision.reason != UNREADABLE for decision in decisions.values()):
            break

        advice = 'Answer "approve" or "reject" for all calls, or {"decisions": {INDEX: {"action": ...}}}.'
        request["problem"] = f"{shown(repr(answer), 100)} is not an answer. {advice}"

    return decisions


def like_before(call: AskedCall, decided: Sequence[tuple[AskedCall, Action]]) -> Action | None:
    """Return the answer to an earlier call of the same request that also allows this call, or None."""
    for before, action in decided:
        allowed = before["choices"].get(action)
        if allowed and before["rule"] == call["rule"] and call["choices"].get(action) == allowed:
            return action

    return None


def stop_requested(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Return the stop cause if a person stopped the run."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)

    return None


def _waiting_calls(settled: Settled, specs: Mapping[str, ToolSpec], ports: ApprovalPorts) -> dict[int, _Waiting]:
    """Return the waiting calls, with the stricter rule for project configuration; refuse impossible ones at once."""
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
    if preview.pins_of_hunks is not None:
        request["hunks"] = len(hunk_texts(preview.shown["text"]))

    return _Waiting(
        call=call,
        verdict=verdict.model_copy(update={"path": path, "rule": rule}),
        preview=preview,
        choices=choices,
        is_permitted=any(covers(item, rule, call.tool, subject, ports.thread) for item in ports.permissions),
        request=request,
    )


def _settle(index: int, waiting: _Waiting, decision: Decision, settled: Settled, ports: ApprovalPorts) -> None:
    """Apply a decision: set the verdict, and the edited call, the permission or the answer."""
    if waiting.verdict.rule == QUESTION_RULE:
        answer = None if decision.action == "nobody" else decision.answer
        settled.verdicts[index] = _allowed(waiting.verdict, None).model_copy(update={"answer": answer})
        return

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

    settled.verdicts[index] = _with_hunks(waiting.preview, decision.hunks, allowed)
    permission = waiting.choices.get(decision.action)

    if permission is not None and permission.scope == "thread":
        settled.granted.append(permission)
    elif permission is not None and ports.keep is not None:
        ports.keep(permission)


def _with_hunks(preview: Preview, hunks: tuple[int, ...], allowed: Verdict) -> Verdict:
    """Return the verdict that allows only these hunks; all if there are none."""
    if not hunks or preview.pins_of_hunks is None:
        return allowed

    texts = enumerate(hunk_texts(preview.shown["text"]), start=1)
    declined = "\n".join(text.removesuffix("\n") for number, text in texts if number not in hunks)
    return allowed.model_copy(update={"pins": preview.pins_of_hunks(hunks), "hunks": hunks, "declined": declined})


def _settle_edit(
    index: int, waiting: _Waiting, arguments: JsonMap, allowed: Verdict, settled: Settled, ports: ApprovalPorts
) -> None:
    """Set the call with a person's arguments and its verdict."""
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
    """Return the call with a person's arguments, or the denial if they do not fit or a rule denies them."""
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
    """Pin the edited calls to what they would do after the allowed calls before them."""
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
    """Return the denial of a call whose files or arguments changed after it was shown, or None."""
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


def _allowed(verdict: Verdict, pins: Pins | None) -> Verdict:
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
            refused = "no readable answer came for"

    return denied(verdict.rule, code, message, path=verdict.path).model_copy(update={"refused": refused})
