"""A run is played once more in a folder of its own: first while its replies are recited, then on what that recorded."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from httpx2 import MockTransport, Request, Response
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.run_course import Files, RunCourse, TurnSaid, read_course
from mendgraph.graph.cassettes.servers import MISSED, refusal
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.chat_models import EndpointModel, endpoint_chat
from mendgraph.graph.langchain.learned import LESSONS
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.effects import Connect
from mendgraph.nodes.call_model.exchange import WRAP_UP_SYSTEM
from mendgraph.nodes.execute_tools.files.file_changes import MOST_CHANGES
from mendgraph.nodes.execute_tools.files.workspace import Change, FileContent, Workspace, WriteFile
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import (
    FinishReason,
    JsonMap,
    ModelReply,
    ProviderFailure,
    ToolError,
    ToolErrorCode,
)

CREATED: Final = 1_700_000_000
"""The `created` time of every reply, in seconds."""


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


def reply_said(reply: ModelReply, model: str, number: int) -> Said:
    """The reply as a stream of events; `number` counts the exchanges from 1."""
    events = [_event(document, reply.model or model, number) for document in _documents(reply)]
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


def _event(document: JsonMap, model: str, number: int) -> str:
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": CREATED, "model": model}
    return f"data: {json.dumps({**head, **document}, ensure_ascii=False)}\n\n"


# --- Playing


PATH = "/v1/chat/completions"
THREAD = "replayed"


class Endpointless(ABC):
    """Answers the requests that a session makes to its endpoint: nothing is sent anywhere."""

    def stand_in(self, session: Session) -> ToolError | None:
        """Answer in place of the endpoint from here on; why that cannot be, where the settings lead to none."""
        LESSONS.forget()  # as a test does
        context = session.context
        wanted = Connect(context.model, context.base_url, options=context.model_options())
        model = session._rooms._models._models.connect(wanted)  # noqa: SLF001 - there is no seam for a transport
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

    def __init__(self, model: str, turns: tuple[TurnSaid, ...]) -> None:
        """`model` is the name in the replies that tell none."""
        self.model = model
        self.exchanges: list[Exchange] = []
        self._turns = iter(turns)
        self.next_turn()

    def next_turn(self) -> None:
        """From here on it is the next turn's words that are said."""
        turn = next(self._turns, TurnSaid())
        self._replies, self._account = iter(turn.replies), turn.account

    def answer(self, body: bytes) -> Said:
        """What the run was told next."""
        wrapped_up = json.loads(body)["messages"][0].get("content") == WRAP_UP_SYSTEM
        reply = ModelReply(text=self._account) if wrapped_up else next(self._replies, None)
        if reply is None:
            return Said(MISSED, *refusal("The run had no further reply."))
        said = reply_said(reply, self.model, len(self.exchanges) + 1)
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
        return (
            Said(MISSED, *refusal(found))
            if isinstance(found, str)
            else Said(found.status, found.headers, found.response)
        )


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
