"""All families by name.

    with FAMILIES["deepseek"]([use(("read_file", '{"path": "a"}')), say("Done.")]) as server:
        ...                                   # a client of server.url, server.key, server.model
    assert server.refusals == []
    assert server.returned(server.requests[1]) == server.secrets_of_state[:1]

All take `play="position"`; Gemini counts `skipped` signatures; Ollama and OpenRouter have a `model_without_tools`.
`clients.client(server)` is the LangChain class, `raw` speaks without one.
"""

from typing import Final

from tests.providers.anthropic_messages import Anthropic
from tests.providers.gemini import Gemini
from tests.providers.mistral import Mistral
from tests.providers.ollama import Ollama
from tests.providers.openai_gpt5 import Azure, NoStreaming, OpenAIGpt5
from tests.providers.openai_likes import DeepSeek, NoTools
from tests.providers.openai_responses import OpenAIResponses
from tests.providers.openrouter import OpenRouter
from tests.providers.provider_server import ProviderServer
from tests.providers.script import Call, Refusal, Reply, Request, say, use

__all__ = ["FAMILIES", "QUICK", "Call", "ProviderServer", "Refusal", "Reply", "Request", "say", "use"]

FAMILIES: Final[dict[str, type[ProviderServer]]] = {
    one.family: one
    for one in (
        OpenAIGpt5,
        OpenAIResponses,
        Azure,
        Anthropic,
        Gemini,
        Ollama,
        DeepSeek,
        OpenRouter,
        Mistral,
        NoTools,
        NoStreaming,
    )
}
QUICK: Final = ("openai_gpt5", "anthropic")
"""The families of `make test` where `make sweep` tests all: the APIs of the others are like one of these."""
