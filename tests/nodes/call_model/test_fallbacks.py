import pytest
from hypothesis import given, strategies as st

from nodes.call_model.endpoint import (
    MOST_FALLBACKS,
    FallbackProblem,
    ModelChoice,
    models_in_order,
)
from nodes.call_model.retry import TRANSIENT, UNUSABLE, Tried, in_words, next_model
from nodes.records import ProviderErrorKind as Kind, ProviderFailure

URL = "https://llm.example/v1"
OWN = ModelChoice(model="m")
LOCAL = ModelChoice(model="local")
OTHER = ModelChoice(model="n", base_url=URL, key_variable="MENDGRAPH_API_KEY_LLM_EXAMPLE")


@pytest.mark.parametrize(
    ("base_url", "fallbacks", "expected"),
    [
        (None, [], (OWN,)),
        (None, ["n", " local "], (OWN, ModelChoice(model="n"), LOCAL)),
        (None, [f"n @ {URL}"], (OWN, OTHER)),
        (None, [f"n  @  {URL} "], (OWN, OTHER)),
        (None, ["claude@20240620"], (OWN, ModelChoice(model="claude@20240620"))),
        (
            "http://127.0.0.1:8080/v1",
            ["n", "n @ http://127.0.0.1:8080/other", f"n @ {URL}", "local"],
            (
                ModelChoice(model="m", base_url="http://127.0.0.1:8080/v1"),
                ModelChoice(model="n", base_url="http://127.0.0.1:8080/v1"),
                ModelChoice(model="n", base_url="http://127.0.0.1:8080/other"),
                OTHER,
                LOCAL,
            ),
        ),
    ],
)
def test_the_runs_own_model_comes_first_and_its_fallbacks_in_order(
    base_url: str | None, fallbacks: list[str], expected: tuple[ModelChoice, ...]
) -> None:
    assert models_in_order("m", base_url, fallbacks) == expected


def test_the_runs_own_model_may_be_unnamed() -> None:
    assert models_in_order(None, None, ["local"]) == (ModelChoice(), LOCAL)


HOW = "write `model`, `local` or `model @ https://host/v1`."


@pytest.mark.parametrize(
    ("fallbacks", "place", "message"),
    [
        ([""], 1, f"Fallback model 1 has no name: {HOW}"),
        (["n", f" @ {URL}"], 2, f"Fallback model 2 has no name: {HOW}"),
        ([f"@ {URL}"], 1, f"Fallback model 1 has no name: {HOW}"),
        ([URL], 1, f"Fallback model 1 has no name: {HOW}"),
        ([f"n@{URL}"], 1, f"Fallback model 1 has no name: {HOW}"),
        (["n\x00"], 1, f"Fallback model 1 has no name: {HOW}"),
        (["n @"], 1, f"Fallback model 1 has no name: {HOW}"),
        (["n @ "], 1, "Fallback model 1 has no address after the @: write `model @ https://host/v1`."),
        (
            ["n @ ftp://user:hunter2@host"],
            1,
            "Fallback model 1 has no address after the @: write `model @ https://host/v1`.",
        ),
        *(
            (
                ["n", f"x @ https://{login}@llm.example/v1"],
                2,
                "Fallback model 2 may hold no user name or password: put the key into MENDGRAPH_API_KEY_LLM_EXAMPLE.",
            )
            for login in ("user:hunter2", "hunter2", ":hunter2", "", "a@b:hunter2")
        ),
        (
            [f"local @ {URL}"],
            1,
            "Fallback model 1 is the embedded model `local`, which has no address: omit the address.",
        ),
        (
            ["anthropic:claude @ https://llm.example/v1"],
            1,
            "Fallback model 1 names a provider, whose package knows where it is: omit the address.",
        ),
        (["n", "n"], 2, "Fallback model 2 (n) is in the list already: name each model once."),
        (["m"], 1, "Fallback model 1 (m) is in the list already: name each model once."),
        (
            [f"n @ {URL}", f"n @ {URL}"],
            2,
            "Fallback model 2 (n at llm.example) is in the list already: name each model once.",
        ),
        (list("abcdef"), 6, "There are 6 fallback models: name 5 at most."),
    ],
)
def test_a_fallback_that_cannot_be_used_is_a_problem(fallbacks: list[str], place: int, message: str) -> None:
    assert models_in_order("m", None, fallbacks) == FallbackProblem(place=place, message=message)


@given(st.none() | st.text(), st.none() | st.text(), st.lists(st.text() | st.just(f"n @ {URL}"), max_size=7))
def test_any_texts_give_models_or_a_problem(model: str | None, base_url: str | None, fallbacks: list[str]) -> None:
    found = models_in_order(model, base_url, fallbacks)
    if isinstance(found, FallbackProblem):
        assert 1 <= found.place <= MOST_FALLBACKS + 1
    else:
        assert found[0] == ModelChoice(model=model, base_url=base_url)
        assert len(found) == len(fallbacks) + 1 == len({each.breaker_key for each in found})


def test_a_name_shows_no_password_and_each_model_has_its_breaker() -> None:
    hidden = ModelChoice(model="n", base_url="https://user:hunter2@llm.example/v1", key_variable="K")
    assert [each.name for each in (ModelChoice(), OWN, LOCAL, OTHER, hidden)] == [
        "the default model",
        "m",
        "local",
        "n at llm.example",
        "n at llm.example",
    ]
    assert [each.breaker_key for each in (ModelChoice(), OWN, OTHER)] == [" ", " m", f"{URL} n"]


@pytest.mark.parametrize("kind", sorted(Kind))
def test_the_next_model_is_asked_where_another_one_may_help(kind: Kind) -> None:
    helps = kind not in {Kind.BAD_REQUEST, Kind.CONTEXT_OVERFLOW, Kind.CONTENT_FILTER}
    failure = ProviderFailure(kind=kind, message="m")
    models = (OWN, OTHER, LOCAL)
    expected = [1, 2, None] if helps else [None] * 3
    assert [next_model(failure, index, len(models)) for index in range(3)] == expected
    assert helps is (kind in TRANSIENT | UNUSABLE)


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ([], ""),
        ([Tried(name="gpt-x", kind=Kind.RATE_LIMITED, tries=3)], "gpt-x: rate limited (3 tries)"),
        (
            [Tried(name="gpt-x", kind=Kind.RATE_LIMITED, tries=3), Tried(name="local", kind=Kind.CONNECTION)],
            "gpt-x: rate limited (3 tries); local: connection",
        ),
    ],
)
def test_what_was_tried_is_said_in_order(tried: list[Tried], words: str) -> None:
    assert in_words(tried) == words


def test_a_provider_is_never_asked_at_the_endpoint_of_the_run() -> None:
    """Its key is meant for its own address alone."""
    found = models_in_order("m", URL, ["anthropic:claude", "qwen2.5-coder:1.5b"])
    assert not isinstance(found, FallbackProblem)
    assert [choice.base_url for choice in found] == [URL, None, URL]
