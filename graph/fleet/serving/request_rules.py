"""Which requests a server for several users takes, and what they may hold. Pure.

An engine behind it sees nothing else. Whatever a client could use to name another thread, another user or other
parts of the machine is refused by its name, whichever version of the engine would have believed it.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.nodes.records import JsonMap

OPEN_PATHS: Final = frozenset({"/ok", "/health", "/live", "/ready", "/info"})
"""What tells of the server and of no user: for load balancers, without a token."""

GRAPH: Final = "mendgraph"
"""The only graph that is served."""

_ID: Final = r"(?P<{}>[A-Za-z0-9][A-Za-z0-9._:-]{{0,127}})"
_THREAD: Final = rf"/threads/{_ID.format('thread')}"
_RUN: Final = rf"{_THREAD}/runs/{_ID.format('run')}"
_ASSISTANT: Final = rf"/assistants/{_ID.format('assistant')}"

_NEW_RUN, _NEW_THREAD, _ABOUT_THREAD, _PLAIN = "new run", "new thread", "about a thread", "plain"
_ROUTES: Final = tuple(
    (method, re.compile(pattern), kind)
    for method, pattern, kind in (
        ("POST", r"/assistants/(search|count)", _PLAIN),
        ("GET", r"/assistants", _PLAIN),
        ("GET", rf"{_ASSISTANT}(/(graph|schemas|subgraphs))?", _PLAIN),
        ("POST", r"/threads", _NEW_THREAD),
        ("POST", r"/threads/(search|count)", _PLAIN),
        ("GET", r"/threads", _PLAIN),
        ("GET", _THREAD, _PLAIN),
        ("PATCH", _THREAD, _ABOUT_THREAD),
        ("DELETE", _THREAD, _PLAIN),
        ("GET", rf"{_THREAD}/(state|history)", _PLAIN),
        ("GET", rf"{_THREAD}/state/[A-Za-z0-9-]{{1,64}}", _PLAIN),
        ("POST", rf"{_THREAD}/(history|state/checkpoint)", _ABOUT_THREAD),
        ("POST", rf"{_THREAD}/runs(/stream|/wait)?", _NEW_RUN),
        ("GET", rf"{_THREAD}/runs", _PLAIN),
        ("GET", rf"{_RUN}(/join|/stream)?", _PLAIN),
        ("POST", rf"{_RUN}/cancel", _PLAIN),
        ("DELETE", _RUN, _PLAIN),
    )
)
_RUN_KEYS: Final = frozenset(
    {
        *("assistant_id", "input", "context", "config", "command", "checkpoint", "checkpoint_id", "metadata"),
        *("stream_mode", "stream_subgraphs", "stream_resumable", "interrupt_before", "interrupt_after", "durability"),
        *("checkpoint_during", "multitask_strategy", "on_disconnect", "on_completion", "if_not_exists", "raise_error"),
        *("after_seconds", "feedback_keys", "langsmith_tracer", "stream"),
    }
)
_CHECKPOINT_KEYS: Final = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns"})
_PERSON: Final = ("user", "human")
_MOST_STEPS: Final = 100_000
_MODES: Final = frozenset(
    ("values", "updates", "messages", "messages-tuple", "debug", "tasks", "checkpoints", "custom", "events")
)
_CONFIG_KEYS: Final = frozenset({"configurable", "tags", "metadata", "recursion_limit"})


class Refused(NamedTuple):
    """The answer to a request that the engine does not see."""

    status: int
    detail: str


class Asked(NamedTuple):
    """A request that may be one of the engine's: the thread and the run that it is about.

    `wants_result` says whether a run's result is the answer, `follows` whether that is one which has begun before.
    """

    kind: str
    thread: str = ""
    run: str = ""
    has_body: bool = False
    wants_result: bool = False
    follows: bool = False

    @property
    def begins_run(self) -> bool:
        """Whether a run begins with it."""
        return self.kind == _NEW_RUN


def read_route(method: str, path: str) -> Asked | Refused:
    """What is asked for."""
    for known, pattern, kind in _ROUTES:
        found = pattern.fullmatch(path) if method == known else None
        if found:
            named, has_body = found.groupdict(), method in {"POST", "PATCH"}
            run = named.get("run", "")
            joins, follows = path.endswith(f"/{run}/join"), path.endswith((f"/{run}/join", f"/{run}/stream"))
            wants_result = joins or (kind == _NEW_RUN and path.endswith("/wait"))
            return Asked(kind, named.get("thread", ""), run, has_body, wants_result, bool(run) and follows)
    if method == "POST" and re.fullmatch(rf"{_THREAD}/state", path):
        return Refused(403, "A thread is written by its runs alone.")
    return Refused(404, "This server has no such address.")


def read_body(asked: Asked, data: bytes, user: str, scrub: Callable[[JsonMap], Any] = dict) -> JsonMap | Refused:
    """What a request holds, once nothing in it is more than its user may say; `scrub` takes out secrets."""
    body = read_json(data, scrub)
    if isinstance(body, Refused):
        return body
    problem = {_NEW_RUN: _run_problem, _NEW_THREAD: _thread_problem}.get(asked.kind, _other_problem)(body, asked.thread)
    problem = problem or _metadata_problem(body.get("metadata"), user)
    return Refused(422, problem) if problem else body


def _run_problem(body: Mapping[str, Any], thread: str) -> str:
    for key in body:
        if key not in _RUN_KEYS and body[key]:
            return f"A run may not have {key[:60]!r} here."
    config, context, command = (body.get(key) or {} for key in ("config", "context", "command"))
    if not isinstance(config, dict) or not isinstance(context, dict) or not isinstance(command, dict):
        return "config, context and command should be JSON objects."
    if config.keys() - _CONFIG_KEYS:
        return f"config may hold {', '.join(sorted(_CONFIG_KEYS))}, and nothing else."
    if config.get("configurable"):
        return "Say what a run may do in context: config.configurable is the server's own."
    unknown = sorted(context.keys() - AgentContext.model_fields.keys())
    if unknown:
        return f"There is no setting {unknown[0][:60]!r}: context holds the fields that the graph's schema names."
    if command.keys() - {"resume"} and any(command[key] for key in command.keys() - {"resume"}):
        return "A command may hold `resume`, and nothing else: a thread is written by its runs alone."
    given = body.get("input")
    if given is not None and not (isinstance(given, dict) and given.keys() <= {"messages"}):
        return "input may hold messages, and nothing else."
    if given and not _are_a_persons(given["messages"]):
        return 'messages should be a person\'s, such as [{"role": "user", "content": "Fix the bug."}].'
    return _value_problem(body, config) or _checkpoint_problem(body.get("checkpoint"), thread)


def _are_a_persons(messages: Any) -> bool:
    """Whether they say nothing in the name of the model, of a tool or of the server, and take nothing back."""
    return isinstance(messages, str) or (isinstance(messages, list) and all(map(_is_a_persons, messages)))


def _is_a_persons(message: Any) -> bool:
    if isinstance(message, list):
        return len(message) == 2 and message[0] in _PERSON and isinstance(message[1], str | list)
    if not isinstance(message, dict):
        return isinstance(message, str)
    if "lc" in message:  # as LangChain's own classes write themselves
        name, message = message.get("id"), message.get("kwargs")
        if not (isinstance(name, list) and name and name[-1] == "HumanMessage" and isinstance(message, dict)):
            return False
        message = {"type": "human", **message}
    said = [message[key] for key in ("role", "type") if key in message]
    return bool(said) and all(each in _PERSON for each in said) and isinstance(message.get("content"), str | list)


def _value_problem(body: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """What an engine would say no more of than that the run has failed."""
    steps, tags, modes = config.get("recursion_limit"), config.get("tags") or [], body.get("stream_mode") or []
    if steps is not None and not (isinstance(steps, int) and 1 <= steps <= _MOST_STEPS):
        return f"config.recursion_limit should be a whole number from 1 to {_MOST_STEPS:,}."
    if not isinstance(tags, list) or not all(isinstance(each, str) for each in tags):
        return "config.tags should be a list of texts."
    if not isinstance(config.get("metadata") or {}, dict):
        return "config.metadata should be a JSON object."
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(isinstance(each, str) and each in _MODES for each in modes):
        return f"stream_mode may be {', '.join(sorted(_MODES))}."
    return ""


def _thread_problem(body: Mapping[str, Any], _thread: str) -> str:
    name = body.get("thread_id")
    if name is not None and not (isinstance(name, str) and re.fullmatch(_ID.format("id"), name)):
        return "thread_id should be up to 128 of A-Z a-z 0-9 . _ : -, such as a UUID."
    return "A thread is written by its runs alone." if body.get("supersteps") else ""


def _other_problem(body: Mapping[str, Any], thread: str) -> str:
    if body.get("config"):
        return "config is the server's own here."
    for key, least, most in (("limit", 1, 1_000), ("offset", 0, 1_000_000)):
        if body.get(key) is not None and not (isinstance(body[key], int) and least <= body[key] <= most):
            return f"{key} should be a whole number from {least} to {most:,}."
    before = body.get("before")
    inner = before.get("configurable", before) if isinstance(before, dict) else None
    return _checkpoint_problem(body.get("checkpoint"), thread) or _checkpoint_problem(inner, thread)


def _checkpoint_problem(checkpoint: Any, thread: str) -> str:
    if not checkpoint:
        return ""
    known = isinstance(checkpoint, dict) and checkpoint.keys() - {"checkpoint_map"} <= _CHECKPOINT_KEYS
    texts = known and all(isinstance(checkpoint[key] or "", str) for key in checkpoint.keys() & _CHECKPOINT_KEYS)
    elsewhere = texts and (checkpoint.get("checkpoint_ns") or checkpoint.get("checkpoint_map"))
    if not texts or elsewhere or checkpoint.get("thread_id", thread) != thread:
        return "checkpoint may hold the checkpoint_id of this very thread."
    return ""


def _metadata_problem(metadata: Any, user: str) -> str:
    if metadata and not (isinstance(metadata, dict) and metadata.get("owner", user) == user):
        return "metadata should be a JSON object that names nobody else as the owner."
    if metadata and metadata.get("graph_id") not in (None, GRAPH):  # with another one a thread's state is lost
        return f"metadata.graph_id is the server's own: it is {GRAPH!r}."
    return ""


# --- What stands in a body, as every engine and every database can take it

MOST_BYTES: Final = 4_000_000
"""Of one request's body: more text than any model's window holds."""

_DEEPEST: Final = 64
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON can name, and PostgreSQL's jsonb and UTF-8 cannot hold."""


def read_json(data: bytes, scrub: Callable[[JsonMap], Any] = dict) -> JsonMap | Refused:
    """The object in `data`, without what cannot be stored; `scrub` takes out secrets, also by the names they are under.

    Engines keep what they are sent in tables of their own, as it came.
    """
    try:
        body = json.loads(data or b"{}", parse_constant=_no_number, parse_float=_finite)
        if not isinstance(body, dict):
            return Refused(422, "The request's body should be a JSON object.")
        cleaned = scrub(_cleaned(body, _DEEPEST))
    except _TooDeepError:
        return Refused(422, f"The request's body is nested deeper than {_DEEPEST}.")
    except (ValueError, RecursionError):
        return Refused(400, "The request's body is no JSON.")
    return cleaned if isinstance(cleaned, dict) else Refused(422, "The request's body cannot be looked through.")


class _TooDeepError(Exception):
    """There are lists in lists, or objects, beyond what anybody needs."""


def _cleaned(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise _TooDeepError
    if isinstance(value, list):
        return [_cleaned(each, depth - 1) for each in value]
    return {_cleaned(name, depth): _cleaned(each, depth - 1) for name, each in value.items()}


def _no_number(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)
