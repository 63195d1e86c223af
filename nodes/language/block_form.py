"""The interfaces of the block form: what `call_model` and `parse` use of `nodes/small_model/` without importing it.

In the block form a small model writes an edit as a file name and a fenced block. A run with another form passes None
instead of these objects and does not load their modules.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from langchain_core.messages import AnyMessage

from mendgraph.nodes.language.text_protocol import ReadCall
from mendgraph.nodes.records import Correction, JsonMap, StopCause, ToolSpec


class BlockRequest(NamedTuple):
    """The messages and tools of a request, in OpenAI's form.

    `failed_tries` counts the steps and replies of this turn that failed since the last change. `temperature` is the
    minimum for sampling; None for the configured one.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    failed_tries: int = 0
    temperature: float | None = None


class BlockRequests(Protocol):
    """Builds the requests of a turn."""

    def request(
        self,
        specs: Sequence[ToolSpec],
        history: Sequence[AnyMessage],
        corrections: Sequence[Correction],
        *,
        native: bool,
        corrections_sent: int = 0,
        most_tokens: int | None = None,
    ) -> BlockRequest:
        """Return the next request.

        `corrections_sent` counts those of the turn; `most_tokens` bounds the estimated size.
        """

    def exhausted(
        self, failed_tries: int, history: Sequence[AnyMessage], corrections: Sequence[Correction]
    ) -> StopCause | None:
        """Return why the run ends after this number of failed tries; None if another wording is left."""


class BlockEdits(NamedTuple):
    """The edits of a reply in order, including malformed ones, and the prose around their blocks.

    `lines` are the first and the last line number of each block, including its fences.
    """

    calls: list[ReadCall]
    prose: str
    lines: list[tuple[int, int]]


class BlockReader(Protocol):
    """Reads the replies of a turn."""

    @property
    def is_question(self) -> bool:
        """Return whether the turn's request is a question, so that the blocks of a reply are quotations."""

    def edits(self, text: str) -> BlockEdits:
        """Return the edits in a text."""

    def names_file_of(self, call: ReadCall, edits: Sequence[ReadCall]) -> bool:
        """Return whether a call only repeats the file of an edit, or reads a file that the model has seen."""

    def shows_file(self, answer: str) -> bool:
        """Return whether an answer is only a file or a file name."""
