"""A run is played once more in a folder of its own: first while its replies are recited, then on what that recorded."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

from httpx2 import MockTransport, Request, Response
from langgraph.checkpoint.memory import InMemorySaver

from graph.cassettes.cassette_file import CassetteFile, Exchange
from graph.cassettes.player import Player
from graph.cassettes.replay_server import MISSED, refusal
from graph.cassettes.reply_wire import Failed, Said, failed, failure_said, reply_said
from graph.cassettes.run_course import RunCourse, TurnSaid, read_course
from graph.context import AgentContext
from graph.langchain.chat_models import EndpointModel, endpoint_chat
from graph.langchain.learned import LESSONS
from graph.run import Session
from graph.state import serializer
from nodes.call_model.compaction import SUMMARY_SYSTEM
from nodes.call_model.effects import Connect
from nodes.call_model.compaction import SUMMARY_SYSTEM
from nodes.call_model.exchange import WRAP_UP_SYSTEM
from nodes.execute_tools.environment.change_plan import MOST_CHANGES
from nodes.call_model.exchange import WRAP_UP_SYSTEM
from nodes.execute_tools.environment.change_plan import MOST_CHANGES
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE
from nodes.execute_tools.environment.workspace import Change, FileContent, Workspace, WriteFile
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, ToolError, ToolErrorCode

REPLAY_URL = "http://llm.test/v1"
PATH = "/v1/chat/completions"
THREAD = "replayed"
NO_FURTHER_REPLY = Failed(ProviderErrorKind.BAD_REQUEST, 1, "The run had no further reply.")

Files = Mapping[str, bytes]
"""What the files of a folder hold, by their paths with "/" between the parts."""


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
        self._replies, self._summaries = iter(turn.replies), iter(turn.summaries)
        self._account, self._tries = turn.account, 0
        self._failed = failed(turn.failure) if turn.failure else NO_FURTHER_REPLY

    def answer(self, body: bytes) -> Said:
        """What the run was told next."""
        number = len(self.exchanges) + 1
        reply = self._reply_to(str(json.loads(body)["messages"][0].get("content")))
        if reply is None:
            self._tries += 1
            last = self._tries >= self._failed.tries
            said = failure_said(self._failed, self.model, number, last=last)
        else:
            said = reply_said(reply, self.model, number)
        self.exchanges.append(
            Exchange(
                method="POST", path=PATH, request=body, status=said.status, headers=said.headers, response=said.body
            )
        )
        return said

    def _reply_to(self, system: str) -> ModelReply | None:
        if system == SUMMARY_SYSTEM:
            return ModelReply(text=next(self._summaries, ""))
        return ModelReply(text=self._account) if system == WRAP_UP_SYSTEM else next(self._replies, None)


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
