"""Putting the calls that wait to a person, and what the answers make of them. Pure but for the hands that it is given.

All that happens before the question is looking: LangGraph runs the node again from its start when an answer arrives,
and what is seen then is compared with what was shown. A person's edit is judged like a call of the model's, and asked
about once more where it may not run as it is; the other calls keep their answers meanwhile. Chat pages for LangGraph
ask and answer in two forms of their own.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict

from mendgraph.nodes.guard.approvals import (
    NO_PREVIEW,
    ApprovalRequest,
    AskedCall,
    Decision,
    Grant,
    Preview,
    PreviewOf,
    asked_call,
    digest_of,
    grant_for,
    grant_words,
    read_decision,
)
from mendgraph.nodes.guard.file_rules import PROJECT_CONFIG_RULE, is_project_config
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
    """A call that waits for an answer; `problem` says why it is asked about once more."""

    call: ToolCall
    spec: ToolSpec
    verdict: Verdict
    preview: Preview
    grant: Grant | None
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
    for index, each in [*open_calls.items()]:
        if each.grant in hands.grants:
            # On whatever the file holds; but a call that cannot do anything now may not do anything later.
            settled.verdicts[index] = _allowed(each.verdict, () if each.preview.pins == () else None)
            del open_calls[index]
    for rounds_left in reversed(range(MOST_ROUNDS)):
        if not open_calls:
            break
        answer = hands.ask(_request(open_calls))
        decisions = {index: read_decision(answer, index) for index in open_calls}
        if any(each.action == "stop" for each in decisions.values()):
            return Settled(settled.items, [_stopped(each) for each in settled.verdicts])
        for index, decision in decisions.items():
            _settle(index, open_calls[index], decision, settled, hands, last=not rounds_left)
        open_calls = {index: each for index, each in open_calls.items() if each.problem}
    _pin_edits(settled, hands)
    return settled


def stop_asked_for(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Why the run ends here, if a person said so."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)
    return None


def _waiting(settled: Settled, specs: Mapping[str, ToolSpec], hands: Hands) -> dict[int, _Waiting]:
    """The calls that wait, under the real name of their file, and under the stricter rule for project configuration."""
    calls = _calls(settled, lambda verdict: verdict.kind is VerdictKind.ASK)
    previews = hands.preview(calls) if calls else {}
    found: dict[int, _Waiting] = {}
    for index, call in calls.items():
        preview, spec, verdict = previews.get(index, NO_PREVIEW), specs[call.tool], settled.verdicts[index]
        config = spec.effect is Effect.WRITE and any(is_project_config(Path(name)) for name in preview.names)
        rule = PROJECT_CONFIG_RULE.name if config else verdict.rule
        verdict = verdict.model_copy(update={"path": (*preview.names, verdict.path)[0], "rule": rule})
        found[index] = _Waiting(call, spec, verdict, preview, grant_for(hands.thread, rule, call, spec))
    return found


def _calls(settled: Settled, chosen: Callable[[Verdict], bool]) -> dict[int, ToolCall]:
    pairs = enumerate(zip(settled.items, settled.verdicts, strict=True))
    return {index: item for index, (item, verdict) in pairs if chosen(verdict) and isinstance(item, ToolCall)}


def _request(open_calls: Mapping[int, _Waiting]) -> ApprovalRequest:
    calls = []
    for index, each in open_calls.items():
        shown_call = asked_call(index, each.call, each.verdict, each.preview, grant_words(each.grant, each.spec))
        if each.problem:
            shown_call["problem"] = each.problem
        calls.append(shown_call)
    return ApprovalRequest(kind="approval", calls=calls)


def _settle(index: int, each: _Waiting, decision: Decision, settled: Settled, hands: Hands, *, last: bool) -> None:
    """Write down what becomes of one call, or in `each.problem` why it has to be asked about once more."""
    asked, each.problem = each.verdict, ""
    allowed = _allowed(asked, each.preview.pins)
    if decision.action in {"reject", "nobody"}:
        settled.verdicts[index] = _rejected(asked, decision)
    elif refusal := _outdated(each, decision, hands):
        settled.verdicts[index] = refusal
    elif decision.arguments is None:
        settled.verdicts[index] = allowed
        if decision.action == "approve_for_run" and each.grant is not None:
            settled.granted.append(each.grant)
    elif isinstance(edited := _edited(each, decision.arguments, hands), ToolCall):
        before, after = each.call.arguments, edited.arguments
        names = tuple(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
        settled.items[index] = edited if names else each.call
        settled.verdicts[index] = allowed.model_copy(update={"edited": names})
    else:
        problem = edited.error.message if edited.error else ""
        each.problem = "" if last else problem
        message = f"A person changed this call, but it may not run like that: {problem} {_REMEDY}"
        code = edited.error.code if edited.error else ToolErrorCode.PERMISSION_DENIED
        settled.verdicts[index] = denied(edited.rule, code, message, path=edited.path) if last else asked


def _edited(each: _Waiting, arguments: JsonMap, hands: Hands) -> ToolCall | Verdict:
    """The call with a person's arguments, or why it may not run: they do not fit, or a rule denies them."""
    checked = hands.validate(each.call.tool, arguments)
    if isinstance(checked, list):
        message = f"The arguments do not fit {each.call.tool}: {shown('; '.join(checked), 500)}"
        return denied("edited_arguments", ToolErrorCode.INVALID_ARGUMENT, message, path=each.verdict.path)
    call = each.call.model_copy(update={"arguments": checked})
    verdict = hands.judge(call)
    return verdict if verdict.kind is VerdictKind.DENY else call


