import asyncio
import json

import httpx2
import pytest

from nodes.call_model.prompt import Prompt
from nodes.call_model.token_count import count_tokens

PROMPT = Prompt(messages=({"role": "user", "content": "Hi"},))
URL = "http://llm.test/v1"


def server(request: httpx2.Request) -> httpx2.Response:
    asked = json.loads(request.content)
    if request.url.path == "/apply-template" and asked == {"messages": [{"role": "user", "content": "Hi"}]}:
        return httpx2.Response(200, json={"prompt": "<s>Hi"})
    if request.url.path == "/tokenize" and asked == {"content": "<s>Hi", "add_special": False, "parse_special": True}:
        return httpx2.Response(200, json={"tokens": [1, 2, 3]})
    return httpx2.Response(404)


def counted(transport: httpx2.MockTransport) -> int | None:
    async def asked() -> int | None:
        async with httpx2.AsyncClient(transport=transport) as client:
            return await count_tokens(client, URL, PROMPT)

    return asyncio.run(asked())


def test_the_server_renders_and_splits() -> None:
    assert counted(httpx2.MockTransport(server)) == 3


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
    assert counted(httpx2.MockTransport(handler)) is None  # type: ignore[arg-type]
