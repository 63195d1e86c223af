"""The forms of approval requests and of their answers: our own, and the two that chat pages for LangGraph use.

Source: LangChain's human-in-the-loop middleware (`action_requests`, `decisions`) and agent inbox (`action_request`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, Literal, NamedTuple, NotRequired, Required, cast, get_args

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mendgraph.nodes.language.display import fenced, inline_code
from mendgraph.nodes.records import JsonMap

Action = Literal[
    "approve", "approve_prefix", "approve_for_run", "approve_always", "edit", "answer", "reject", "stop", "nobody"
]
"""The answers about a call; "answer" is for a question. A program answers "nobody" if no person could be asked."""

_ACTIONS: Final = frozenset(get_args(Action))


class ShownPreview(TypedDict):
    """What a call would do, as bounded text without secrets and control characters.

    A "diff" is unified, "argv" is a command quoted for a shell, "arguments" has one line for each argument. A
    "question" is what the model asks, with its choices in numbered lines. A "limit" asks whether it is raised.
    """

    kind: Literal["diff", "argv", "arguments", "question", "limit"]
    text: str
    truncated: bool


class AskedCall(TypedDict):
    """A call that waits for approval. `path` is the real path in the workspace, "" for calls without one.

    `why` says what kind of file it is if every change of such a file needs approval. `choices` say what
    "approve_prefix", "approve_for_run" and "approve_always" would allow beside this call; an answer without an entry
    counts as "approve". An answer that repeats the `digest` is only valid for what was shown. `hunks` is the number of
    hunks of the diff if single ones can be approved: if it has several and is shown as a whole.
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
    hunks: NotRequired[int]


class ApprovalRequest(TypedDict):
    """The value of the interrupt. It is answered by an `ApprovalAnswer`.

    `problem` says why the request is repeated: the answer before, such as `Command(resume=True)`, could not be read.
    """

    kind: Literal["approval"]
    calls: list[AskedCall]
    problem: NotRequired[str]


class CallDecision(TypedDict, total=False):
    """The answer about one call: all `arguments` of an "edit", a `reason` for the model, the `digest` of the call.

    `answer` is the text for a question. `hunks` are the numbers, from 1, of the hunks of the diff that an "approve"
    allows; without them it allows all.
    """

    action: Required[Action]
    answer: str
    arguments: JsonMap
    reason: str
    digest: str
    hunks: list[int]


class ApprovalAnswer(TypedDict):
    """The decisions by the index of the call, as digits; a missing one is a rejection.

    A bare action is for all; any other text answers the questions.
    """

    decisions: dict[str, CallDecision]


@cache
def response_schema() -> JsonMap:
    """Return the schema of answers for clients; an answer that does not fit it counts as a rejection."""
    words = Literal["approve", "approve_prefix", "approve_for_run", "approve_always", "reject", "stop"]
    answers: TypeAdapter[object] = TypeAdapter(words | ApprovalAnswer)
    return answers.json_schema()


class Decision(NamedTuple):
    """The decision about one call; `arguments` are None unless they were edited, `answer` is for a question.

    `hunks` are empty if all are allowed.
    """

    action: Action
    reason: str = ""
    arguments: JsonMap | None = None
    digest: str = ""
    answer: str = ""
    hunks: tuple[int, ...] = ()


UNREADABLE: Final = "the answer could not be read"
UNANSWERED: Final = "there was no answer for this call"


def read_answer(answer: object, calls: Sequence[AskedCall]) -> dict[int, Decision]:
    """Return the decision about each call by its index; what is missing or cannot be read is a rejection."""
    by_index: Mapping[Any, object] | None = None
    if isinstance(answer, str):
        by_index = {call["index"]: answer for call in calls}
    elif isinstance(answer, list):
        by_index = _decisions_of_page(answer * len(calls) if len(answer) == 1 else [], calls, for_all=True)
    elif isinstance(answer, Mapping):
        decisions = answer.get("decisions")
        if isinstance(decisions, list):
            by_index = _decisions_of_page(decisions, calls, for_all=False)
        elif isinstance(decisions, Mapping):
            by_index = decisions

    if by_index is None:
        return {call["index"]: Decision("reject", UNREADABLE) for call in calls}

    decisions = {}
    for call in calls:
        index = call["index"]
        decisions[index] = _decision(call, by_index.get(str(index), by_index.get(index)))

    return decisions


def is_question(call: AskedCall) -> bool:
    """Return whether the call asks a question, so that its decision is the answer."""
    return call["preview"]["kind"] == "question"


def is_about_limit(call: AskedCall) -> bool:
    """Return whether it is asked whether a limit is raised, to the one argument of the call or another number."""
    return call["preview"]["kind"] == "limit"


def _decision(call: AskedCall, fields: object) -> Decision:
    if fields is None:
        return Decision("reject", UNANSWERED)
    if isinstance(fields, str) and is_question(call) and fields not in _ACTIONS:
        return Decision("answer", answer=fields)
    if isinstance(fields, str):
        fields = {"action": fields}
    if not isinstance(fields, Mapping):
        return Decision("reject", UNREADABLE)

    action = fields.get("action")
    digest = fields.get("digest")
    if not isinstance(action, str) or action not in _ACTIONS or not isinstance(digest, str | None):
        return Decision("reject", UNREADABLE)

    edited = None
    if action == "edit":
        arguments = fields.get("arguments")
        if not isinstance(arguments, Mapping):
            return Decision("reject", UNREADABLE)

        edited = {str(name): value for name, value in arguments.items()}

    answer = fields.get("answer", "")
    if action == "answer" and not (is_question(call) and isinstance(answer, str)):
        return Decision("reject", UNREADABLE)

    hunks = _chosen_hunks(call, action, fields)
    if hunks is None:
        return Decision("reject", UNREADABLE)

    reason = fields.get("reason")
    return Decision(
        cast("Action", action), reason if isinstance(reason, str) else "", edited, digest or "", str(answer), hunks
    )


