"""A run once more: what it went through, read from its checkpoints, and how it is played in a folder of its own.

It is played first while its replies are recited, then on what that recorded. Two courses are compared step by step.
"""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice, pairwise, zip_longest
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from httpx2 import MockTransport, Request, Response
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, secrets_in
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.servers import MISSED, refusal
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.chat_models import EndpointModel, endpoint_chat
from mendgraph.graph.langchain.failures import LESSONS
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.machine.workspace import judged_workspace
from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import small_history, thread_config
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.file_changes import MOST_CHANGES
from mendgraph.nodes.execute_tools.files.workspace import Change, FileContent, Workspace, WriteFile
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.restoring import net_effects
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import (
    CallError,
    FinishReason,
    JsonMap,
    ModelReply,
    Outcome,
    Profile,
    ProviderFailure,
    ToolCall,
    ToolError,
    ToolErrorCode,
)

Files = Mapping[str, bytes]
"""What the files of a folder hold, by their paths with "/" between the parts."""


@dataclass
class TurnReplies:
    """What the endpoint said in one turn."""

    replies: list[ModelReply] = field(default_factory=list)


@dataclass(frozen=True)
class ToolStep:
    """What one call came to: in which step, which tool, and the result as JSON."""

    step: int
    tool: str
    result: str


@dataclass(frozen=True)
class RunCourse:
    """A run from its first request to its last end. `path` holds (step, node); `requests` are one for each turn."""

    context: AgentContext
    profile: Profile
    requests: tuple[str, ...]
    turns: tuple[TurnReplies, ...]
    path: tuple[tuple[int, str], ...]
    results: tuple[ToolStep, ...]
    calls: tuple[ToolCall | CallError, ...]
    outcomes: tuple[Outcome, ...]
    messages: tuple[AnyMessage, ...]
    files_read: Mapping[str, str]