def _pin_edits(settled: Settled, hands: Hands) -> None:
    """Bind the edited calls to what they would do now, after the calls before them that may run."""
    edited = [index for index, verdict in enumerate(settled.verdicts) if verdict.edited]
    if not edited:
        return
    previews = hands.preview(_calls(settled, lambda each: each.kind is VerdictKind.ALLOW and bool(each.rule)))
    for index in edited:
        preview, verdict = previews.get(index, NO_PREVIEW), settled.verdicts[index]
        path = (*preview.names, verdict.path)[0]
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


def _allowed(asked: Verdict, pins: tuple[tuple[str, str, str], ...] | None) -> Verdict:
    return asked.model_copy(update={"kind": VerdictKind.ALLOW, "pins": pins})


def _stopped(verdict: Verdict) -> Verdict:
    if verdict.kind is VerdictKind.DENY:
        return verdict
    message = "This call did not run: a person stopped the run."
    return denied(verdict.rule, ToolErrorCode.CANCELLED, message, path=verdict.path)


def _rejected(asked: Verdict, decision: Decision) -> Verdict:
    if decision.action == "nobody":
        return denied(asked.rule, ToolErrorCode.APPROVAL_REQUIRED, NOBODY, path=asked.path)
    why = f": {shown(decision.reason, 500)}" if decision.reason.strip() else ""
    message = f"A person did not approve this call{why}. {_REMEDY}"
    return denied(asked.rule, ToolErrorCode.PERMISSION_DENIED, message, path=asked.path)


# --- Chat pages for LangGraph: two more forms of asking and of answers


_INBOX_ACTIONS = {"accept": "approve", "edit": "edit", "ignore": "reject", "response": "reject"}
_DECISIONS = {"approve": "approve", "edit": "edit", "reject": "reject", "respond": "reject"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9./-]+")


