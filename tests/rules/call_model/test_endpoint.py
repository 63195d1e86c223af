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
def test_context_overrides_environment_and_embedded_model_is_last(
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
def test_default_model_comes_from_the_environment(environment: dict[str, str], name: str) -> None:
    endpoint = find_endpoint(None, None, environment)
    assert isinstance(endpoint, Endpoint)
    assert endpoint.full_name == name


def test_default_models_have_prices_and_providers_match_langchain() -> None:
    from langchain.chat_models.base import _BUILTIN_PROVIDERS

    prices = load_prices()
    assert not isinstance(prices, ToolError)
    assert all(find_price(prices, model.rpartition(":")[2]) for model in DEFAULT_MODELS.values())
    assert frozenset(_BUILTIN_PROVIDERS) == PROVIDERS


@rows("foo", "ftp://x/v1", "http://[bad", "http://h:99999", "http://h:0", "localhost:8080")
def test_invalid_url_is_refused(url: str) -> None:
    expected = refused(f"The endpoint {url!r} is not an address: it should look like http://127.0.0.1:8080/v1.")
    assert find_endpoint("m", url, {}) == expected
    assert find_endpoint("anthropic:m", url, {}) == expected
    assert find_endpoint(None, None, {"OPENAI_BASE_URL": url}) == expected


@rows("sk-é", "sk-1 sk-2", "sk-1\nsk-2", "sk-\x00")
def test_invalid_key_is_refused_without_being_shown(key: str) -> None:
    message = "OPENAI_API_KEY contains a character that no key has: set it again, without spaces or line breaks."
    assert find_endpoint("m", URL, {"OPENAI_API_KEY": key}) == refused(message, Kind.AUTHENTICATION)


@rows({}, {**KEY, "OPENAI_BASE_URL": OTHER})
def test_other_provider_gets_neither_key_nor_url_of_openai(environment: dict[str, str]) -> None:
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
def test_other_host_gets_only_its_own_key(url: str, environment: dict[str, str], expected: Endpoint) -> None:
    assert find_endpoint("m", url, environment, key_variable=key_variable_of(url)) == expected


@rows(
    ("https://openrouter.ai/api/v1", "MENDGRAPH_API_KEY_OPENROUTER_AI"),
    ("http://127.0.0.1:8080/v1", "MENDGRAPH_API_KEY_127_0_0_1"),
    ("https://api-openai.com", "MENDGRAPH_API_KEY_API__OPENAI_COM"),
    ("nowhere", ""),
)
def test_each_host_has_its_own_key_variable(url: str, variable: str) -> None:
    assert key_variable_of(url) == variable


@rows(
    ([], "0 models (none)"),
    (["b", "a"], "2 models (a, b)"),
    ([f"m{index}" for index in range(9)], "9 models (m0, m1, m2, m3, m4, m5, m6, m7)"),
)
def test_served_model_is_chosen_only_if_it_is_the_only_one(served: list[str], named: str) -> None:
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
def test_model_is_followed_by_its_fallbacks_in_order(
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
def test_unusable_or_sixth_fallback_is_an_error(fallbacks: list[str], message: str) -> None:
    assert models_in_order("m", None, fallbacks) == message
    assert len(models_in_order("m", None, list("abcde"))) == 6


def test_name_hides_the_password_and_each_model_has_its_own_breaker() -> None:
    hidden = ModelChoice(model="n", base_url="https://user:hunter2@llm.example/v1", key_variable="K")
    assert [choice.name for choice in (ModelChoice(), OWN, LOCAL, ELSEWHERE, hidden)] == [
        "the default model",
        "m",
        "local",
        "n at llm.example",
        "n at llm.example",
    ]
    assert [choice.breaker_key for choice in (ModelChoice(), OWN, ELSEWHERE)] == [" ", " m", f"{OTHER} n"]
