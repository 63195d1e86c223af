"""The seam between the decisions about a model call and whatever makes it: one call in, one reply or failure out."""

from collections.abc import Callable
from typing import Protocol

from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderFailure, Record


class Stream(Protocol):
    """Text that comes in pieces, freed of secrets that span them."""

    def feed(self, piece: str) -> str:
        """What may be shown now."""
        ...

    def close(self) -> str:
        """The rest."""
        ...


class Call(Record):
    """One call, ready to be sent: its prompt and what it may use. `timeout_s` bounds the whole reply.

    `idle_timeout_s` bounds the silence between two parts of it, from the first on: until then a small model on a small
    machine reads its prompt without a word, and only the whole counts. The reply to a `quiet` call is none of the
    conversation's. `scrub` begins a text that others than the machine hear; None where nothing is to be taken out.
    """

    prompt: Prompt
    max_output_tokens: int
    timeout_s: float
    idle_timeout_s: float | None = None
    seed: int | None = None
    quiet: bool = False
    scrub: Callable[[], Stream] | None = None


class Model(Protocol):
    """A model that answers calls. Users give LangChain's chat models; `graph.langchain` makes one of each."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try; text is passed on as it comes. Failures come back as values."""
        ...

    async def acount_tokens(self, prompt: Prompt) -> int | None:  # noqa: ARG002 - one that counts overrides it
        """The tokens of a prompt, None where the model cannot tell."""
        return None
