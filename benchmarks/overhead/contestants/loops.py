"""Minimal agent loops on httpx and on the openai SDK: send the history, run the tools, append the results."""

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
    """A loop over plain HTTP, without a TLS context."""

    def run(self, job: Job) -> None:
        """Run the job."""
        with httpx2.Client(verify=False, timeout=None) as client:

            def send(messages: list[Map]) -> Map:
                body = _request(messages, stream=job.stream)
                if not job.stream:
                    response = client.post(f"{job.url}/chat/completions", json=body)
                    return _message(response.json())

                with client.stream("POST", f"{job.url}/chat/completions", json=body) as response:
                    return _join_chunks(_events(response.iter_lines()))

            _loop(send, job.folder)

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(verify=False, timeout=None, limits=limits) as client:

            async def send(messages: list[Map]) -> Map:
                body = _request(messages, stream=job.stream)
                if not job.stream:
                    response = await client.post(f"{job.url}/chat/completions", json=body)
                    return _message(response.json())

                async with client.stream("POST", f"{job.url}/chat/completions", json=body) as response:
                    lines = [line async for line in response.aiter_lines()]
                    return _join_chunks(_events(lines))

            runs = [_aloop(send, job.folder) for _ in range(job.count)]
            await asyncio.gather(*runs)


class OpenaiLoop:
    """A loop on the openai SDK."""

    def run(self, job: Job) -> None:
        """Run the job."""
        with openai.OpenAI(base_url=job.url, api_key=KEY) as client:

            def send(messages: Any) -> Map:
                if not job.stream:
                    completion = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
                    return dict(completion.choices[0].message.model_dump(exclude_none=True))

                chunks = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], stream=True)
                return _join_chunks(chunk.model_dump(exclude_none=True) for chunk in chunks)

            _loop(send, job.folder)

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""
        async with openai.AsyncOpenAI(base_url=job.url, api_key=KEY) as client:

            async def send(messages: Any) -> Map:
                if not job.stream:
                    completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
                    return dict(completion.choices[0].message.model_dump(exclude_none=True))

                chunks = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], stream=True)
                return _join_chunks([chunk.model_dump(exclude_none=True) async for chunk in chunks])

            runs = [_aloop(send, job.folder) for _ in range(job.count)]
            await asyncio.gather(*runs)


def load_httpx() -> HttpxLoop:
    """Return the loop on httpx."""
    return HttpxLoop()


def load_openai() -> OpenaiLoop:
    """Return the loop on the openai SDK."""
    return OpenaiLoop()


def _request(messages: list[Map], *, stream: bool) -> Map:
    body: Map = {"model": MODEL, "messages": messages, "tools": [TOOL]}
    if stream:
        body["stream"] = True
    return body


def _message(completion: Map) -> Map:
    message = completion["choices"][0]["message"]
    return {key: value for key, value in message.items() if value is not None}


def _loop(send: Callable[[list[Map]], Map], folder: str) -> None:
    messages: list[Map] = [{"role": "user", "content": TASK}]
    while _append_turn(messages, send(messages), folder):
        pass


async def _aloop(send: Callable[[list[Map]], Awaitable[Map]], folder: str) -> None:
    messages: list[Map] = [{"role": "user", "content": TASK}]
    while _append_turn(messages, await send(messages), folder):
        pass


def _append_turn(messages: list[Map], reply: Map, folder: str) -> bool:
    """Append the reply and the results of its tool calls; return whether it has any."""
    messages.append(reply)

    for call in reply.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        content = read_file(folder, arguments["path"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    return bool(reply.get("tool_calls"))


def _events(lines: Iterable[str]) -> Iterator[Map]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def _join_chunks(chunks: Iterable[Map]) -> Map:
    """Return the message of a stream."""
    texts: list[str] = []
    calls: list[Map] = []
    deltas = (choice["delta"] for chunk in chunks for choice in chunk["choices"])

    for delta in deltas:
        texts.append(delta.get("content") or "")
        for part in delta.get("tool_calls") or ():
            if part.get("id"):
                calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]

    message: Map = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return message
