import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import httpx2
import pytest

from nodes.call_model.client import OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.failures import ConnectTimeoutError, TotalTimeoutError
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.reply_clock import Clock
from nodes.call_model.reply_stream import CONNECT_TIMEOUT_S, MOST_REST, ReplyStream, refusal
from nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, RawCall

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=5.0)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
Result = ModelReply | ProviderFailure
Talk = Callable[[socket.socket], None]
"""What a server says on one connection; it hangs up afterwards."""


def receive(connection: socket.socket) -> bool:
    """Take one request; False where the client is gone."""
    came = b""
    while b"\r\n\r\n" not in came:
        if not (part := connection.recv(65536)):
            return False
        came += part
    head, _, body = came.partition(b"\r\n\r\n")
    [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < length:
        body += connection.recv(65536)
    return True


@contextmanager
def serving(talk: Talk) -> Iterator[str]:
    """The base address of a server that reads each request and then talks as it is told."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(10)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    receive(connection)
                    talk(connection)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


def answers(talk: Talk, call: Call = CALL) -> tuple[Result, list[str]]:
    """What sync and async calls make of it, which has to be the same."""

    async def later(base_url: str, said: list[str]) -> Result:
        model = OpenAIModel(Endpoint(model="m", base_url=base_url))
        try:
            return await model.acomplete(call, said.append)
        finally:
            await model.aclose()

    both = []
    with serving(talk) as base_url:
        for asynchronous in (False, True):
            said: list[str] = []
            if asynchronous:
                result = asyncio.run(later(base_url, said))
            else:
                model = OpenAIModel(Endpoint(model="m", base_url=base_url))
                result = model.complete(call, said.append)
                model.close()
            plain = (
                {"seconds": 0.0}
                if isinstance(result, ModelReply)
                else {"message": result.message.replace(base_url, "URL")}
            )
            both.append((result.model_copy(update=plain), said))
    assert both[0] == both[1]
    return both[0]


def event(delta: JsonMap, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], **more}, ensure_ascii=False)}\n\n".encode()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


ARGUMENTS = '{"path": "a.py", "text": "ü😀"}'
STREAM = [
    event({"role": "assistant", "content": ""}),
    event({"reasoning_content": "Hm."}),
    event({"content": "Grüße 😀"}),
    event({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ARGUMENTS[:12]}}]}),
    b": keep-alive\r\n\r\n",
    event({"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[12:]}}]}),
    event({}, "tool_calls"),
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n',
    b"data: [DONE]\n\n",
]
WHOLE = ModelReply(
    text="Grüße 😀",
    reasoning="Hm.",
    calls=(RawCall(call_id="x", tool="f", arguments=ARGUMENTS),),
    finish_reason=FinishReason.TOOL_CALLS,
    input_tokens=7,
    output_tokens=3,
)


def cut_at(end: int, raw: bytes) -> Result:
    """What comes of an answer that ends after so many bytes; without a network, so that each can be tried."""

    class Stream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield raw[: end // 2]
            yield raw[end // 2 : end]
            if end < len(raw):
                raise httpx2.RemoteProtocolError("peer closed connection")

    handler = lambda _: httpx2.Response(200, stream=Stream())  # noqa: E731 - one line is what it is
    model = OpenAIModel(Endpoint(model="m", base_url="http://llm.test/v1"), lambda: httpx2.MockTransport(handler))
    try:
        return model.complete(CALL, lambda _: None)
    finally:
        model.close()


FINISHED, COUNTED = (len(b"".join(STREAM[:events])) for events in (7, 8))


def test_a_reply_that_is_cut_at_any_byte_is_whole_from_its_finish_event_on_and_never_before() -> None:
    """Only what it has cost may be missing then."""
    raw = b"".join(STREAM)
    for end in range(len(raw) + 1):
        result = cut_at(end, raw)
        if end >= FINISHED:
            assert isinstance(result, ModelReply)
            uncounted = {"input_tokens": 0, "output_tokens": 0} if end < COUNTED else {}
            assert result.model_copy(update={"seconds": 0.0}) == WHOLE.model_copy(update=uncounted)
        else:
            begun = end >= len(STREAM[0])
            kind = ProviderErrorKind.INCOMPLETE_STREAM if begun else ProviderErrorKind.CONNECTION
            assert isinstance(result, ProviderFailure)
            assert result.kind is kind


@pytest.mark.parametrize("end", range(0, len(b"".join(STREAM)), 97))
def test_a_connection_that_is_cut_says_the_same_sync_and_async(end: int) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    result, _ = answers(lambda connection: connection.sendall((head + chunked(*STREAM))[: len(head) + end]))
    if end >= len(chunked(*STREAM[:7])):
        assert result == WHOLE.model_copy(update={"input_tokens": 0, "output_tokens": 0})
    else:
        assert isinstance(result, ProviderFailure)
        begun = end >= len(chunked(STREAM[0]))
        assert result.kind is (ProviderErrorKind.INCOMPLETE_STREAM if begun else ProviderErrorKind.CONNECTION)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_how_it_arrives_makes_no_difference(size: int) -> None:
    raw = HEAD + b"Connection: close\r\n\r\n" + b"".join(STREAM)

    def talk(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(raw), size):
            connection.sendall(raw[at : at + size])

    assert answers(talk) == (WHOLE, ["Grüße 😀"])


def test_a_connection_is_used_again_after_the_last_event() -> None:
    """Also where the end of the answer comes a moment after the event that says so."""
    requests = 0
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*STREAM)

    def talk(connection: socket.socket) -> None:
        nonlocal requests
        for _ in range(2):
            requests += 1
            connection.sendall(raw)
            connection.sendall(b"0\r\n\r\n")
            if not receive(connection):
                return

    with serving(talk) as base_url:
        model = OpenAIModel(Endpoint(model="m", base_url=base_url))
        results = [model.complete(CALL, lambda _: None) for _ in range(2)]
        assert [isinstance(result, ModelReply) for result in results] == [True, True]
        model.close()
    assert requests == 2


def until_gone(talk: Talk) -> Talk:
    """Says that, and then nothing until the client hangs up."""

    def patiently(connection: socket.socket) -> None:
        talk(connection)
        connection.recv(1)

    return patiently


HEADERS = HEAD + b"Connection: close\r\n\r\n"
GONE = Event()


def pinging(connection: socket.socket) -> None:
    with suppress(OSError):
        while not GONE.wait(0.01):
            connection.sendall(b": ping\n\n")


@pytest.mark.parametrize("quiet", [until_gone(lambda _: None), pinging], ids=["silence", "comments"])
def test_a_reply_that_stops_is_given_up(quiet: Talk) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(HEADERS + STREAM[0] + STREAM[2])
        quiet(connection)

    result, said = answers(talk, CALL.model_copy(update={"idle_timeout_s": 0.1}))
    message = "URL did not answer in time (the reply had begun, and nothing more came for 0.1 s)."
    assert said == ["Grüße 😀"]
    assert result == ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message=message, received_characters=7)


@pytest.mark.parametrize(
    "begins",
    [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", HEADERS, HEADERS + STREAM[0]],
    ids=["nothing", "half a header", "headers", "the frame"],
)
def test_before_the_first_part_only_the_whole_time_counts(begins: bytes) -> None:
    call = CALL.model_copy(update={"timeout_s": 0.2, "idle_timeout_s": 0.001})
    result, _ = answers(until_gone(lambda connection: connection.sendall(begins)), call)
    message = "URL did not answer in time (no complete reply within 0.2 s)."
    assert result == ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message=message)


@pytest.mark.parametrize(
    ("begins", "drop"),
    [(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"), (HEADERS, b"x"), (HEADERS, b": ping\n\n")],
    ids=["in a header", "in a line", "in comments"],
)
def test_bytes_that_drip_do_not_put_the_end_off(begins: bytes, drop: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(begins)
        with suppress(OSError):
            while not GONE.wait(0.01):
                connection.sendall(drop)

    result, _ = answers(talk, CALL.model_copy(update={"timeout_s": 0.2}))
    message = "URL did not answer in time (no complete reply within 0.2 s)."
    assert result == ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message=message)


def test_an_answer_that_does_not_end_after_its_last_event_is_complete() -> None:
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*STREAM)
    assert answers(until_gone(lambda connection: connection.sendall(raw)))[0] == WHOLE


@pytest.mark.parametrize(
    ("quiet", "patience"),
    [
        (until_gone(lambda _: None), {"idle_timeout_s": 0.1}),
        (pinging, {"idle_timeout_s": 0.1}),
        (until_gone(lambda _: None), {"timeout_s": 1.0}),
    ],
    ids=["idle", "idle comments", "too long"],
)
def test_a_reply_that_has_ended_is_one_also_where_its_connection_stays_silent(
    quiet: Talk, patience: dict[str, float]
) -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(HEADERS + b"".join(STREAM[:7]))
        quiet(connection)

    result, said = answers(talk, CALL.model_copy(update=patience))
    assert said == ["Grüße 😀"]
    assert result == WHOLE.model_copy(update={"input_tokens": 0, "output_tokens": 0})


@pytest.mark.parametrize("body", [b'{"choices": [{"message": {"content": "Hi"}}]}', b"<html>\n\nHi\n\n</html>", b""])
def test_an_answer_that_is_no_stream_is_a_failure(body: bytes) -> None:
    result, said = answers(lambda connection: connection.sendall(HEADERS + body))
    message = "URL failed (it sent no chat completion: No generation chunks were returned)."
    assert (result, said) == (ProviderFailure(kind=ProviderErrorKind.SERVER_ERROR, message=message), [])


def test_an_endless_refusal_is_looked_at_as_far_as_it_is_of_use() -> None:
    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 Broken\r\nConnection: close\r\n\r\n")
        with suppress(OSError):
            for _ in range(50):
                connection.sendall(b"x" * MOST_REST)

    result, _ = answers(talk)
    assert result == ProviderFailure(kind=ProviderErrorKind.SERVER_ERROR, message="URL failed (Error code: 500).")


@pytest.mark.parametrize(
    ("header", "wish"),
    [("2", 2.0), ("0.25", 0.25), ("Thu, 01 Jan 1970 00:00:30 GMT", 20.0), ("soon", None), (None, None)],
)
def test_the_endpoints_wish_is_read(header: str | None, wish: float | None) -> None:
    response = httpx2.Response(429, headers={} if header is None else {"Retry-After": header})
    assert refusal(response, b'{"error": {"message": "later"}}', 10.0).retry_after_s == wish


@pytest.mark.parametrize(
    ("total_s", "error"), [(60.0, ConnectTimeoutError(CONNECT_TIMEOUT_S)), (0.0, TotalTimeoutError(0.0))]
)
def test_an_endpoint_that_does_not_take_the_connection_is_told_apart(total_s: float, error: Exception) -> None:
    def unreachable(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectTimeout("late", request=request)

    stream = ReplyStream(Clock(lambda: 1.0, total_s, None), print, lambda: 0.0)
    with httpx2.Client(transport=httpx2.MockTransport(unreachable)) as client, pytest.raises(type(error)) as raised:
        list(stream.read(client, httpx2.Request("POST", "http://llm.test/v1")))
    assert str(raised.value) == str(error)


def test_a_tracer_that_shows_a_stream_shows_nothing_of_it() -> None:
    stream = ReplyStream(Clock(lambda: 1.0, 60.0, None), print, lambda: 0.0)
    stream.assembly.add_text("hunter2-hunter2")
    assert repr(stream) == "<a reply>"
