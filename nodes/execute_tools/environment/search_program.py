"""A search program that is handed open files, so that it reads what was judged, whatever the names mean by then."""

from collections.abc import Sequence

from nodes.execute_tools.environment.file_reads import OpenedFile
from nodes.execute_tools.environment.processes import ProcessResult, run_process
from nodes.records import ToolError


def handle_path(file: OpenedFile) -> str:
    """The name under which `search_handles` shows this file to the program, and the program names it."""
    return f"/dev/fd/{file.stream.fileno()}"


def search_handles(
    argv: Sequence[str], files: Sequence[OpenedFile], *, timeout_s: float, max_output_bytes: int
) -> ProcessResult | ToolError:
    """Run `argv` with the `handle_path` of each file behind it; it gets these handles and no others.

    It starts in "/", so that no relative name leads into the workspace. Bounds and errors are those of `run_process`.
    The files stay open.
    """
    return run_process(
        [*argv, *map(handle_path, files)],
        cwd="/",
        timeout_s=timeout_s,
        max_output_bytes=max_output_bytes,
        pass_fds=[file.stream.fileno() for file in files],
    )
