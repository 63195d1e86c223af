"""Putting the calls that wait to a person, and what the answers make of them. Pure but for the hands that it is given.

All that happens before the question is looking: LangGraph runs the node again from its start when an answer arrives,
and what is seen then is compared with what was shown. A person's edit is judged like a call of the model's, and asked
about once more where it may not run as it is; the other calls keep their answers meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from typing_extensions import TypedDict

from mendgraph.nodes.guard.approvals import (
    NO_PREVIEW,
    ApprovalRequest,
    Decision,
    Preview,
    PreviewOf,
    asked_call,
    digest_of,
    read_decision,
)
from mendgraph.nodes.guard.file_rules import PROJECT_CONFIG_RULE, is_project_config
from mendgraph.nodes.guard.grants import Grant, grant_for, grant_words, is_granted
from mendgraph.nodes.guard.paths import shown
from mendgraph.nodes.guard.policy import Item, denied
from mendgraph.nodes.records import (
    CallResult,
    Effect,
    JsonMap,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolSpec,
    Verdict,
    VerdictKind,
)

MOST_ROUNDS: Final = 5
"""Times that a person is asked about one reply: an edit that may not run by then is refused."""

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
    grants: list[Grant]
    stop: StopCause


@dataclass(frozen=True)
class Hands:
    """What asking needs of the world outside.

    `ask` shows a request and gives the answer. `judge` judges an edited call anew, `validate` gives arguments in
    canonical form or what is wrong with them. `known` are the hashes of files when the reply was read, by path, and
    `grants` what was allowed before.
    """

    ask: Callable[[ApprovalRequest], object]
    preview: PreviewOf
    validate: Callable[[str, JsonMap], JsonMap | list[str]]
    judge: Callable[[ToolCall], Verdict]
    thread: str = ""
    grants: Sequence[Grant] = ()
    known: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Waiting:
    """A call that waits for an answer."""

    call: ToolCall
    verdict: Verdict
    preview: Preview
    grant: Grant | None
    words: str
    problem: str = ""


@dataclass
class Settled:
    """The calls as they are to run and their verdicts, in order, and what a person allowed for the rest of the run."""

    items: list[Item]
    verdicts: list[Verdict]
    granted: list[Grant] = field(default_factory=list)


def settle_with_person(
    items: Sequence[Item], verdicts: Sequence[Verdict], specs: Mapping[str, ToolSpec], hands: Hands
) -> Settled:
    """All verdicts, none of which asks any more. Where the person says stop, nothing of the reply may run."""
    settled = Settled(list(items), list(verdicts))
    open_calls = _waiting(settled, specs, hands)
    for index in [place for place, each in open_calls.items() if is_granted(each.grant, hands.grants)]:
        settled.verdicts[index] = _granted(open_calls.pop(index))
    for round_number in range(1, MOST_ROUNDS + 1):
        if not open_calls:
            break
        answer = hands.ask(_request(open_calls))
        decisions = {index: read_decision(answer, index) for index in open_calls}
        if any(each.action == "stop" for each in decisions.values()):
            return _stopped(settled)
        last = round_number == MOST_ROUNDS
        for index, decision in decisions.items():
            _settle(index, open_calls[index], decision, settled, hands, last=last)
        open_calls = {place: each for place, each in open_calls.items() if each.problem}
        open_calls = {} if last else open_calls
    _pin_edits(settled, hands)
    return settled


def stop_asked_for(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Why the run ends here, if a person said so."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)
    return None


def _waiting(settled: Settled, specs: Mapping[str, ToolSpec], hands: Hands) -> dict[int, _Waiting]:
    calls = {
        index: item
        for index, (item, verdict) in enumerate(zip(settled.items, settled.verdicts, strict=True))
        if verdict.kind is VerdictKind.ASK and isinstance(item, ToolCall)
    }
    previews = hands.preview(calls) if calls else {}
    found: dict[int, _Waiting] = {}
    for index, call in calls.items():
        preview, spec = previews.get(index, NO_PREVIEW), specs[call.tool]
        verdict = _with_real_path(settled.verdicts[index], preview, spec)
        grant = grant_for(hands.thread, verdict.rule, call, spec)
        found[index] = _Waiting(call, verdict, preview, grant, grant_words(grant, spec))
    return found


def _with_real_path(verdict: Verdict, preview: Preview, spec: ToolSpec) -> Verdict:
    """With the file that the path really leads to, and the stricter rule where that is project configuration."""
    path = preview.names[0] if preview.names else verdict.path
    config = spec.effect is Effect.WRITE and any(is_project_config(Path(name)) for name in preview.names)
    rule = PROJECT_CONFIG_RULE.name if config else verdict.rule
    return verdict.model_copy(update={"path": path, "rule": rule})


def _request(open_calls: Mapping[int, _Waiting]) -> ApprovalRequest:
    calls = []
    for index, each in open_calls.items():
        shown_call = asked_call(index, each.call, each.verdict, each.preview, each.words)
        if each.problem:
            shown_call["problem"] = each.problem
        calls.append(shown_call)
    return ApprovalRequest(kind="approval", calls=calls)


def _settle(index: int, each: _Waiting, decision: Decision, settled: Settled, hands: Hands, *, last: bool) -> None:
    """Write down what becomes of one call, or in `each.problem` why it has to be asked about once more."""
    asked, each.problem = each.verdict, ""
    if decision.action in {"reject", "nobody", "stop"}:
        settled.verdicts[index] = _rejected(asked, decision)
    elif refusal := _outdated(each, decision, hands):
        settled.verdicts[index] = refusal
    elif decision.arguments is None:
        settled.verdicts[index] = _allowed(asked, each.preview)
        if decision.action == "approve_for_run" and each.grant is not None:
            settled.granted.append(each.grant)
    else:
        edited = _edited(each, decision.arguments, hands)
        if isinstance(edited, ToolCall):
            names = _changed_names(each.call, edited)
            settled.items[index] = edited if names else each.call
            settled.verdicts[index] = _allowed(asked, each.preview).model_copy(update={"edited": names})
            return
        each.problem = edited.error.message if edited.error else ""
        if last:
            told = f"A person changed this call, but it may not run like that: {each.problem} {_REMEDY}"
            code = edited.error.code if edited.error else ToolErrorCode.PERMISSION_DENIED
            settled.verdicts[index] = denied(edited.rule, code, told, path=edited.path)


def _edited(each: _Waiting, arguments: JsonMap, hands: Hands) -> ToolCall | Verdict:
    """The call with a person's arguments, or why it may not run: they do not fit, or a rule denies them."""
    checked = hands.validate(each.call.tool, arguments)
    if isinstance(checked, list):
        message = f"The arguments do not fit {each.call.tool}: {shown('; '.join(checked), 500)}"
        return denied("edited_arguments", ToolErrorCode.INVALID_ARGUMENT, message, path=each.verdict.path)
    call = each.call.model_copy(update={"arguments": checked})
    verdict = hands.judge(call)
    return verdict if verdict.kind is VerdictKind.DENY else call


