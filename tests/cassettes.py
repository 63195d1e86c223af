"""Reads a cassette file as pytest's plugin does. Our recordings have another form: see `tests.recorded.cassette`."""

from mendgraph.graph.cassettes.cassette_file import CassetteFile, parse, read_text
from mendgraph.nodes.records import ToolError


def read(path: str, name: str = "") -> CassetteFile | ToolError:
    """Return the cassette at `path`, or why it cannot be read; errors call it `name`."""
    text = read_text(path, name)
    return text if isinstance(text, ToolError) else parse(text, name or path)
