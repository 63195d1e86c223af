import asyncio
import json

import httpx2
import pytest

from nodes.call_model.client import OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.prompt import Prompt
from nodes.call_model.token_count import acount_tokens, count_tokens

PROMPT = Prompt(messages=({"role": "user", "content": "Hi"},))
URL = "http://llm.test/v1"


def server(request: httpx2.Request) -> httpx2.Response:
    asked = json.loads(request.content)
    if request.url.path == "/apply-template" and asked == {"messages": [{"role": "user", "content": "Hi"}]}:
        return httpx2.Response(200, json={"prompt": "<s>Hi"})
    if request.url.path == "/tokenize" and asked == {"content": "<s>Hi", "add_special": False, "parse_special": True}:
        return httpx2.Response(200, json={"tokens": [1, 2, 3]})
    return httpx2.Response(404)


def counts(transport: httpx2.MockTransport) -> tuple[int | None, int | None]:
    """What sync and async say."""

    async def later() -> int | None:
        async with httpx2.AsyncClient(transport=transport) as client:
            return await acount_tokens(client, URL, PROMPT)

    with httpx2.Client(transport=transport) as client:
        return count_tokens(client, URL, PROMPT), asyncio.run(later())


def test_the_server_renders_and_splits() -> None:
    assert counts(httpx2.MockTransport(server)) == (3, 3)


def unreachable(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("gone", request=request)


@pytest.mark.parametrize(
    "handler",
    [
        unreachable,
        lambda _: httpx2.Response(404),
        lambda _: httpx2.Response(200, content=b"<html>"),
        lambda _: httpx2.Response(200, json=[1]),
        lambda _: httpx2.Response(200, json={"prompt": 7, "tokens": 7}),
    ],
)
def test_a_server_that_cannot_is_no_failure(handler: httpx2.MockTransport) -> None:
    assert counts(httpx2.MockTransport(handler)) == (None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("embedded", "expected"), [(True, 3), (False, None)])
def test_only_the_embedded_model_is_asked(embedded: bool, expected: int | None) -> None:
    model = OpenAIModel(Endpoint(model="m", base_url=URL, embedded=embedded), lambda: httpx2.MockTransport(server))
    try:
        assert model.count_tokens(PROMPT) == expected
    finally:
        model.close()


def test_no_other_endpoint_is_asked_in_an_event_loop() -> None:
    async def ask() -> int | None:
        model = OpenAIModel(Endpoint(model="m", base_url=URL))
        try:
            return await model.acount_tokens(PROMPT)
        finally:
            await model.aclose()

    assert asyncio.run(ask()) is None
