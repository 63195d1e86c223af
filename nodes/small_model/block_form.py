"""The block form of a turn: its requests and its reader. Implements `nodes/language/block_form.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AnyMessage

from mendgraph.nodes.language.block_form import BlockEdits, BlockRequest
from mendgraph.nodes.language.history import last_request
from mendgraph.nodes.language.names import named_paths
from mendgraph.nodes.language.text_protocol import ReadCall
from mendgraph.nodes.records import (
    Correction,
    ExtractionError,
    Profile,
    StopCause,
    StopReason,
    ToolInvocation,
    ToolSpec,
)
from mendgraph.nodes.small_model.block_prompt import block_request, shown_files
from mendgraph.nodes.small_model.blocks import EDIT_TOOL, read_blocks
from mendgraph.nodes.small_model.rewriting import LAST_TRY
from mendgraph.nodes.small_model.turn_view import view_turn
from mendgraph.nodes.small_model.wording import is_question

RETRY_TEMPERATURE = 0.8
"""The temperature of the last try: at 0 a small model would repeat itself.

Source: measured on a 1.5B model, new tries at 0.7 to 0.9.
"""


@dataclass(frozen=True)
class BlockForm:
    """The block form of a turn."""

    profile: Profile

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
        """Return the next request; the last try is sampled."""
        request = block_request(
            specs,
            history,
            corrections,
            native=native,
            corrections_sent=corrections_sent,
            most_tokens=most_tokens,
        )
        if self.profile.small and request.failed_tries >= LAST_TRY:
            return request._replace(temperature=RETRY_TEMPERATURE)

        return request

    def exhausted(
        self, failed_tries: int, history: Sequence[AnyMessage], corrections: Sequence[Correction]
    ) -> StopCause | None:
        """Return why the run ends after `LAST_TRY`. Loop control counts the tries of other models."""
        if failed_tries <= LAST_TRY or self.profile.steps_down:
            return None

        notices = [*view_turn(history).failures, *(correction.prompt for correction in corrections)]
        return StopCause(
            reason=StopReason.EDITS_FAILED,
            message=f"No reply could be used after {LAST_TRY + 1} tries.",
            diagnostics=tuple(notices[-1:]),
        )

    def reader(self, history: Sequence[AnyMessage], corrections_sent: int) -> "ShownBlocks":
        """Return the reader of replies to the next request."""
        request = last_request(history)
        view = view_turn(history)
        return ShownBlocks(shown_files(request, view, view.failed_steps + corrections_sent), request)


@dataclass(frozen=True)
class ShownBlocks:
    """Reads replies to a request that shows these files."""

    files: tuple[str, ...]
    request: str = ""

    @property
    def is_question(self) -> bool:
        """Return whether the request is a question."""
        return is_question(self.request)

    def edits(self, text: str) -> BlockEdits:
        """Return the edits in a text, as calls of `edit_blocks`."""
        blocks = read_blocks(text, self.files, self.request or None)
        calls = []

        for outcome in blocks.outcomes:
            if isinstance(outcome, ExtractionError):
                content = outcome.line_content
            else:
                content = str(outcome.args["content"])

            calls.append(ReadCall(EDIT_TOOL, content, outcome))

        return BlockEdits(calls, blocks.prose, blocks.lines)

    def names_file_of(self, call: ReadCall, edits: Sequence[ReadCall]) -> bool:
        """Return whether a call has only the path of an edit, or reads a file that the request shows or names."""
        if not edits or not isinstance(call.outcome, ToolInvocation) or call.outcome.args.keys() != {"path"}:
            return False

        path = call.outcome.args["path"]
        if call.tool == "read_file" and (path in self.files or path in named_paths(self.request)):
            return True

        outcomes = [edit.outcome for edit in edits]
        return any(isinstance(outcome, ToolInvocation) and outcome.args["path"] == path for outcome in outcomes)

    def shows_file(self, answer: str) -> bool:
        """Return whether an answer is only blocks, or the name of a file that the request names."""
        blocks = read_blocks(answer, self.files)
        if blocks.outcomes and not blocks.prose:
            return True

        bare = f"/{answer.strip('`*: ')}"
        return any(bare.endswith(f"/{path}") for path in named_paths(self.request))
