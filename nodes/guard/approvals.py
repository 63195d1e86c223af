"""Calls that wait for a person: what is asked, how an answer is read, and what becomes of the calls.

One request holds all calls of a reply that wait. What is missing in an answer or cannot be read is a rejection; where
nothing of it can be read, it is asked again. A permission allows calls of the same kind for longer. All that
happens before the question is looking: LangGraph runs the node again from its start when an answer arrives, and what is
seen then is compared with what was shown.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, NotRequired, Required, cast, get_args

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mendgraph.nodes.guard.permissions import Matter, Permission, covers, matter_of, permissions_for
from mendgraph.nodes.guard.policy import Item, denied, shown
from mendgraph.nodes.guard.scope import PROJECT_CONFIG_RULE, why_asked
from mendgraph.nodes.language.display import fenced, inline_code
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

    `why` says what its file is where each change of it is asked for, and which text wants it, if not the request.
    `choices` say what "approve_prefix", "approve_for_run" and "approve_always" would allow beside this call; one that
    is not there is no more than "approve". An answer that repeats the `digest` is taken only for what was shown here.
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
    answer_map: object = {"action": answer}

    if not isinstance(answer, str):
        if isinstance(answer, Mapping):
            decisions = answer.get("decisions")
        else:
            decisions = None

        if not isinstance(decisions, Mapping):
            return Decision("reject", UNREADABLE)

        answer_map = decisions.get(str(index), decisions.get(index))
        if answer_map is None:
            return Decision("reject", UNANSWERED)

    fields: Mapping[str, Any] = answer_map if isinstance(answer_map, Mapping) else {"action": answer_map}
    action = fields.get("action")
    reason = fields.get("reason")
    digest = fields.get("digest")
    arguments: Any = fields.get("arguments")
    is_action = isinstance(action, str) and action in ACTIONS and isinstance(digest, str | None)

    if not is_action or (action == "edit" and not isinstance(arguments, Mapping)):
        return Decision("reject", UNREADABLE)

    edited = None
    if action == "edit":
        edited = {str(name): value for name, value in arguments.items()}

    return Decision(cast("Action", action), reason if isinstance(reason, str) else "", edited, digest or "")


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
class Hands:
    """What asking needs of the world outside.

    `ask` shows a request and gives the answer. `subject` says what an approval of a call would allow, a program or a
    host, or with which error the call would be refused all the same. `judge` judges an edited call anew, `validate`
    gives arguments in canonical form or what is wrong with them. `known` are the hashes of files when the reply was
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
    known: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Waiting:
    call: ToolCall
    verdict: Verdict
    preview: Preview
    choices: Mapping[str, Permission]
    is_permitted: bool
    asked: AskedCall


@dataclass
class Settled:
    """The calls as they are to run and their verdicts, in order, and what a person allowed for the rest of the run."""

    items: list[Item]
    verdicts: list[Verdict]
    granted: list[Permission] = field(default_factory=list)


def settle_with_person(
    items: Sequence[Item], verdicts: Sequence[Verdict], specs: Mapping[str, ToolSpec], hands: Hands
) -> Settled:
    """All verdicts, none of which asks any more. Where the person says stop, nothing of the reply may run."""
    settled = Settled(list(items), list(verdicts))
    open_calls: dict[int, _Waiting] = {}

    for index, waiting in _waiting(settled, specs, hands).items():
        if waiting.preview.pins == ():
            # It cannot do anything now, which is its result, and it may not do anything later.
            settled.verdicts[index] = _allowed(waiting.verdict, ())
        elif waiting.is_permitted:
            settled.verdicts[index] = _allowed(waiting.verdict, None)  # on whatever the file holds
        else:
            open_calls[index] = waiting

    if not open_calls:
        return settled

    request = ApprovalRequest(kind="approval", calls=[call.asked for call in open_calls.values()])

    for _ in range(MOST_ASKED):
        answer = hands.ask(request)
        decisions = {index: read_decision(answer, index) for index in open_calls}
        if any(each.reason != UNREADABLE for each in decisions.values()):
            break

        how = 'Answer "approve" or "reject" for all calls, or {"decisions": {INDEX: {"action": ...}}}.'
        request["problem"] = f"{shown(repr(answer), 100)} is no answer. {how}"

    if any(each.action == "stop" for each in decisions.values()):
        return Settled(settled.items, [_stopped(verdict) for verdict in settled.verdicts])

    for index, decision in decisions.items():
        _settle(index, open_calls[index], decision, settled, hands)

    _pin_edits(settled, hands)
    return settled


