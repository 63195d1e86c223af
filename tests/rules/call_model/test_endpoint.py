from pydantic import SecretStr

from mendgraph.graph.configuration.prices import load_prices
from mendgraph.nodes.call_model.endpoint import (
    DEFAULT_MODELS,
    NO_KEY,
    PROVIDERS,
    Endpoint,
    ModelChoice,
    choose_served_model,
    find_endpoint,
    key_variable_of,
    models_in_order,
)
from mendgraph.nodes.call_model.prices import find_price
from mendgraph.nodes.records import ProviderErrorKind as Kind, ProviderFailure, ToolError
from tests.row_tables import rows

URL = "http://127.0.0.1:8080/v1"
OTHER = "https://llm.example/v1"
EMBEDDED = Endpoint(model="local", embedded=True)


def endpoint(model: str, base_url: str = "", key: str = NO_KEY, variable: str = "OPENAI_API_KEY") -> Endpoint:
    return Endpoint(model=model, base_url=base_url, api_key=SecretStr(key), key_variable=variable)


def refused(message: str, kind: Kind = Kind.MODEL_UNAVAILABLE) -> ProviderFailure:
    return ProviderFailure(kind=kind, message=message)


KEY = {"OPENAI_API_KEY": "sk-1"}
NO_ENDPOINT = (
    "Model 'm' needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server, or omit the"
    " model to use the embedded one. For another provider, write anthropic:MODEL."
)


@rows(
    (None, None, {}, EMBEDDED),
    ("local", None, {}, EMBEDDED),
    ("m", None, {}, refused(NO_ENDPOINT)),
    ("m", None, KEY, endpoint("m", key="sk-1")),
    ("m", URL, {}, endpoint("m", URL)),
    ("m", URL, {**KEY, "OPENAI_BASE_URL": OTHER}, endpoint("m", URL, "sk-1")),
    ("m", None, {"OPENAI_BASE_URL": OTHER}, endpoint("m", OTHER)),
    (None, None, {**KEY, "OPENAI_BASE_URL": OTHER}, endpoint("", OTHER, "sk-1")),
    (None, URL, {}, endpoint("", URL)),
)
def test_context_comes_before_the_environment_and_the_embedded_model_last(
    model: str | None, base_url: str | None, environment: dict[str, str], expected: Endpoint | ProviderFailure
) -> None:
    assert find_endpoint(model, base_url, environment) == expected


@rows(
    (KEY, "gpt-5-mini"),
    ({"ANTHROPIC_API_KEY": "sk-1"}, "anthropic:claude-sonnet-4-6"),
    ({"ANTHROPIC_API_KEY": "sk-1", **KEY}, "gpt-5-mini"),
    ({"ANTHROPIC_API_KEY": "sk-1", "OPENAI_API_KEY": " "}, "anthropic:claude-sonnet-4-6"),
    ({"MENDGRAPH_MODEL": "gpt-5", **KEY, "MISTRAL_API_KEY": "k"}, "gpt-5"),
    ({"MENDGRAPH_MODEL": "local", **KEY}, "local"),
    ({"MENDGRAPH_MODEL": "qwen3", "OPENAI_BASE_URL": OTHER}, "qwen3"),
    ({"ANTHROPIC_API_KEY": "sk-1", "OPENAI_BASE_URL": OTHER}, ""),
)
def test_run_that_names_no_model_uses_the_one_of_the_environment(environment: dict[str, str], name: str) -> None:
    found = find_endpoint(None, None, environment)
    assert isinstance(found, Endpoint)
    assert found.full_name == name


def test_default_models_are_in_the_price_list_and_providers_are_those_of_langchain() -> None:
    from langchain.chat_models.base import _BUILTIN_PROVIDERS

    prices = load_prices()
    assert not isinstance(prices, ToolError)
    assert all(find_price(prices, model.rpartition(":")[2]) for model in DEFAULT_MODELS.values())
    assert frozenset(_BUILTIN_PROVIDERS) == PROVIDERS


@rows("foo", "ftp://x/v1", "http://[bad", "http://h:99999", "http://h:0", "localhost:8080")
def test_text_that_is_no_address_is_refused_before_anything_is_built(url: str) -> None:
    expected = refused(f"The endpoint {url!r} is not an address: it should look like http://127.0.0.1:8080/v1.")
    assert find_endpoint("m", url, {}) == expected
    assert find_endpoint("anthropic:m", url, {}) == expected
    assert find_endpoint(None, None, {"OPENAI_BASE_URL": url}) == expected


@rows("sk-é", "sk-1 sk-2", "sk-1\nsk-2", "sk-\x00")
def test_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    message = "OPENAI_API_KEY contains a character that no key has: set it again, without spaces or line breaks."
    assert find_endpoint("m", URL, {"OPENAI_API_KEY": key}) == refused(message, Kind.AUTHENTICATION)


@rows({}, {**KEY, "OPENAI_BASE_URL": OTHER})
def test_package_of_another_provider_gets_no_key_and_no_address_of_openais(environment: dict[str, str]) -> None:
    expected = Endpoint(model="m", key_variable="", provider="anthropic")
    assert find_endpoint("anthropic:m", None, environment) == expected
    assert find_endpoint("anthropic:m", URL, environment) == expected.model_copy(update={"base_url": URL})


