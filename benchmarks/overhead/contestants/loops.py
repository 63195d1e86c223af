"""The least that an agent does, on httpx and on the openai SDK: send the history, run the tools, append."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpx2
import openai

from benchmarks.overhead.job import KEY, MODEL, TASK, Job, read_file

Map = dict[str, Any]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a text file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class HttpxLoop:
    """A loop over HTTP, without a TLS context: there is no TLS on loopback."""

    def run(self, job: Job) -> None:
        """Do the job."""
        with httpx2.Client(verify=False, timeout=None) as client:

            def send(messages: list[Map]) -> Map:
                body = _request(messages, stream=job.stream)
                if not job.stream:
                    return _message(client.post(f"{job.url}/chat/completions", json=body).json())
                with client.stream("POST", f"{job.url}/chat/completions", json=body) as answer:
                    return _joined(_events(answer.iter_lines()))

            _loop(send, job.folder)

    async def arun(self, job: Job) -> None:
        """Do it several times at once."""
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(verify=False, timeout=None, limits=limits) as client:

            async def send(messages: list[Map]) -> Map:
                body = _request(messages, stream=job.stream)
                if not job.stream:
                    return _message((await client.post(f"{job.url}/chat/completions", json=body)).json())
                async with client.stream("POST", f"{job.url}/chat/completions", json=body) as answer:
                    return _joined(_events([line async for line in answer.aiter_lines()]))

            await asyncio.gather(*(_aloop(send, job.folder) for _ in range(job.count)))


class OpenaiLoop:
    """The same on the openai SDK."""

    def run(self, job: Job) -> None:
        """Do the job."""
        with openai.OpenAI(base_url=job.url, api_key=KEY) as client:

            def send(messages: Any) -> Map:
                if not job.stream:
                    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
                    return dict(answer.choices[0].message.model_dump(exclude_none=True))
                chunks = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], stream=True)
                return _joined(chunk.model_dump(exclude_none=True) for chunk in chunks)

            _loop(send, job.folder)

    async def arun(self, job: Job) -> None:
        """Do it several times at once."""
        async with openai.AsyncOpenAI(base_url=job.url, api_key=KEY) as client:

            async def send(messages: Any) -> Map:
                if not job.stream:
                    answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
                    return dict(answer.choices[0].message.model_dump(exclude_none=True))
                chunks = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], stream=True)
                return _joined([chunk.model_dump(exclude_none=True) async for chunk in chunks])

            await asyncio.gather(*(_aloop(send, job.folder) for _ in range(job.count)))


def load_httpx() -> HttpxLoop:
    """The loop on httpx."""
    return HttpxLoop()


def load_openai() -> OpenaiLoop:
    """The loop on the openai SDK."""
    return OpenaiLoop()


def _request(messages: list[Map], *, stream: bool) -> Map:
    body: Map = {"model": MODEL, "messages": messages, "tools": [TOOL]}
    return {**body, "stream": True} if stream else body


def _message(answer: Map) -> Map:
    return {key: value for key, value in answer["choices"][0]["message"].items() if value is not None}


def _loop(send: Callable[[list[Map]], Map], folder: str) -> None:
    messages: list[Map] = [{"role": "user", "content": TASK}]
    while _goes_on(messages, send(messages), folder):
        pass


async def _aloop(send: Callable[[list[Map]], Awaitable[Map]], folder: str) -> None:
    messages: list[Map] = [{"role": "user", "content": TASK}]
    while _goes_on(messages, await send(messages), folder):
        pass


def _goes_on(messages: list[Map], reply: Map, folder: str) -> bool:
    """Append the reply and the results of its calls; False where it calls nothing."""
    messages.append(reply)
    for call in reply.get("tool_calls", ()):
        content = read_file(folder, json.loads(call["function"]["arguments"])["path"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return bool(reply.get("tool_calls"))


def _events(lines: Iterable[str]) -> Iterator[Map]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def _joined(chunks: Iterable[Map]) -> Map:
    """The message that the chunks of a stream make."""
    texts: list[str] = []
    calls: list[Map] = []
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        texts.append(delta.get("content") or "")
        for part in delta.get("tool_calls") or ():
            if part.get("id"):
                calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    message: Map = {"role": "assistant", "content": "".join(texts)}
    return {**message, "tool_calls": calls} if calls else message
