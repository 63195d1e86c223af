import pkgutil

import pytest

from benchmarks.real_model.harness_mendgraph import WITHOUT


@pytest.mark.parametrize("target", [target for each in WITHOUT.values() for target, _ in each])
def test_what_an_ablation_takes_out_is_there(target: str) -> None:
    pkgutil.resolve_name(target)
