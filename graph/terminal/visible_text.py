"""The prose in a streamed reply of the model: what is shown while its calls and edits are withheld. Pure."""

import re
from collections.abc import Mapping

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.small_models import holds_edits
from mendgraph.nodes.call_model.endpoint import Endpoint, find_endpoint
from mendgraph.nodes.call_model.weights import embedded_weights
from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import recognise, starts_of
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, extract_in_order
from mendgraph.nodes.records import EditForm

_LINE_ENDS = frozenset("\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""Characters that end a line (`str.splitlines`); a carriage return does so unless a line feed follows."""

_STARTS = (TOOL_PREFIX, "```", "~~~")
"""Beginnings of lines, after white space, with which a call or an edit may begin, beside the markers of formats."""

_MAYBE_PATH = re.compile(r"\s*+[*#]*+\s*+(?:[Ff]ile:?\s*+)?[*`]*+[\w@.+/-]*+[`*:]*+\s*+")


class VisibleText:
    """Filters the prose out of replies, up to their calls. `blocks`: edits are fenced blocks under a path.

    Prose is shown as it arrives. From the first line that may begin a call or an edit, the reply is withheld, and shown
    at its end if it holds none.
    """

    def __init__(self, known_tools: frozenset[str], *, blocks: bool = False) -> None:
        self._known_tools = known_tools
        self._blocks = blocks
        self._markers = starts_of(known_tools)
        self._restart()

    def _restart(self) -> None:
        self._text = ""
        self._shown = 0  # characters of `_text` that are shown
        self._in_line = False  # this line is shown as it arrives
        self._withholds = False  # text is shown at the end of the reply

    def feed(self, piece: str) -> str:
        """Add a piece of the reply; returns the text that can be shown now."""
        self._text += piece
        before = self._shown
        if self._withholds:
            return ""

        for line in self._text[before:].splitlines(keepends=True):
            complete = self._shown + len(line) < len(self._text) or line[-1] in _LINE_ENDS
            doubtful = not self._in_line and self._may_begin_a_call(line, complete)
            if not complete and (doubtful or not (self._in_line or line.strip())):
                break

            end = self._shown + len(line)
            place = self._markers.place_in(self._text, self._shown, end, complete=complete)
            self._withholds = doubtful or place < end

            if doubtful:
                passage = ""
            elif complete:
                passage = line
            else:
                passage = line.removesuffix("\r")

            passage = passage[: place - self._shown]
            if self._withholds and not complete and not doubtful:
                self._withholds = self._markers.begins(self._text, place)

            if not passage:
                break

            self._shown += len(passage)
            self._in_line = not complete

        return self._text[before : self._shown]

    def end(self) -> str:
        """The withheld text of a reply without a call or an edit, which has ended; the next piece begins another."""
        text = self._text
        pending = self._text[self._shown :]
        self._restart()
        edits = self._blocks and holds_edits(text)
        markups = recognise(text, ToolSchemas(self._known_tools))
        calls = extract_in_order(text, self._known_tools) or any(not markup.quoted for markup in markups)
        if edits or calls:
            return ""

        return pending

    def _may_begin_a_call(self, line: str, complete: bool) -> bool:
        start = "".join(line.split())
        if not start:
            return False
        if self._blocks and _MAYBE_PATH.fullmatch(line):
            return True
        if any(mark.startswith(start) or start.startswith(mark) for mark in _STARTS):
            return True

        return self._markers.may_begin_line(start, complete=complete)


def edits_in_blocks(context: AgentContext, environment: Mapping[str, str], *, own_model: bool = False) -> bool:
    """Return whether the model of this run writes edits as fenced blocks; `own_model`: a program passes its model."""
    endpoint = find_endpoint(context.model, context.base_url, environment)
    if own_model or not isinstance(endpoint, Endpoint):
        profile = context.profile(embedded=False, model=context.model or "")
    elif endpoint.embedded:
        profile = context.profile(embedded=True, model=embedded_weights().model)
    else:
        profile = context.profile(embedded=False, model=endpoint.model)

    return profile.edit_form is EditForm.BLOCKS