# --- Hunks


def _chosen_hunks(call: AskedCall, action: str, fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the chosen hunks in order, none if all are allowed; None if they cannot be read, as null cannot."""
    if "hunks" not in fields or action in {"reject", "stop", "nobody"}:
        return ()

    numbers = fields["hunks"]
    count = call.get("hunks", 0)
    if action != "approve" or not isinstance(numbers, list | tuple) or not numbers:
        return None
    if not all(type(number) is int and 0 < number <= count for number in numbers):
        return None

    chosen = sorted(set(numbers))
    return tuple(chosen) if len(chosen) < count else ()


_HUNKS: Final = re.compile(r"^(?=(?:--- .*\n\+\+\+ .*\n)?@@ )", re.MULTILINE)


def hunk_texts(diff: str) -> list[str]:
    """Return the hunks of a unified diff of one or more files, each with the names of its file."""
    hunks: list[str] = []
    names = ""

    for part in _HUNKS.split(diff):
        if part.startswith("@@ "):
            hunks.append(names + part)
        else:
            names = part

    return hunks


# --- Chat pages

_ACTION_OF: Final = {
    "accept": "approve",
    "approve": "approve",
    "ignore": "reject",
    "reject": "reject",
    "respond": "reject",
    "response": "reject",
}
"""Our actions for the types of a page's decisions; any other type counts as an action and is then refused."""

_WORDS: Final = frozenset({"respond", "response"})
"""The types of a page's decisions that hold a person's words: to a question, its answer."""


def page_fields(calls: Sequence[AskedCall]) -> JsonMap:
    """Return the fields of a request about these calls from which chat pages show it with their buttons."""
    requests = [_page_request(call) for call in calls]
    is_single = len(requests) == 1

    if is_single:
        action = {"action": requests[0]["name"], "args": requests[0]["args"]}
    else:
        arguments = {}
        for call in calls:
            arguments[f"{call['index']} {call['tool']}"] = json.dumps(call["arguments"], ensure_ascii=False)

        action = {"action": f"{len(calls)} calls", "args": arguments}

    tools = dict.fromkeys(request["name"] for request in requests)
    decisions = ["approve", "edit", "reject"]
    return {
        "action_request": action,
        "config": {"allow_accept": True, "allow_edit": is_single, "allow_respond": True, "allow_ignore": True},
        "description": "\n\n".join(request["description"] for request in requests),
        "action_requests": requests,
        "review_configs": [{"action_name": tool, "allowed_decisions": decisions} for tool in tools],
    }


def _page_request(call: AskedCall) -> JsonMap:
    title = call["tool"]
    if call["path"]:
        title += f" {inline_code(call['path'])}"

    rule = call["rule"]
    why = call.get("why")
    if why:
        rule += f": {inline_code(why)}"

    description = f"{title} ({rule})"
    preview = call["preview"]
    if preview["text"]:
        description += f"\n\n{fenced(preview['text'], 'diff' if preview['kind'] == 'diff' else 'text')}"

    return {"name": call["tool"], "args": call["arguments"], "description": description}


def _decisions_of_page(decisions: list[Any], calls: Sequence[AskedCall], *, for_all: bool) -> dict[int, object] | None:
    """Return a page's decisions by index; None if they cannot be read. Too many decisions decide nothing."""
    if not decisions or not all(isinstance(decision, Mapping) and "type" in decision for decision in decisions):
        return None
    if len(decisions) > len(calls) or (for_all and len(calls) > 1 and decisions[0]["type"] == "edit"):
        return {}

    return {call["index"]: _own_decision(call, decision) for call, decision in zip(calls, decisions, strict=False)}


def _own_decision(call: AskedCall, decision: Mapping[str, Any]) -> JsonMap:
    """Return a page's decision in our form. A tool cannot be exchanged by an edit."""
    page_action = str(decision["type"])
    action = _ACTION_OF.get(page_action, page_action)
    if is_question(call) and page_action in _WORDS:
        return {"action": "answer", "answer": decision.get("message", decision.get("args"))}

    edited = decision.get("edited_action", decision.get("args"))
    arguments = edited.get("args") if isinstance(edited, Mapping) else None

    if action != "edit" or not isinstance(edited, Mapping) or not isinstance(arguments, Mapping):
        words = decision.get("message", decision.get("args"))
        hunks = {name: decision[name] for name in decision.keys() & {"hunks"}}
        return {"action": action, "reason": words, **hunks}

    tool = edited.get("name") or edited.get("action")
    if isinstance(tool, str) and tool not in {"", call["tool"]}:
        reason = f"the call was changed to another tool, {tool}, which cannot be done here"
        return {"action": "reject", "reason": reason}

    typed = {name: _with_type_of(call["arguments"].get(name, ""), value) for name, value in arguments.items()}
    return {"action": action, "arguments": typed}


def _with_type_of(before: object, after: object) -> object:
    """Return the new value, decoded from JSON if it is text and the old value was not: a page's fields hold text."""
    if isinstance(after, str) and not isinstance(before, str):
        with suppress(ValueError):
            return json.loads(after)

    return after
