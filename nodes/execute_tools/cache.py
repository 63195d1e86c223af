"""Results that may be given again: of reading tools only, while the workspace is unchanged."""

from collections import OrderedDict

from nodes.execute_tools.registry import Tool, ToolOutput

MOST_RESULTS = 256
"""The oldest are forgotten beyond this; each is at most as large as a clipped result."""


class ToolCache:
    """Serves one workspace. The key is the tool's name and the exact argument text, spaces included.

    Source: spec 5, invariant 1.
    """

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._results: OrderedDict[tuple[str, str], ToolOutput] = OrderedDict()

    def get(self, tool: Tool, raw: str) -> ToolOutput | None:
        """The stored output, or None."""
        return self._results.get((tool.name, raw))

    def store(self, tool: Tool, raw: str, output: ToolOutput) -> bool:
        """Keep a successful output of a cacheable tool; says whether it was kept."""
        if not tool.cacheable or not output.result.ok:
            return False
        self._results[tool.name, raw] = output
        while len(self._results) > self._most:
            self._results.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget everything: the workspace has, or may have, changed."""
        self._results.clear()
