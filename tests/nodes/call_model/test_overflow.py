import pytest
from hypothesis import given, strategies as st

from nodes.call_model.fitting import overflow_window


@pytest.mark.parametrize(
    ("message", "window"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens.",
            8192,
        ),
        (
            "This endpoint's maximum context length is 1,048,576 tokens. However, you requested about 1293741 tokens",
            1_048_576,
        ),
        (
            "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens (2000 > 4096 - 2104).",
            4096,
        ),
        (
            "You passed 16385 tokens, the model's context length is only 16384 tokens; maximum input length: 14384",
            16_384,
        ),
        ("The decoder prompt (length 9001) is longer than the maximum model length of 8192.", 8192),
        ("request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it", 8192),
        ('{"type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256}', 256),
        ("Requested tokens (5160) exceed context window of 2048", 2048),
        ("Number of tokens (768) exceeded maximum context length (512).", 512),
        ("However, the model is loaded with context length of only 4096 tokens, which is not enough.", 4096),
        ("prompt is too long: 212345 tokens > 200000 maximum", 200_000),
        (
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
            1_048_575,
        ),
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131_072),
        ("prompt token count of 140000 exceeds the limit of 128000", 128_000),
        ("Your request exceeded model token limit: 262144 (requested: 300000)", 262_144),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 4096),
        ("too many tokens: total number of tokens in the prompt cannot exceed 4081", 4081),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input", 200_000),
        ("Range of input length should be [1, 30720]", 30_720),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32_768),
        ("size limit exceeded by 1000 tokens. The limit for this model is 128000 tokens.", 128_000),
        ("max_model_len=32768 is smaller than the prompt", 32_768),
        ("Your input exceeds the context window of this model. Please adjust your input and try again.", None),
        ("invalid params, context window exceeds limit (13)", None),
        ("the request exceeds the available context size, try increasing it", None),
        ("The server is busy, 4096 requests are waiting", None),
        ("", None),
    ],
)
def test_the_window_is_read_from_what_endpoints_say(message: str, window: int | None) -> None:
    assert overflow_window(message) == window


@given(st.text())
def test_any_text_has_a_reading(text: str) -> None:
    assert (overflow_window(text) or 256) >= 256
