"""A model call has one deadline, however an endpoint keeps the connection busy."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep

import pytest

from mendgraph.graph.langchain.chat_models import EndpointModel, endpoint_model
from mendgraph.nodes.call_model.driver import MODEL_LOOP
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

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
def model() -> Iterator[EndpointModel]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pings)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    model = endpoint_model(Endpoint(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1"), PLAIN)
    assert isinstance(model, EndpointModel)
    yield model
    server.shutdown()
    server.server_close()


def given_up(result: ModelReply | ProviderFailure) -> bool:
    return (
        isinstance(result, ProviderFailure)
        and result.kind is ProviderErrorKind.TIMEOUT
        and "no complete reply within 0.2 s" in result.message
    )


async def asked(model: EndpointModel) -> ModelReply | ProviderFailure:
    try:
        return await model.acomplete(CALL, lambda _: None)
    finally:
        await model.aclose()


def test_comments_do_not_put_the_deadline_off(model: EndpointModel) -> None:
    assert given_up(MODEL_LOOP.run(asked(model)))


def test_nor_do_they_in_an_event_loop(model: EndpointModel) -> None:
    assert given_up(asyncio.run(asked(model)))