def like_before(call: AskedCall, decided: Sequence[tuple[AskedCall, Action]]) -> Action | None:
    """The answer to a call that one to an earlier call of the same request allows as well; None where none does."""
    for before, action in decided:
        allowed = before["choices"].get(action)
        if allowed and before["rule"] == call["rule"] and call["choices"].get(action) == allowed:
            return action

    return None


def stop_asked_for(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Why the run ends here, if a person said so."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)

    return None


def _waiting(settled: Settled, specs: Mapping[str, ToolSpec], hands: Hands) -> dict[int, _Waiting]:
    """The calls that wait, under the real name of their file, and under the stricter rule for project configuration.

    Those that would be refused all the same are refused at once.
    """
    calls = _calls(settled, lambda verdict: verdict.kind is VerdictKind.ASK)
    matters: dict[int, Matter] = {}

    for index, call in [*calls.items()]:
        subject = hands.subject(call)
        if isinstance(subject, ToolError):
            settled.verdicts[index] = _refused(settled.verdicts[index], subject)
            del calls[index]
        else:
            matters[index] = matter_of(call, subject, hands.workspace)

    previews = hands.preview(calls) if calls else {}
    waiting_calls: dict[int, _Waiting] = {}

    for index, call in calls.items():
        preview = previews.get(index, NO_PREVIEW)
        spec = specs[call.tool]
        verdict = settled.verdicts[index]
        writes = spec.effect is Effect.WRITE
        why = next(filter(None, (why_asked(PurePath(name)) for name in preview.names if writes)), "")
        rule = PROJECT_CONFIG_RULE.name if why else verdict.rule
        verdict = verdict.model_copy(update={"path": (*preview.names, verdict.path)[0], "rule": rule})
        matter = matters[index]
        permitted = any(covers(permission, rule, call.tool, matter, hands.thread) for permission in hands.permissions)
        workspace = hands.workspace if hands.keep is not None else ""
        choices = permissions_for(rule, call, spec, matter, thread=hands.thread, workspace=workspace)
        asked_call = AskedCall(
            index=index,
            tool=call.tool,
            path=verdict.path,
            rule=rule,
            why=why,
            arguments=call.arguments,
            preview=preview.shown,
            choices={answer: choice.allows for answer, choice in choices.items()},
            digest=digest_of(call, preview),
        )
        waiting_calls[index] = _Waiting(call, verdict, preview, choices, permitted, asked_call)

    return waiting_calls


def _calls(settled: Settled, chosen: Callable[[Verdict], bool]) -> dict[int, ToolCall]:
    pairs = enumerate(zip(settled.items, settled.verdicts, strict=True))
    return {index: item for index, (item, verdict) in pairs if chosen(verdict) and isinstance(item, ToolCall)}


def _settle(index: int, each: _Waiting, decision: Decision, settled: Settled, hands: Hands) -> None:
    verdict = each.verdict
    allowed = _allowed(each.verdict, each.preview.pins)

    if decision.action in {"reject", "nobody"}:
        settled.verdicts[index] = _rejected(verdict, decision)
    elif refusal := _outdated(each, decision, hands):
        settled.verdicts[index] = refusal
    elif decision.arguments is None:
        settled.verdicts[index] = allowed
        permission = each.choices.get(decision.action)

        if permission is not None and permission.scope == "thread":
            settled.granted.append(permission)
        elif permission is not None and hands.keep is not None:
            hands.keep(permission)
    elif isinstance(edited := _edited(each, decision.arguments, hands), ToolCall):
        before = each.call.arguments
        after = edited.arguments
        names = tuple(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
        settled.items[index] = edited if names else each.call
        settled.verdicts[index] = allowed.model_copy(update={"edited": names})
    else:
        problem, code = (edited.error.message, edited.error.code) if edited.error else ("", ToolErrorCode.CONFLICT)
        message = f"A person changed this call, but it may not run like that: {problem} {_REMEDY}"
        settled.verdicts[index] = denied(edited.rule, code, message, path=edited.path)


def _refused(asked: Verdict, error: ToolError) -> Verdict:
    return asked.model_copy(update={"kind": VerdictKind.DENY, "error": error})


def _edited(each: _Waiting, arguments: JsonMap, hands: Hands) -> ToolCall | Verdict:
    """The call with a person's arguments, or why it may not run: they do not fit, or a rule denies them."""
    checked = hands.validate(each.call.tool, arguments)
    if isinstance(checked, list):
        message = f"The arguments do not fit {each.call.tool}: {shown('; '.join(checked), 500)}"
        return denied("edited_arguments", ToolErrorCode.INVALID_ARGUMENT, message, path=each.verdict.path)

    call = each.call.model_copy(update={"arguments": checked})
    verdict = hands.judge(call)
    if verdict.kind is VerdictKind.DENY:
        return verdict

    subject = hands.subject(call)
    if isinstance(subject, ToolError):
        return _refused(verdict, subject)

    return call


def _pin_edits(settled: Settled, hands: Hands) -> None:
    """Bind the edited calls to what they would do now, after the calls before them that may run."""
    edited = [index for index, verdict in enumerate(settled.verdicts) if verdict.edited]
    if not edited:
        return

    previews = hands.preview(_calls(settled, lambda each: each.kind is VerdictKind.ALLOW and bool(each.rule)))

    for index in edited:
        preview = previews.get(index, NO_PREVIEW)
        verdict = settled.verdicts[index]
        path = (*preview.names, verdict.path)[0]
        settled.verdicts[index] = verdict.model_copy(update={"pins": preview.pins, "path": path})


def _outdated(each: _Waiting, decision: Decision, hands: Hands) -> Verdict | None:
    if decision.digest:
        changed = decision.digest != each.asked["digest"]
    else:
        changed = any(hands.known.get(path, sha256) != sha256 for path, sha256, _ in each.preview.pins or ())

    if not changed:
        return None

    if each.verdict.path:
        name = f"'{shown(each.verdict.path)}'"
    else:
        name = "What this call is about"

    message = f"{name} has changed since a person was shown this call, so it did not run: read it, and call anew."
    return denied(each.verdict.rule, ToolErrorCode.CONFLICT, message, path=each.verdict.path)


def _allowed(asked: Verdict, pins: tuple[tuple[str, str, str], ...] | None) -> Verdict:
    return asked.model_copy(update={"kind": VerdictKind.ALLOW, "pins": pins})


def _stopped(verdict: Verdict) -> Verdict:
    message = "This call did not run: a person stopped the run."
    stopped = denied(verdict.rule, ToolErrorCode.CANCELLED, message, path=verdict.path)
    if verdict.kind is VerdictKind.DENY:
        return verdict

    return stopped


def _rejected(asked: Verdict, decision: Decision) -> Verdict:
    code = ToolErrorCode.APPROVAL_REQUIRED
    message = NOBODY
    refused = "nobody could be asked to approve"

    if decision.action != "nobody":
        why = ""
        if decision.reason.strip():
            why = f": {shown(decision.reason, 500)}"

        code = ToolErrorCode.PERMISSION_DENIED
        message = f"A person did not approve this call{why}. {_REMEDY}"
        unsaid = decision.reason in {UNREADABLE, UNANSWERED}

        if unsaid:
            refused = "no answer that can be read came for"
        else:
            refused = "you refused"

    return denied(asked.rule, code, message, path=asked.path).model_copy(update={"refused": refused})


# --- Chat pages for LangGraph: two more forms of asking and of answers


_PAGE_WORDS: Final = {
    **dict.fromkeys(("accept", "approve"), "approve"),
    **dict.fromkeys(("ignore", "reject", "respond", "response"), "reject"),
}
"""Ours for the words of both; what is none is passed on, and refused where answers are read."""


def page_fields(calls: Sequence[Mapping[str, Any]]) -> JsonMap:
    """What is added to a question about these calls (`AskedCall`), so that such pages show it with their buttons."""
    requests = [_page_request(call) for call in calls]
    one = requests[0] if len(requests) == 1 else None
    many = {f"{call['index']} {call['tool']}": json.dumps(call["arguments"], ensure_ascii=False) for call in calls}

    if one:
        action = {"action": one["name"], "args": one["args"]}
    else:
        action = {"action": f"{len(calls)} calls", "args": many}

    allowed = {"allow_accept": True, "allow_edit": one is not None, "allow_respond": True, "allow_ignore": True}
    tools = dict.fromkeys(request["name"] for request in requests)

    return {
        "action_request": action,
        "config": allowed,
        "description": "\n\n".join(request["description"] for request in requests),
        "action_requests": requests,
        "review_configs": [{"action_name": tool, "allowed_decisions": ["approve", "edit", "reject"]} for tool in tools],
    }


def page_answer(answer: object, asked: Sequence[AskedCall]) -> object:
    """A page's answer to what was `asked`, as one of ours; any other is given back as it is.

    Fewer decisions than calls leave the rest undecided; more decide nothing. An edit that names another tool than its
    call rejects it: a tool cannot be exchanged.
    """
    if isinstance(answer, Mapping):
        listed = answer.get("decisions")
    else:
        listed = answer

    if not isinstance(listed, list) or not listed or (listed is answer and len(listed) > 1):
        return answer
    if not all(isinstance(decision, Mapping) and "type" in decision for decision in listed):
        return answer

    if listed is answer:  # one word for all calls
        if listed[0]["type"] == "edit" and len(asked) > 1:
            listed = []
        else:
            listed = listed * len(asked)

    if len(listed) > len(asked):
        return {"decisions": {}}

    pairs = zip(asked, listed, strict=False)
    return {"decisions": {str(call["index"]): _from_page(call, said) for call, said in pairs}}


def _page_request(call: Mapping[str, Any]) -> JsonMap:
    preview = call.get("preview") or {}
    about = f" {inline_code(call['path'])}" if call.get("path") else ""
    text = str(preview.get("text", ""))
    kind = "diff" if preview.get("kind") == "diff" else "text"
    block = f"\n\n{fenced(text, kind)}" if text else ""
    why = f": {inline_code(call['why'])}" if call.get("why") else ""
    description = f"{call['tool']}{about} ({call['rule']}{why}){block}"

    return {"name": call["tool"], "args": call["arguments"], "description": description}


def _from_page(call: AskedCall, said: Mapping[str, Any]) -> JsonMap:
    """The decision with arguments of the kinds of the first ones, for a page's fields hold text; no other tool."""
    edited = said.get("edited_action", said.get("args"))
    reason = said.get("message", said.get("args"))
    action = _PAGE_WORDS.get(str(said["type"]), str(said["type"]))
    arguments = edited.get("args") if isinstance(edited, Mapping) else None

    if action != "edit" or not isinstance(edited, Mapping) or not isinstance(arguments, Mapping):
        if isinstance(reason, str) and reason:
            return {"action": action, "reason": reason}
        return {"action": action}

    tool = edited.get("name") or edited.get("action")
    if isinstance(tool, str) and tool not in {"", call["tool"]}:
        why = f"the call was changed to another tool, {tool}, which cannot be done here"
        return {"action": "reject", "reason": why}

    typed = {name: _typed(call["arguments"].get(name, ""), argument) for name, argument in arguments.items()}
    return {"action": action, "arguments": typed}


def _typed(before: object, after: object) -> object:
    with suppress(ValueError):
        if isinstance(after, str) and not isinstance(before, str):
            return json.loads(after)
        return after

    return after