def page_fields(calls: Sequence[Mapping[str, Any]]) -> JsonMap:
    """What is added to a question about these calls (`AskedCall`), so that such pages show it with their buttons."""
    requests = [_page_request(call) for call in calls]
    one = requests[0] if len(requests) == 1 else None
    many = {f"{call['index']} {call['tool']}": json.dumps(call["arguments"], ensure_ascii=False) for call in calls}
    action = {"action": one["name"], "args": one["args"]} if one else {"action": f"{len(calls)} calls", "args": many}
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
    if isinstance(answer, Mapping) and _are_decisions(answer.get("decisions")):
        given = [_middleware(each) for each in answer["decisions"]]
    elif _are_decisions(answer) and isinstance(answer, Sequence) and len(answer) == 1:
        action = _inbox(answer[0])
        given = [action] * len(asked) if action.get("action") != "edit" or len(asked) == 1 else []
    else:
        return answer
    if len(given) > len(asked):
        return {"decisions": {}}
    pairs = zip(asked, given, strict=False)
    return {
        "decisions": {
            str(call["index"]): _fitted(decision, call["tool"], call["arguments"]) for call, decision in pairs
        }
    }


def _page_request(call: Mapping[str, Any]) -> JsonMap:
    preview = call.get("preview") or {}
    about = f" {_code(call['path'])}" if call.get("path") else ""
    text = str(preview.get("text", ""))
    fence = max([3, *(len(each) + 1 for each in re.findall(r"`{3,}", text))]) * "`"
    kind = "diff" if preview.get("kind") == "diff" else ""
    shown = f"\n\n{fence}{kind}\n{text}\n{fence}" if text else ""
    description = f"{call['tool']}{about} ({call['rule']}){shown}"
    return {"name": call["tool"], "args": call["arguments"], "description": description}


def _code(name: str) -> str:
    """A file's name in Markdown, which pages read: as code, where a link, an image or `__init__` is what it says."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    ticks = "`" * (max(map(len, re.findall(r"`+", name)), default=0) + 1)
    space = " " if "`" in name else ""
    return f"{ticks}{space}{' '.join(name.splitlines())}{space}{ticks}"


def _are_decisions(value: object) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "type" in each for each in value)
    )


def _middleware(decision: Mapping[str, Any]) -> JsonMap:
    action = _word(_DECISIONS, decision)
    edited = decision.get("edited_action")
    arguments = edited.get("args") if isinstance(edited, Mapping) else None
    named = edited.get("name") if isinstance(edited, Mapping) else None
    return _decision(action, arguments, decision.get("message"), named)


def _inbox(response: Mapping[str, Any]) -> JsonMap:
    action, given = _word(_INBOX_ACTIONS, response), response.get("args")
    arguments = given.get("args") if isinstance(given, Mapping) else None
    named = given.get("action") if isinstance(given, Mapping) else None
    return _decision(action, arguments, given, named)


def _word(words: Mapping[str, str], decision: Mapping[str, Any]) -> str:
    """Ours for the page's word; what is none is passed on, and refused where answers are read."""
    kind = str(decision["type"])
    return words.get(kind, kind)


def _decision(action: str, arguments: object, reason: object, tool: object) -> JsonMap:
    if action == "edit" and isinstance(arguments, Mapping):
        return {"action": action, "arguments": dict(arguments), "tool": tool}
    return {"action": action, "reason": reason} if isinstance(reason, str) and reason else {"action": action}


def _fitted(decision: JsonMap, tool: str, arguments: JsonMap) -> JsonMap:
    """The decision with arguments of the kinds of the first ones, for a page's fields hold text; no other tool."""
    named = decision.get("tool")
    if isinstance(named, str) and named not in {"", tool}:
        why = f"the call was changed to another tool, {named}, which cannot be done here"
        return {"action": "reject", "reason": why}
    fitted = {name: value for name, value in decision.items() if name != "tool"}
    if "arguments" in fitted:
        edited = fitted["arguments"].items()
        fitted["arguments"] = {name: _typed(arguments.get(name, ""), value) for name, value in edited}
    return fitted


def _typed(before: object, after: object) -> object:
    if isinstance(before, str) or not isinstance(after, str):
        return after
    try:
        return json.loads(after)
    except ValueError:
        return after
