"""Whatever an endpoint answers: what a request costs is the same in the book and in the counters."""

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.model import Emit, Reserve, Send, Settle, Stopped, Wait
from mendgraph.nodes.call_model.retry import MOST_WAITED_S
from mendgraph.nodes.records import ModelReply, ProviderErrorKind as Kind
from tests.nodes.call_model.paid_calls import BUSY, DEAR, OTHER, OURS, THIRD, Endpoint, Result, budget, failed, paid
from tests.nodes.call_model.spendings import LIMITS

RESULTS = st.builds(failed, st.sampled_from(Kind), st.none() | st.floats(-1, 40), st.integers(0, 300)) | st.builds(
    ModelReply,
    text=st.text(max_size=20),
    input_tokens=st.integers(-5, 300) | st.just(2**62),
    output_tokens=st.integers(-5, 300) | st.just(2**62),
    cached_tokens=st.integers(-5, 400),
    reasoning_tokens=st.integers(-5, 400),
    cache_write_tokens=st.integers(-5, 400),
)


@given(
    results=st.lists(RESULTS, max_size=12),
    models=st.integers(1, 3),
    retries=st.integers(0, 3),
    limits=LIMITS,
    stop_at=st.none() | st.integers(0, 20),
)
def test_the_book_and_the_counters_say_the_same(
    results: list[Result], models: int, retries: int, limits: RunLimits, stop_at: int | None
) -> None:
    endpoint = Endpoint(
        [*results, *[BUSY] * 20],
        stop_at=-1 if stop_at is None else stop_at,
        stop=Stopped(reason="by the test"),
    )
    asked = budget(*(OURS, OTHER, THIRD)[:models], retries=retries, limits=limits, price_of=lambda _: DEAR)
    result = paid(endpoint, asked)
    entries = [each.used for each in endpoint.of(Settle)]
    usage = result.spending.usage
    assert usage[:3] == tuple(
        sum(getattr(each, name) for each in entries) for name in ("calls", "input_tokens", "output_tokens")
    )
    assert result.spending.cost_usd == pytest.approx(sum(each.cost_usd or 0.0 for each in entries))
    for name in ("cached_tokens", "reasoning_tokens", "cache_write_tokens"):
        assert getattr(result.spending, name) == sum(getattr(each, name) for each in entries)
    tells = [each.name for each in endpoint.of(Emit)]
    assert len(endpoint.of(Send)) == len(entries) == tells.count("model.usage") <= models * (retries + 1)
    assert tells.count("model.fallback") == len(tells) - len(entries) < models
    assert (result.reply is None) is (result.stop is not None)
    assert sum(each.seconds for each in endpoint.of(Wait)) <= MOST_WAITED_S
    asked_for = endpoint.course.translate(str.maketrans("", "", "nwc")).replace("tt", "t").lstrip("t")
    assert asked_for.rstrip("r") == "rset" * len(entries)
    for send, reserved in zip(endpoint.of(Send), endpoint.of(Reserve), strict=False):
        assert send.call.max_output_tokens == reserved.entry.output_tokens
