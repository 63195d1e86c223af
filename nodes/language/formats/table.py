"""The table of all tool-call formats. A new format is one entry: a class, or a row of a class."""

from typing import Final

from mendgraph.nodes.language.formats.call_format import CallFormat
from mendgraph.nodes.language.formats.json_calls import MARKED_JSON, PLAIN_JSON
from mendgraph.nodes.language.formats.named_json import NAMED_JSON
from mendgraph.nodes.language.formats.python_calls import PYTHON
from mendgraph.nodes.language.formats.tagged import TAGGED

FORMATS: Final[tuple[CallFormat, ...]] = (*MARKED_JSON, *TAGGED, *NAMED_JSON, *PYTHON, *PLAIN_JSON)
"""The formats in the order in which they are tried."""

FORMAT_OF: Final = {call_format.name: call_format for call_format in FORMATS}
