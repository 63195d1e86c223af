"""A short attack on each target, the same inputs at every run; `make fuzz` makes longer ones, with others."""

import json
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.campaign import attack
from tests.fuzz.case import REGRESSIONS, load
from tests.fuzz.targets import TARGETS

EXAMPLES: Final = 20


@pytest.mark.parametrize("name", TARGETS)
def test_plausible_input_is_handled_well(name: str) -> None:
    assert attack(TARGETS[name], 1, examples=EXAMPLES, shrinking_s=1.0).found is None


@pytest.mark.parametrize("name", sorted(path.name for path in REGRESSIONS.glob("*.json")))
def test_what_was_found_once_stays_repaired(name: str) -> None:
    case = load(REGRESSIONS / name)
    TARGETS[case.target].holds(case.input)


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_can_be_kept_in_a_file(name: str) -> None:
    @settings(max_examples=2, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    @given(TARGETS[name].inputs())
    def kept(value: object) -> None:
        back = json.loads(json.dumps(value))
        assert json.dumps(back) == json.dumps(value)

    kept()
