"""Endpoints that send more than memory can hold: the run ends with the reason and uses little memory."""

import asyncio
import gzip
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import httpx2
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph import AgentContext, RunResult, arun_task, run_task
from mendgraph.graph.langchain.reply_limits import ReplyLimitError, bound_response
from tests.doubles.listener import ConnectionHandler, Listener
from tests.doubles.replies import Say, event_bytes
from tests.extent import slow

MEGABYTE: Final = 1024 * 1024
BOMB_BYTES: Final = 200 * MEGABYTE
MOST_MEMORY: Final = 100 * MEGABYTE
EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"


class Response(NamedTuple):
    """What the endpoint answers each request with; its body is `parts` times the bytes `part`."""

    status: int
    content_type: str
    part: bytes
    coding: str = ""
    parts: int = 1


class Endpoint(ConnectionHandler):
    """An endpoint that answers each request with the same response."""

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it
        self.read_body()
        response, offers = cast("tuple[Response, list[str]]", cast("Listener", self.server).endpoint)
        offers.append(self.request_headers.get("accept-encoding", ""))

        length = str(len(response.part) * response.parts)
        headers = {"Content-Type": response.content_type, "Content-Length": length}
        if response.coding:
            headers["Content-Encoding"] = response.coding
        try:
            self.start_answer(response.status, headers)
            for _ in range(response.parts):
                self.wfile.write(response.part)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has read enough


@contextmanager
def serve_response(response: Response) -> Iterator[tuple[str, list[str]]]:
    """The address of the endpoint, and the compressions that its requests offer."""
    offers: list[str] = []
    listener = Listener(Endpoint, (response, offers))
    listener.start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}/v1", offers
    finally:
        listener.stop()


def run(folder: Path, url: str, model: BaseChatModel | None = None) -> RunResult:
    """One turn whose model is at this address."""
    name = None if model else "m"
    context = AgentContext(workspace=str(folder), model=name, base_url=url, provider_retries=0, protocol="text")
    return run_task("Hello?", context, model=model)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def failure_of(result: RunResult) -> str:
    assert (result.outcome.kind, result.outcome.reason) == ("SYSTEM_ERROR", "provider_failed")
    return result.outcome.message


LONG_LINE: Final = Response(200, EVENTS, bytes(MEGABYTE), parts=200)
LONG_BODY: Final = Response(500, JSON, bytes(MEGABYTE), parts=200)


@pytest.mark.parametrize("response", [LONG_LINE, LONG_BODY], ids=["a line without an end", "a body"])
def test_endless_response_ends_the_run_with_little_memory(tmp_path: Path, response: Response) -> None:
    with serve_response(response) as (url, offers):
        run(tmp_path, url)  # to import what a run needs
        tracemalloc.start()
        try:
            result = run(tmp_path, url)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert "it sent more than 33,554,432 bytes in one piece" in failure_of(result)
    assert peak < MOST_MEMORY
    assert set(offers) == {"identity"}


@pytest.mark.parametrize("users", [False, True], ids=["endpoint", "chat model of the user"])
def test_compressed_response_is_refused_before_it_is_read(tmp_path: Path, users: bool) -> None:
    bomb = gzip.compress(bytes(BOMB_BYTES), 1)
    with serve_response(Response(200, EVENTS, bomb, "gzip")) as (url, offers):
        result = run(tmp_path, url, ChatOpenAI(model="m", base_url=url, api_key=SecretStr("k")) if users else None)

    assert "it sent a response with the content coding 'gzip', which was not requested" in failure_of(result)
    assert offers == ["identity"]


@slow
@pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])
def test_long_stream_of_short_events_is_read(tmp_path: Path, loop: bool) -> None:
    comments = b": still here" + bytes(MEGABYTE) + b"\n\n"
    events = b"".join([comments * 40, *event_bytes(Say("Hello."), {"stream": True}, 1, 0)])
    with serve_response(Response(200, EVENTS, events)) as (url, _):
        context = AgentContext(workspace=str(tmp_path), base_url=url, provider_retries=0, protocol="text")
        model: Any = ChatOpenAI(model="m", base_url=url, api_key=SecretStr("k"))
        result = asyncio.run(arun_task("Hello?", context, model=model)) if loop else run(tmp_path, url)

    assert (result.outcome.kind, result.outcome.answer) == ("FINISHED", "Hello.")


class Endless(httpx2.SyncByteStream):
    """Events of 16 MB forever."""

    def __iter__(self) -> Iterator[bytes]:
        yield from repeat(b":" + bytes(16 * MEGABYTE - 3) + b"\n\n")


def test_endless_stream_is_given_up() -> None:
    response = httpx2.Response(200, headers={"Content-Type": EVENTS}, stream=Endless())
    bound_response(response)
    with pytest.raises(ReplyLimitError, match="it sent a reply of more than 536,870,912 bytes"):
        sum(map(len, response.iter_raw()))