def _changed_names(before: ToolCall, after: ToolCall) -> tuple[str, ...]:
    names = sorted({*before.arguments, *after.arguments})
    return tuple(name for name in names if before.arguments.get(name) != after.arguments.get(name))


def _pin_edits(settled: Settled, hands: Hands) -> None:
    """Bind the edited calls to what they would do now, after the calls before them that may run."""
    edited = [index for index, verdict in enumerate(settled.verdicts) if verdict.edited]
    if not edited:
        return
    calls = {
        index: item
        for index, (item, verdict) in enumerate(zip(settled.items, settled.verdicts, strict=True))
        if verdict.kind is VerdictKind.ALLOW and verdict.rule and isinstance(item, ToolCall)
    }
    previews = hands.preview(calls)
    for index in edited:
        preview, verdict = previews.get(index, NO_PREVIEW), settled.verdicts[index]
        path = preview.names[0] if preview.names else verdict.path
        settled.verdicts[index] = verdict.model_copy(update={"pins": preview.pins, "path": path})


def _outdated(each: _Waiting, decision: Decision, hands: Hands) -> Verdict | None:
    """The denial where what would run now is not what the person was shown."""
    if decision.digest:
        changed = decision.digest != digest_of(each.call, each.preview)
    else:
        changed = any(hands.known.get(path, sha256) != sha256 for path, sha256, _ in each.preview.pins or ())
    if not changed:
        return None
    name = f"'{shown(each.verdict.path)}'" if each.verdict.path else "What this call is about"
    message = f"{name} has changed since a person was shown this call, so it did not run: read it, and call anew."
    return denied(each.verdict.rule, ToolErrorCode.CONFLICT, message, path=each.verdict.path)


def _allowed(asked: Verdict, preview: Preview = NO_PREVIEW) -> Verdict:
    return asked.model_copy(update={"kind": VerdictKind.ALLOW, "pins": preview.pins})


def _granted(each: _Waiting) -> Verdict:
    """Allowed as before, on whatever the file holds; a call that cannot do anything now may not do anything later."""
    return _allowed(each.verdict, each.preview if each.preview.pins == () else NO_PREVIEW)


def _rejected(asked: Verdict, decision: Decision) -> Verdict:
    if decision.action == "nobody":
        return denied(asked.rule, ToolErrorCode.APPROVAL_REQUIRED, NOBODY, path=asked.path)
    why = f": {shown(decision.reason, 500)}" if decision.reason.strip() else ""
    message = f"A person did not approve this call{why}. {_REMEDY}"
    return denied(asked.rule, ToolErrorCode.PERMISSION_DENIED, message, path=asked.path)


def _stopped(settled: Settled) -> Settled:
    verdicts = [each if each.kind is VerdictKind.DENY else _cancelled(each) for each in settled.verdicts]
    return Settled(settled.items, verdicts)


def _cancelled(verdict: Verdict) -> Verdict:
    message = "This call did not run: a person stopped the run."
    return denied(verdict.rule, ToolErrorCode.CANCELLED, message, path=verdict.path)
