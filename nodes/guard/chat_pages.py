"""Two more forms of an approval request and of its answers, which chat pages for LangGraph show and send."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from mendgraph.nodes.guard.approvals import AskedCall
from mendgraph.nodes.language.display import fenced, inline_code
from mendgraph.nodes.records import JsonMap

_ACTION_OF: Final = {
    "accept": "approve",
    "approve": "approve",
    "ignore": "reject",
    "reject": "reject",
    "respond": "reject",
    "response": "reject",
}
"""Our action for the words of both forms; another word is passed on, and refused where answers are read."""


def page_fields(calls: Sequence[Mapping[str, Any]]) -> JsonMap:
    """The fields of a request about these calls (`AskedCall`) by which such pages show it with their buttons."""
    requests = [_page_request(call) for call in calls]
    only = requests[0] if len(requests) == 1 else None

    if only:
        action = {"action": only["name"], "args": only["args"]}
    else:
        arguments = {}
        for call in calls:
            arguments[f"{call['index']} {call['tool']}"] = json.dumps(call["arguments"], ensure_ascii=False)

        action = {"action": f"{len(calls)} calls", "args": arguments}

    tools = dict.fromkeys(request["name"] for request in requests)
    decisions = ["approve", "edit", "reject"]

    return {
        "action_request": action,
        "config": {
            "allow_accept": True,
            "allow_edit": only is not None,
            "allow_respond": True,
            "allow_ignore": True,
        },
        "description": "\n\n".join(request["description"] for request in requests),
        "action_requests": requests,
        "review_configs": [{"action_name": tool, "allowed_decisions": decisions} for tool in tools],
    }


def page_answer(answer: object, calls: Sequence[AskedCall]) -> object:
    """A page's answer about these calls in our form; an answer in another form is returned unchanged.

    Fewer decisions than calls leave the others undecided; more decide nothing. An edit that names another tool than its
    call rejects it: a tool cannot be exchanged.
    """
    for_all = isinstance(answer, list) and len(answer) == 1
    decisions = answer.get("decisions") if isinstance(answer, Mapping) else answer

    if not isinstance(decisions, list) or not decisions or (decisions is answer and not for_all):
        return answer

    if not all(isinstance(decision, Mapping) and "type" in decision for decision in decisions):
        return answer

    if for_all and len(calls) > 1 and decisions[0]["type"] == "edit":
        decisions = []
    elif for_all:
        decisions = decisions * len(calls)

    if len(decisions) > len(calls):
        return {"decisions": {}}

    pairs = zip(calls, decisions, strict=False)
    return {"decisions": {str(call["index"]): _from_page(call, decision) for call, decision in pairs}}


def _page_request(call: Mapping[str, Any]) -> JsonMap:
    preview = call.get("preview") or {}
    text = str(preview.get("text", ""))
    title = str(call["tool"])
    rule = str(call["rule"])

    if call.get("path"):
        title += f" {inline_code(call['path'])}"

    if call.get("why"):
        rule += f": {inline_code(call['why'])}"

    description = f"{title} ({rule})"
    if text:
        kind = "diff" if preview.get("kind") == "diff" else "text"
        description += f"\n\n{fenced(text, kind)}"

    return {"name": call["tool"], "args": call["arguments"], "description": description}


def _from_page(call: AskedCall, decision: Mapping[str, Any]) -> JsonMap:
    """Our decision for a page's; its arguments get the types of the call's, as a page's fields hold text."""
    page_action = str(decision["type"])
    action = _ACTION_OF.get(page_action, page_action)
    edited = decision.get("edited_action", decision.get("args"))
    arguments = edited.get("args") if isinstance(edited, Mapping) else None

    if action != "edit" or not isinstance(edited, Mapping) or not isinstance(arguments, Mapping):
        reason = decision.get("message", decision.get("args"))
        if isinstance(reason, str) and reason:
            return {"action": action, "reason": reason}

        return {"action": action}

    tool = edited.get("name") or edited.get("action")
    if isinstance(tool, str) and tool not in {"", call["tool"]}:
        reason = f"the call was changed to another tool, {tool}, which cannot be done here"
        return {"action": "reject", "reason": reason}

    typed = {}
    for name, argument in arguments.items():
        typed[name] = _with_type_of(call["arguments"].get(name, ""), argument)

    return {"action": action, "arguments": typed}


def _with_type_of(before: object, after: object) -> object:
    """The new value, decoded from JSON where it is text and the value before is none."""
    if isinstance(after, str) and not isinstance(before, str):
        with suppress(ValueError):
            return json.loads(after)

    return after
