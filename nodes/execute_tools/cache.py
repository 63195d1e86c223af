"""Results that may be given again: of reading tools only, while what they read is unchanged."""

from collections import OrderedDict

from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.registry import Tool, ToolOutput
from nodes.language.json_arguments import decode_arguments

MOST_RESULTS = 256
"""The oldest are forgotten beyond this; each is at most as large as a clipped result."""

LARGEST_READ_AGAIN = 1_000_000
"""Bytes of a file that is read again to see whether it is unchanged; a larger one is not served from here."""


class ToolCache:
    """Serves one workspace. The key is the tool's name and the exact argument text, spaces included.

    Until the first `begin_step` the workspace is taken to change by our own calls only. Source: spec 5, invariant 1.
    """

    def __init__(self, most: int = MOST_RESULTS) -> None:
        self._most = most
        self._results: OrderedDict[tuple[str, str], ToolOutput] = OrderedDict()
        self._workspace: Workspace | None = None
        self._settings: object = None

    def begin_step(self, workspace: Workspace, settings: object) -> None:
        """From now on another program may have changed the workspace.

        An output that says which files it has read (`files_read`) is served while the paths of its call lead to the
        same files with the same bytes, as read again through `workspace`. All others are forgotten here; those too
        where other `settings` hold now.
        """
        if settings != self._settings:
            self.clear()
        self._workspace, self._settings = workspace, settings
        self._results = OrderedDict((key, output) for key, output in self._results.items() if output.files_read)

    def get(self, tool: Tool, raw: str) -> ToolOutput | None:
        """The stored output, or None."""
        output = self._results.get((tool.name, raw))
        if output is None or self._workspace is None or not output.files_read:
            return output
        return output if _files_named(tool, raw, self._workspace) == output.files_read else None

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


def _files_named(tool: Tool, raw: str, workspace: Workspace) -> dict[str, str]:
    """The hashes of the files that a call names, by their real names; none in an event loop, which must not wait."""
    given = decode_arguments(raw)
    arguments = tool.validate(given) if isinstance(given, dict) and not tool.asynchronous else ()
    named = [arguments.get(field) for field in tool.path_fields] if isinstance(arguments, dict) else []
    found = [workspace.read_file(path, LARGEST_READ_AGAIN) for path in named if isinstance(path, str)]
    return {each.path: each.sha256 for each in found if isinstance(each, FileContent)}
