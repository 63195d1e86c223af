"""One file is made where there was none, or replaced where it is still the one that was read."""

from nodes.execute_tools.environment.change_places import WriteFile
from nodes.execute_tools.environment.file_changes import change_files
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.journal_records import ChangeRecorder
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.records import ToolError


def write_file(
    paths: JudgedPaths, path: str, data: bytes, expected_sha256: str, recorder: ChangeRecorder | None = None
) -> FileContent | ToolError:
    """Put `data` there in one step; on a failure everything is as it was. See `Workspace.write_file`."""
    done = change_files(paths, (WriteFile(path, data, expected_sha256),), recorder)
    if isinstance(done, ToolError):
        return done
    [written] = done
    return FileContent(written.path, data, written.sha256)