OF_OTHER = "MENDGRAPH_API_KEY_LLM_EXAMPLE"
OPENAI = "https://api.openai.com/v1"


@rows(
    (OTHER, {OF_OTHER: "k-2", **KEY}, endpoint("m", OTHER, "k-2", OF_OTHER)),
    (OTHER, KEY, endpoint("m", OTHER, NO_KEY, OF_OTHER)),
    (OTHER, {OF_OTHER: " ", **KEY, "OPENAI_BASE_URL": URL}, endpoint("m", OTHER, variable=OF_OTHER)),
    (OTHER, {**KEY, "OPENAI_BASE_URL": "https://LLM.example:443"}, endpoint("m", OTHER, "sk-1")),
    (OTHER, {**KEY, "OPENAI_BASE_URL": "http://llm.example"}, endpoint("m", OTHER, variable=OF_OTHER)),
    (OTHER, {**KEY, "OPENAI_BASE_URL": "https://llm.example:8443/v1"}, endpoint("m", OTHER, variable=OF_OTHER)),
    (OPENAI, KEY, endpoint("m", OPENAI, "sk-1")),
)
def test_another_host_gets_its_own_key_and_never_the_usual_one(
    url: str, environment: dict[str, str], expected: Endpoint
) -> None:
    assert find_endpoint("m", url, environment, key_variable=key_variable_of(url)) == expected


@rows(
    ("https://openrouter.ai/api/v1", "MENDGRAPH_API_KEY_OPENROUTER_AI"),
    ("http://127.0.0.1:8080/v1", "MENDGRAPH_API_KEY_127_0_0_1"),
    ("https://api-openai.com", "MENDGRAPH_API_KEY_API__OPENAI_COM"),
    ("nowhere", ""),
)
def test_host_has_a_key_variable_of_its_own(url: str, variable: str) -> None:
    assert key_variable_of(url) == variable


@rows(
    ([], "0 models (none)"),
    (["b", "a"], "2 models (a, b)"),
    ([f"m{index}" for index in range(9)], "9 models (m0, m1, m2, m3, m4, m5, m6, m7)"),
)
def test_only_one_served_model_is_taken_unasked(served: list[str], named: str) -> None:
    assert choose_served_model(["only"]) == "only"
    assert choose_served_model(served) == refused(f"The endpoint serves {named}: choose one with --model.")


OWN = ModelChoice(model="m")
LOCAL = ModelChoice(model="local")
ELSEWHERE = ModelChoice(model="n", base_url=OTHER, key_variable="MENDGRAPH_API_KEY_LLM_EXAMPLE")


@rows(
    (None, [], (OWN,)),
    (None, ["n", " local "], (OWN, ModelChoice(model="n"), LOCAL)),
    (None, [f"n @ {OTHER}"], (OWN, ELSEWHERE)),
    (
        URL,
        ["n", "n @ http://127.0.0.1:8080/other", f"n @ {OTHER}", "local"],
        (
            *(ModelChoice(model=name, base_url=URL) for name in "mn"),
            ModelChoice(model="n", base_url="http://127.0.0.1:8080/other"),
            *(ELSEWHERE, LOCAL),
        ),
    ),
)
def test_runs_own_model_comes_first_and_its_fallbacks_in_order(
    base_url: str | None, fallbacks: list[str], expected: tuple[ModelChoice, ...]
) -> None:
    assert models_in_order("m", base_url, fallbacks) == expected


NO_LOGIN = "Fallback model 2 must not contain a user name or password: put the key into MENDGRAPH_API_KEY_LLM_EXAMPLE."
NONE = "is none: write `model`, `local`, `provider:model`, or `model @ https://host/v1`."


@rows(
    ([""], f"Fallback model 1 {NONE}"),
    (["n", f" @ {OTHER}"], f"Fallback model 2 {NONE}"),
    ([f"n@{OTHER}"], f"Fallback model 1 {NONE}"),
    (["n @"], f"Fallback model 1 {NONE}"),
    (["n @ ftp://user:hunter2@host"], f"Fallback model 1 {NONE}"),
    ([f"local @ {OTHER}"], f"Fallback model 1 {NONE}"),
    (["anthropic:claude @ https://llm.example/v1"], f"Fallback model 1 {NONE}"),
    *((["n", f"x @ https://{login}@llm.example/v1"], NO_LOGIN) for login in ("user:hunter2", "", "a@b:hunter2")),
    (["n", "n"], "Fallback model 2 (n) is in the list twice: name each model once."),
    (list("abcdef"), "There are 6 fallback models: name 5 at most."),
)
def test_fallback_that_cannot_be_used_or_is_the_sixth_is_a_problem(fallbacks: list[str], message: str) -> None:
    assert models_in_order("m", None, fallbacks) == message
    assert len(models_in_order("m", None, list("abcde"))) == 6


def test_name_shows_no_password_and_each_model_has_its_breaker() -> None:
    hidden = ModelChoice(model="n", base_url="https://user:hunter2@llm.example/v1", key_variable="K")
    assert [each.name for each in (ModelChoice(), OWN, LOCAL, ELSEWHERE, hidden)] == [
        "the default model",
        "m",
        "local",
        "n at llm.example",
        "n at llm.example",
    ]
    assert [each.breaker_key for each in (ModelChoice(), OWN, ELSEWHERE)] == [" ", " m", f"{OTHER} n"]
