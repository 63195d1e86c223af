import errno
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from nodes.call_model.pull import PARTIAL_NAME, PullFailure, PullFailureKind, fetch_from_hub, wrong_sum
from nodes.call_model.weights import PullPhase, PullProgress
from tests.doubles.fake_weights import fake_weights

huggingface_hub = pytest.importorskip("huggingface_hub", reason="comes with the extra `local`")

FAKE = fake_weights()


@dataclass
class Hub:
    """What the stand-in serves, how many bytes at most in one answer, and which ranges it was asked for."""

    content: bytes = FAKE.data
    knows_ranges: bool = True
    at_most: int = 1 << 30
    ranges: list[str] = field(default_factory=list)
    endpoint: str = ""


class HubHandler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.hub.content)))
        self.end_headers()

    def do_GET(self) -> None:
        wish = self.headers["Range"]
        self.hub.ranges.append(wish)
        start = int(re.findall(r"\d+", wish)[0]) if self.hub.knows_ranges else 0
        body = self.hub.content[start:]
        self.send_response(206 if self.hub.knows_ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.hub.at_most])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": hub}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield hub
    huggingface_hub.close_session()
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(hub: Hub, folder: Path, reports: list[PullProgress] | None = None) -> PullFailure | None:
    report = (lambda _: None) if reports is None else reports.append
    return fetch_from_hub(FAKE.spec, str(folder), str(folder / "joined"), report, endpoint=hub.endpoint)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_fetched_and_verified(hub: Hub, tmp_path: Path) -> None:
    reports: list[PullProgress] = []
    assert fetch(hub, tmp_path, reports) is None
    assert (tmp_path / "joined").read_bytes() == FAKE.data
    assert names(tmp_path) == ["joined"]
    assert PullProgress(PullPhase.FETCHING, 10_000, 10_000) in reports


def test_a_partial_file_is_completed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / PARTIAL_NAME).write_bytes(FAKE.data[:6_000])
    assert fetch(hub, tmp_path) is None
    assert hub.ranges == ["bytes=6000-"]
    assert (tmp_path / "joined").read_bytes() == FAKE.data


def test_a_complete_partial_file_only_needs_the_check(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / PARTIAL_NAME).write_bytes(FAKE.data)
    assert fetch(hub, tmp_path) is None
    assert hub.ranges == []


def test_a_connection_that_breaks_is_taken_up_again_while_the_file_grows(hub: Hub, tmp_path: Path) -> None:
    hub.at_most = 4_000
    assert fetch(hub, tmp_path) is None
    assert hub.ranges == ["bytes=0-", "bytes=4000-", "bytes=8000-"]


def test_a_connection_that_gives_nothing_more_is_given_up_and_the_rest_kept(hub: Hub, tmp_path: Path) -> None:
    hub.at_most = 0
    (tmp_path / PARTIAL_NAME).write_bytes(FAKE.data[:6_000])
    failure = fetch(hub, tmp_path)
    assert isinstance(failure, PullFailure)
    assert failure.kind is PullFailureKind.UNREACHABLE
    assert names(tmp_path) == [PARTIAL_NAME]


def test_a_server_without_ranges_starts_the_file_again(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    (tmp_path / PARTIAL_NAME).write_bytes(b"x" * 6_000)
    assert fetch(hub, tmp_path) is None
    assert (tmp_path / "joined").read_bytes() == FAKE.data


def test_another_file_of_the_same_size_is_refused_and_dropped(hub: Hub, tmp_path: Path) -> None:
    hub.content = FAKE.data[::-1]
    assert fetch(hub, tmp_path) == wrong_sum(FAKE.spec, "the Hugging Face Hub")
    assert names(tmp_path) == []


def test_a_file_of_another_size_is_not_even_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.content = b"other"
    assert fetch(hub, tmp_path) == PullFailure(
        PullFailureKind.UNREACHABLE,
        "the Hugging Face Hub could not be reached (it has another fake.gguf, of 5 bytes)",
    )
    assert hub.ranges == []


def test_no_network_is_a_failure(hub: Hub, tmp_path: Path) -> None:
    failure = fetch(Hub(endpoint="http://127.0.0.1:9"), tmp_path)
    assert hub.ranges == []
    assert isinstance(failure, PullFailure)
    assert failure.kind is PullFailureKind.UNREACHABLE
    assert names(tmp_path) == []


def test_offline_mode_is_respected(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failure = fetch(hub, tmp_path)
    assert isinstance(failure, PullFailure)
    assert "HF_HUB_OFFLINE" in failure.message
    assert hub.ranges == []


def test_a_full_disk_is_not_taken_for_a_broken_network(hub: Hub, tmp_path: Path) -> None:
    def report(_: PullProgress) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fetch_from_hub(FAKE.spec, str(tmp_path), str(tmp_path / "joined"), report, endpoint=hub.endpoint)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert fetch(Hub(), tmp_path) == PullFailure(
        PullFailureKind.EXTRA_MISSING, "the Hugging Face Hub client is not installed: run `uv sync --extra local`"
    )
