import sys
from importlib.metadata import PackageNotFoundError

import pytest
from opentelemetry import trace

from graph.telemetry.active import meter, own_version, tracer
from tests.graph.telemetry.conftest import Told


def test_nobody_listens_where_nothing_of_opentelemetry_was_imported(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert tracer() is None
    assert told.spans == []


@pytest.mark.parametrize("provider", [None, trace.NoOpTracerProvider()])
def test_nobody_listens_where_no_provider_was_set(provider: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert tracer() is None


def test_the_processes_own_provider_is_used(told: Told) -> None:
    found = tracer()
    assert found is not None
    found.start_span("one").end()
    meter().create_histogram("two").record(3)
    assert (told.names(), told.sums()) == (["one"], {"two": [3]})


def test_a_provider_that_breaks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", object())
    assert tracer() is None


def test_a_mendgraph_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    assert own_version()
    own_version.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", missing)
    assert own_version() == ""
    own_version.cache_clear()