def read_course(saver: BaseCheckpointSaver[Any], run_id: str) -> RunCourse | ToolError:
    """What the run went through, or why that cannot be played again.

    Raises:
        StoreError: a checkpoint cannot be read.
    """
    history = [*reversed([*small_history(saver, run_id)])]
    problem = _problem(history)
    if problem:
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=problem)
    final = build_graph(saver).get_state(thread_config(run_id)).values
    messages = tuple(final.get("messages") or ())
    requests = tuple(message.text for message in messages if is_request(message))
    turns = _turns(history)
    begun = next(snapshot.values for snapshot in history if snapshot.next == ("call_model",))
    outcomes = tuple(snapshot.values["outcome"] for snapshot in history if not snapshot.next)
    if not len(requests) == len(turns) == len(outcomes):
        message = (
            f"The run has {len(requests)} requests and {len(outcomes)} ends: a turn of it was cut off, and what was"
            " said in it is not known. Take a run whose turns have all ended."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return RunCourse(
        context=begun["context"],
        profile=begun["profile"],
        requests=requests,
        turns=turns,
        path=tuple((snapshot.values.get("step", 0), node) for snapshot in history for node in _nodes(snapshot)),
        results=tuple(_results(history)),
        calls=tuple(item for snapshot in history if snapshot.next == ("guard",) for item in snapshot.values["items"]),
        outcomes=outcomes,
        messages=messages,
        files_read=final.get("files_read") or {},
    )


def _nodes(snapshot: StateSnapshot) -> Iterator[str]:
    return (node for node in snapshot.next if node in routes.NODES)


def _problem(history: Sequence[StateSnapshot]) -> str:
    """Why this history cannot be played again; "" where it can."""
    if not history or history[-1].next:
        return "The run has not ended: `mendgraph resume` goes on with it."
    if not any(snapshot.next == ("call_model",) for snapshot in history):
        if any(snapshot.next == ("begin_turn",) for snapshot in history):
            return f"The run ended before a model was called: {history[-1].values['outcome'].message}"
        return "Of the run no step is kept but its end: only runs with durability sync or async can be played again."
    for snapshot in history:
        step = snapshot.values.get("step", 0)
        if (snapshot.metadata or {}).get("source") in {"update", "fork"}:
            return (
                f"The run was forked, or taken up again after it was stopped, at step {step}: what it was before is"
                " another run's. Take a run that went on by itself."
            )
        if (snapshot.values.get("window") or Window()).summary:
            return (
                f"In step {step} the conversation was summarised, which cannot be asked for again: take a shorter run."
            )
        if snapshot.interrupts:
            return f"In step {step} a person was asked, and the answer cannot be played again: take a run in mode auto."
    return ""


def _turns(history: Sequence[StateSnapshot]) -> tuple[TurnReplies, ...]:
    """What was said, turn by turn; a checkpoint after `call_model` holds what came of the call."""
    turns: list[TurnReplies] = []
    for before, snapshot in pairwise(history):
        if snapshot.next == ("begin_turn",):
            turns.append(TurnReplies())
        elif before.next == ("call_model",) and turns:
            _take(turns[-1], snapshot.values)
    return tuple(turns)


def _take(turn: TurnReplies, after: Mapping[str, Any]) -> None:
    reply = after.get("reply")
    turn.replies += [] if reply is None or reply.preloaded else [reply]


def _results(history: Sequence[StateSnapshot]) -> Iterator[ToolStep]:
    for snapshot in history:
        if snapshot.next == ("loop_check",):
            for each in snapshot.values.get("results") or ():
                result = json.dumps(each.result.as_map(), ensure_ascii=False, sort_keys=True, default=str)
                yield ToolStep(snapshot.values.get("step", 0), each.tool, result)


_AROUND = 60
"""Characters that are shown before and after the place where two texts differ."""

FOLDER = "<workspace>"


def course_difference(stored: RunCourse, played: RunCourse) -> str:
    """The first thing that differs, in one sentence without its full stop; "" where both went the same way.

    The name of the folder that each of them was played in makes no difference.
    """
    first = next(_differences(stored, played), "")
    return first and next(_changed_results(stored, played), first)


def _differences(stored: RunCourse, played: RunCourse) -> Iterator[str]:
    for was, now in zip_longest(stored.path, played.path, fillvalue=(0, "nothing")):
        if was != now:
            yield f"in step {was[0] or now[0]} the run went to {was[1]}, and now it goes to {now[1]}"
    for number, (first, second) in enumerate(zip_longest(stored.messages, played.messages), start=1):
        one, other = _words(first, stored), _words(second, played)
        if one != other:
            yield f"message {number} of the conversation is another one: {_apart(one, other)}"
    for turn, (ended, ends) in enumerate(zip_longest(map(_end, stored.outcomes), map(_end, played.outcomes)), start=1):
        if ended != ends:
            yield f"turn {turn} ended with {ended}, and now it ends with {ends}"


def _changed_results(stored: RunCourse, played: RunCourse) -> Iterator[str]:
    """The results that are other ones: they say best why a run does not repeat."""
    for was, now in zip(stored.results, played.results, strict=False):
        one = was.result.replace(stored.context.workspace, FOLDER)
        other = now.result.replace(played.context.workspace, FOLDER)
        if (was.step, was.tool) == (now.step, now.tool) and one != other:
            yield f"in step {was.step} {was.tool} gave another result: {_apart(one, other)}"


def _end(outcome: Outcome) -> str:
    return f"{outcome.kind.value} ({outcome.reason.value})"


def _words(message: AnyMessage | None, course: RunCourse) -> str:
    """What a message says, without the name of the folder."""
    if message is None:
        return ""
    calls = str([(call["name"], call["args"]) for call in message.tool_calls]) if isinstance(message, AIMessage) else ""
    return f"{message.type}: {message.text}{calls}".replace(course.context.workspace, FOLDER)


def _apart(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
    start = max(at - _AROUND, 0)
    return f"it was ...{one[start : at + _AROUND]!r}, and is now ...{other[start : at + _AROUND]!r}"


MOST_FILES: Final = 200
MOST_BYTES: Final = 2_000_000
"""What is kept beside a cassette; a test that needs more is no test of one run."""

KEEPS_TESTS_OUT: Final = "conftest.py"
"""Stands in the folder `files` beside a cassette, so that pytest collects nothing there."""

_COPY: Final = re.compile(rf"((?:.*?/)?files)/(?:before/|after/|{re.escape(KEEPS_TESTS_OUT)}$)")


@dataclass(frozen=True)
class StartFiles:
    """A workspace at a run's start. `before` are the files that the run changed, None where there was none."""

    workspace: Workspace
    before: Mapping[str, bytes | None]

    def touched(self, course: RunCourse) -> Files | ToolError:
        """Those files that the run read, changed or named, and what lies in the folders that it named.

        `.gitignore` files are among them.
        """
        return self._files(course, lambda path: path.rpartition("/")[2] == ".gitignore")

    def every(self, course: RunCourse) -> Files | ToolError:
        """All files that git would not ignore and that the rules allow."""
        return self._files(course, lambda _: True)

    def _files(self, course: RunCourse, wanted: Callable[[str], bool]) -> Files | ToolError:
        """The files that the run named, and wanted ones, unless they lie beside the cassettes of other runs."""
        named = {*self.before, *course.files_read, *_named(course, self.workspace.root)}
        names = self._names()
        return self._read(
            path for path in names if _is_named(path, named) or (wanted(path) and not self._is_copy(path))
        )

    def _names(self) -> Iterator[str]:
        """The files that were there, those first that are there now."""
        seen: set[str] = set()
        for entry in self.workspace.walk():
            allowed = entry.kind == "file" and self.workspace.denied(entry.path) is None
            if allowed and self.before.get(entry.path, b"") is not None:
                seen.add(entry.path)
                yield entry.path
        yield from sorted(path for path, data in self.before.items() if data is not None and path not in seen)

    def _is_copy(self, path: str) -> bool:
        """Whether it is a file of an earlier run, kept beside the cassette that was made of that."""
        found = _COPY.match(path)
        return found is not None and self.workspace.exists(f"{found[1]}/{KEEPS_TESTS_OUT}")

    def _read(self, names: Iterator[str]) -> Files | ToolError:
        files: dict[str, bytes] = {}
        left = MOST_BYTES
        for path in names:
            data = self.before.get(path)
            content = FileContent.of(path, data) if data is not None else self.workspace.read_file(path, MOST_BYTES)
            if isinstance(content, ToolError):
                return content
            files[path] = content.data
            left -= len(content.data)
            if len(files) > MOST_FILES or left < 0:
                message = (
                    f"The run needs more than {MOST_FILES} files or {MOST_BYTES:,} bytes of its workspace, more"
                    " than is kept beside a test. Let a .gitignore name what it does not need, or run the task in a"
                    " smaller folder."
                )
                return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        return files


def files_at_start(records: str, root: str, run_id: str) -> StartFiles | ToolError:
    """The workspace at `root` before the run; `records` is the folder of its journal.

    Raises:
        StoreError: the journal cannot be read.
    """
    journal = Journal(records)
    before: dict[str, bytes | None] = {}
    for effect in net_effects(journal.changes_of(run_id)):
        sha256 = effect.before.sha256
        before[effect.path] = journal.backup(sha256) if sha256 else None
        if sha256 and before[effect.path] is None:
            message = (
                f"What {quoted(effect.path)} held before the run is gone or damaged: the run cannot be played again."
            )
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    return StartFiles(judged_workspace(root), before)


def secret_in(files: Files, redactor: Redactor) -> ToolError | None:
    """The refusal of the first file that holds a secret."""
    for path, data in files.items():
        text = data.decode("utf-8", "replace")
        found = secrets_in(text)
        if found or redactor.unnamed(text) != text:
            what = f"{found[0].what} in line {found[0].line}" if found else "a secret of the environment"
            message = (
                f"{quoted(path)} holds {what}, and the test would need the file: take the secret out of it, or let a"
                " .gitignore name it, and run the task again."
            )
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message, suggestions=(path,))
    return None


def _named(course: RunCourse, root: str) -> Iterator[str]:
    """What stands in the arguments of its calls, as far as it may be a path."""
    for call in course.calls:
        for text in _texts(getattr(call, "arguments", {})):
            if len(text) < 1_000 and "\n" not in text:
                yield text.removeprefix(f"{root}/").removeprefix("./").rstrip("/")
            yield from (
                line.split(": ", 1)[1].strip() for line in text.splitlines() if line.startswith("*** ") and ": " in line
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


def _is_named(path: str, named: set[str]) -> bool:
    """Whether the file, or a folder that it lies in, was named."""
    parts = path.split("/")
    return any("/".join(parts[:length]) in named for length in range(1, len(parts) + 1))


# --- What a model said, as its endpoint says it


CREATED: Final = 1_700_000_000
"""The `created` time of every reply, in seconds."""


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


def streamed_reply(reply: ModelReply, model: str, number: int) -> Said:
    """The reply as a stream of events; `number` counts the exchanges from 1."""
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": CREATED}
    whole = ({**head, "model": reply.model or model, **document} for document in _documents(reply))
    events = [f"data: {json.dumps(document, ensure_ascii=False)}\n\n" for document in whole]
    return Said(200, {"content-type": "text/event-stream"}, "".join([*events, "data: [DONE]\n\n"]).encode())


def _documents(reply: ModelReply) -> Iterator[JsonMap]:
    yield _choice({"role": "assistant", "content": ""})
    if reply.reasoning:
        yield _choice({"reasoning_content": reply.reasoning})
    if reply.text:
        yield _choice({"content": reply.text})
    if reply.refusal:
        yield _choice({"refusal": reply.refusal})
    for index, call in enumerate(reply.calls):
        function = {"name": call.tool, "arguments": call.arguments}
        yield _choice({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})
    refused = reply.finish_reason is FinishReason.REFUSAL
    yield _choice({}, FinishReason.STOP.value if refused else reply.finish_reason.value)
    if reply.input_tokens or reply.output_tokens:
        usage: JsonMap = {
            "prompt_tokens": reply.input_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        details = {"cached_tokens": reply.cached_tokens, "cache_write_tokens": reply.cache_write_tokens}
        if told := {name: count for name, count in details.items() if count}:
            usage["prompt_tokens_details"] = told
        if reply.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": reply.reasoning_tokens}
        yield {"choices": [], "usage": usage}


def _choice(delta: JsonMap, finish: str | None = None) -> JsonMap:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


# --- Playing


PATH = "/v1/chat/completions"
THREAD = "replayed"


class Endpointless(ABC):
    """Answers the requests that a session makes to its endpoint: nothing is sent anywhere."""

    def stand_in(self, session: Session) -> ToolError | None:
        """Answer in place of the endpoint from here on; why that cannot be, where the settings lead to none."""
        LESSONS.forget()  # as a test does
        context = session.context
        wanted = ModelChoice(model=context.model, base_url=context.base_url, options=context.model_options())
        model = session._nodes._models._models.connect(wanted)  # noqa: SLF001 - there is no seam for a transport
        if isinstance(model, EndpointModel):
            transport = MockTransport(self._sent)
            model.chat = cache(
                partial(endpoint_chat, model.endpoint, wanted.options, verify=False, transport=transport)
            )
            return None
        named = f"{context.model!r} names a provider, for which nobody can stand in."
        message = model.message if isinstance(model, ProviderFailure) else named
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=f"The run cannot be played again: {message}")

    @abstractmethod
    def next_turn(self) -> None:
        """The turn that begins is another one."""

    @abstractmethod
    def answer(self, body: bytes) -> Said:
        """What is answered to the request with this body."""

    def _sent(self, request: Request) -> Response:
        said = self.answer(request.content)
        return Response(said.status, headers=said.headers, content=said.body)


class Reciter(Endpointless):
    """Says again what was said in a run; `exchanges` are what a recording of that holds."""

    def __init__(self, model: str, turns: tuple[TurnReplies, ...]) -> None:
        """`model` is the name in the replies that tell none."""
        self.model = model
        self.exchanges: list[Exchange] = []
        self._turns = iter(turns)
        self.next_turn()

    def next_turn(self) -> None:
        """From here on it is the next turn's words that are said."""
        self._replies = iter(next(self._turns, TurnReplies()).replies)

    def answer(self, body: bytes) -> Said:
        """What the run was told next."""
        reply = next(self._replies, None)
        if reply is None:
            return Said(MISSED, *refusal("The run had no further reply."))
        said = streamed_reply(reply, self.model, len(self.exchanges) + 1)
        self.exchanges.append(
            Exchange(
                method="POST", path=PATH, request=body, status=said.status, headers=said.headers, response=said.body
            )
        )
        return said


class Replayer(Endpointless):
    """Answers from a cassette, strictly, as the pytest plugin does."""

    def __init__(self, cassette: CassetteFile) -> None:
        """It is played from its start, once."""
        self.player = Player(cassette, "the cassette")

    def next_turn(self) -> None:
        """Nothing changes: the requests say which turn it is."""

    def answer(self, body: bytes) -> Said:
        """What was recorded for this request; where nothing was, a refusal."""
        found = self.player.take("POST", PATH, body)
        if isinstance(found, str):
            return Said(MISSED, *refusal(found))
        return Said(found.status, found.headers, found.response)


@contextmanager
def playground(files: Files) -> Iterator[str | ToolError]:
    """A folder with these files, whose runs are kept in a place of their own: nobody's store or spending book is used.

    The environment says where that is, so one process has one such folder at a time. All is gone at the end.
    """
    with TemporaryDirectory(prefix="mendgraph-replay-") as base:
        folder, before = os.path.join(base, "workspace"), os.environ.get(DATA_DIR_VARIABLE)
        os.mkdir(folder)
        problem = _fill(folder, files)
        os.environ[DATA_DIR_VARIABLE] = os.path.join(base, "data")
        try:
            yield folder if problem is None else problem
        finally:
            if before is None:
                del os.environ[DATA_DIR_VARIABLE]
            else:
                os.environ[DATA_DIR_VARIABLE] = before


def play(course: RunCourse, context: AgentContext, model: Endpointless) -> RunCourse | ToolError:
    """Work on the requests of a run anew, in the workspace and at the endpoint of `context`; `model` answers there."""
    saver = InMemorySaver(serde=serializer())
    with Session(context, checkpointer=saver, thread_id=THREAD) as session:
        problem = model.stand_in(session)
        if problem is not None:
            return problem
        for number, request in enumerate(course.requests):
            if number:
                model.next_turn()
            session.work(request)
    return read_course(saver, THREAD)


def files_in(folder: str, most: int) -> Files:
    """What the files of a folder hold, `most` of them, all but those that git would ignore."""
    workspace = anything_goes(folder)
    found = (workspace.read_file(entry.path) for entry in workspace.walk() if entry.kind == "file")
    return {content.path: content.data for content in islice(found, most) if isinstance(content, FileContent)}


def anything_goes(folder: str) -> Workspace:
    """The files of a folder of which we are the only users: no rule denies one."""
    return Workspace(folder, lambda *_: None)


def write_files(workspace: Workspace, changes: Sequence[Change]) -> ToolError | None:
    """Make all of them; few enough are made all or none."""
    for start in range(0, len(changes), MOST_CHANGES):
        done: Any = workspace.change_files(changes[start : start + MOST_CHANGES])
        if isinstance(done, ToolError):
            return done
    return None


def _fill(folder: str, files: Files) -> ToolError | None:
    return write_files(anything_goes(folder), [WriteFile(path, data) for path, data in files.items()])
