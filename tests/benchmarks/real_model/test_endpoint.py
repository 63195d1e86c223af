import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx2
import pytest

from benchmarks.real_model.endpoint import MeasuredEndpoint
from benchmarks.real_model.measured_run import Limits, MeasuredRun
from benchmarks.real_model.record import CallRecord
from benchmarks.real_model.reply_cache import ReplyCache
from mendgraph.nodes.records import JsonMap
from tests.doubles.scripted_server import Chunked, Disconnect, Reply, Say, ScriptedServer, Status

ASKED: JsonMap = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}], "temperature": 0.7}
STREAMED = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}


@contextmanager
def listening(*script: Reply, cache: ReplyCache | None = None) -> Iterator[tuple[MeasuredEndpoint, ScriptedServer]]:
    with (
        ScriptedServer(script) as server,
        MeasuredEndpoint(lambda: server.base_url, "m", "sha", cache, clock=lambda: 0.0) as endpoint,
    ):
        yield endpoint, server


def post(url: str, body: JsonMap = ASKED) -> httpx2.Response:
    with httpx2.Client(verify=False, trust_env=False) as client:
        return client.post(f"{url}/chat/completions", json=body)


def figures(run: MeasuredRun) -> list[JsonMap]:
    return [call.model_dump(exclude={"key"}) for call in run.calls]


def spent(**fields: object) -> JsonMap:
    record = CallRecord(
        key="",
        status=200,
        prompt_tokens=9,
        uncached_tokens=9,
        completion_tokens=4,
        seconds=0.0,
        finish_reason="stop",
        native_calls=0,
        replayed=False,
    )
    return record.model_copy(update=fields).model_dump(exclude={"key"})


@pytest.mark.parametrize("body", [ASKED, STREAMED])
def test_a_reply_passes_through_to_the_byte_and_is_counted(body: JsonMap) -> None:
    reply = Chunked(Say("Grüße, Hello", usage=(9, 4)), size=3)
    with listening(reply, reply) as (endpoint, server):
        run, url = endpoint.open_run(Limits(), greedy=True)
        through, direct = post(url, body), post(server.base_url, body)
    assert through.text.replace("chatcmpl-1", "") == direct.text.replace("chatcmpl-2", "")
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert figures(run) == [spent()]
    limited = {**body, "temperature": 0, "max_tokens": 800}
    assert server.requests == [limited, body]


class Halting(BaseHTTPRequestHandler):
    """An endpoint that sends the rest of its reply when its first piece has arrived."""

    arrived = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"data: {}\n\n")
        if self.arrived.wait(10):
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gives it
        pass


def test_a_stream_comes_through_before_it_is_over() -> None:
    with HTTPServer(("127.0.0.1", 0), Halting) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        with (
            MeasuredEndpoint(lambda: f"http://127.0.0.1:{server.server_port}/v1", "m") as endpoint,
            httpx2.Client(verify=False, trust_env=False) as client,
        ):
            _, url = endpoint.open_run(Limits(), greedy=True)
            with client.stream("POST", f"{url}/chat/completions", json=STREAMED) as reply:
                pieces = []
                for piece in reply.iter_bytes():
                    pieces.append(piece)
                    Halting.arrived.set()
        serving.join()
    assert pieces == [b"data: {}\n\n", b"data: [DONE]\n\n"]


def test_the_call_beyond_the_limit_is_refused_for_good() -> None:
    with listening(Say("a"), Say("b"), Say("c")) as (endpoint, server):
        run, url = endpoint.open_run(Limits(calls=2), greedy=True)
        other, other_url = endpoint.open_run(Limits(calls=2), greedy=True)
        answers = [post(url) for _ in range(3)]
        post(other_url)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["message"] == "the task's limit_calls is reached: no further call is answered"
    assert answers[2].headers["x-should-retry"] == "false"
    assert (len(server.requests), run.refused, other.refused) == (3, "limit_calls", "")


def test_a_reply_is_computed_once_and_its_costs_are_counted_again(tmp_path: Path) -> None:
    with listening(Say("a", usage=(9, 4)), Say("b", usage=(9, 4)), cache=ReplyCache(tmp_path)) as (endpoint, server):
        texts = []
        for _ in range(2):
            run, url = endpoint.open_run(Limits(), greedy=True)
            texts.append([post(url, STREAMED).text for _ in range(2)])
            endpoint.close_run(run)
    assert (len(server.requests), texts[0]) == (2, texts[1])
    assert texts[0][0] != texts[0][1]
    assert figures(run) == [spent(replayed=True)] * 2


@pytest.mark.parametrize(
    ("reply", "status"), [(Status(500), 500), (Disconnect(2), 200), (Disconnect(), 502)], ids=["500", "cut", "nothing"]
)
def test_a_reply_that_failed_is_not_kept(tmp_path: Path, reply: Reply, status: int) -> None:
    with listening(reply, Say("a", usage=(9, 4)), cache=ReplyCache(tmp_path)) as (endpoint, _):
        run, url = endpoint.open_run(Limits(), greedy=True)
        again, again_url = endpoint.open_run(Limits(), greedy=True)
        try:
            assert post(url, STREAMED).status_code == status
        except httpx2.HTTPError:
            assert status == 200
        assert post(again_url, STREAMED).status_code == 200
    assert ([call.status for call in run.calls], figures(again)) == ([status], [spent()])


def test_a_run_that_is_closed_leaves_nothing_waiting() -> None:
    asked = threading.Event()

    def never(_: JsonMap) -> Reply:
        asked.set()
        released.wait(30)
        return Say("late")

    released = threading.Event()
    codes: list[int] = []
    with ScriptedServer(then=never) as server, MeasuredEndpoint(lambda: server.base_url, "m") as endpoint:
        run, url = endpoint.open_run(Limits(), greedy=True)
        waiting = threading.Thread(target=lambda: codes.append(post(url).status_code))
        waiting.start()
        assert asked.wait(10)
        endpoint.close_run(run)
        waiting.join(10)
        assert codes == [502]
        assert post(url).status_code == 404
        released.set()


@pytest.mark.parametrize(("path", "code"), [("/models", 200), ("/chat/completions", 404), ("/../../9/v1/models", 404)])
def test_it_names_its_model_to_runs_that_are_at_work(path: str, code: int) -> None:
    with listening() as (endpoint, _):
        _, url = endpoint.open_run(Limits(), greedy=True)
        with httpx2.Client(verify=False, trust_env=False) as client:
            answer = client.get(url + path)
    assert answer.status_code == code
    assert code != 200 or [each["id"] for each in answer.json()["data"]] == ["m"]
