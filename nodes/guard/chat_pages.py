"""What chat pages for LangGraph understand of an approval: two forms of asking, beside our own, and of answering.

Agent Inbox and Agent Chat UI know a question by `action_request` and `config`, and answer with a list of one
`{"type": ..., "args": ...}`. LangChain's middleware and the pages made for it know one by `action_requests` and
`review_configs`, and answer `{"decisions": [{"type": ...}, ...]}`, a list in the order of the calls.
Source: `HumanInterrupt` of langgraph-prebuilt 1.1 and `HITLRequest` of langchain 1.x.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mendgraph.nodes.records import JsonMap

_INBOX_ACTIONS = {"accept": "approve", "edit": "edit", "ignore": "reject", "response": "reject"}
_DECISIONS = {"approve": "approve", "edit": "edit", "reject": "reject", "respond": "reject"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9./-]+")


def page_fields(calls: Sequence[Mapping[str, Any]]) -> JsonMap:
    """What is added to a question about these calls (`AskedCall`), so that such pages show it with their buttons."""
    requests = [_request(call) for call in calls]
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


def page_answer(answer: object, asked: Mapping[int, JsonMap], tools: Mapping[int, str] | None = None) -> object:
    """A page's answer as one of ours; any other is given back as it is.

    `asked` holds the arguments of each call that was asked about, by its index in the reply. Fewer decisions than
    calls leave the rest undecided; more decide nothing. `tools` are the names of the calls: an edit that names another
    tool than its call rejects it, for a tool cannot be exchanged.
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
    pairs = zip(asked.items(), given, strict=False)
    called = tools or {}
    return {
        "decisions": {
            str(index): _fitted(decision, called.get(index), arguments) for (index, arguments), decision in pairs
        }
    }


def _request(call: Mapping[str, Any]) -> JsonMap:
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


def _fitted(decision: JsonMap, tool: str | None, arguments: JsonMap) -> JsonMap:
    """The decision with arguments of the kinds of the first ones, for a page's fields hold text; no other tool."""
    named = decision.get("tool")
    if tool is not None and isinstance(named, str) and named not in {"", tool}:
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
