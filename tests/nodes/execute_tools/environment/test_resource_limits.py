import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment import resource_limits
from nodes.execute_tools.environment.resource_limits import (
    Limit,
    LimitReached,
    ResourceLimits,
    command_limits,
    evidence_limits,
    usable_memory,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "command", "evidence"),
    [
        (2, 1 * GIB, (640, GIB // 2), (96, GIB // 2)),
        (8, 16 * GIB, (1_024, 8 * GIB), (192, 2 * GIB)),
        (64, 512 * GIB, (4_608, 256 * GIB), (1_088, 4 * GIB)),
    ],
)
def test_the_limits_follow_the_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, memory: int, command: tuple[int, int], evidence: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(resource_limits, "usable_memory", lambda: memory)
    found = (command_limits.__wrapped__(), evidence_limits.__wrapped__())
    assert [(each.processes, each.memory_bytes) for each in found] == [command, evidence]


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("outer", "300000000\n"), ("outer/own", "max\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.max").write_text(limit)
    monkeypatch.setattr(resource_limits, "own_groups", lambda: iter([f"{tmp_path}/outer/own", f"{tmp_path}/outer"]))
    assert usable_memory() == 300_000_000


@pytest.mark.parametrize("limit", Limit)
def test_every_limit_is_told_with_its_figure(limit: Limit) -> None:
    said = str(LimitReached(limit, 3_000_000_000, 2_000_000_000))
    assert said.split(maxsplit=1)[0] in {"came", "was", "filled"}
    assert ("2,000 MB" in said) or ("2,000,000,000" in said)
    assert said.endswith(".")


def test_evidence_may_take_less_than_a_command() -> None:
    command, evidence = command_limits(), evidence_limits()
    for name in ("processes", "scratch_bytes", "file_bytes", "open_files"):
        assert getattr(evidence, name) < getattr(command, name)
    assert isinstance(evidence, ResourceLimits)
