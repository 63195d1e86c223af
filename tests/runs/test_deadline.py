"""A model call has one deadline, however an endpoint keeps the connection busy."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep

import pytest

from nodes.call_model.client import OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=0.2)


class Pings(BaseHTTPRequestHandler):
    """Sends comments for some seconds, and never a reply."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        with suppress(OSError):
            for _ in range(200):
                self.wfile.write(b": ping\n\n")
                self.wfile.flush()
                sleep(0.02)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def model() -> Iterator[OpenAIModel]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pings)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    model = OpenAIModel(Endpoint(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1"))
    yield model
    model.close()
    server.shutdown()
    server.server_close()


def given_up(result: ModelReply | ProviderFailure) -> bool:
    return (
        isinstance(result, ProviderFailure)
        and result.kind is ProviderErrorKind.TIMEOUT
        and "no complete reply within 0.2 s" in result.message
    )


def test_comments_do_not_put_the_deadline_off(model: OpenAIModel) -> None:
    assert given_up(model.complete(CALL, lambda _: None))


def test_nor_do_they_in_an_event_loop(model: OpenAIModel) -> None:
    async def beside() -> ModelReply | ProviderFailure:
        result = await model.acomplete(CALL, lambda _: None)
        await model.aclose()
        return result

    assert given_up(asyncio.run(beside()))
