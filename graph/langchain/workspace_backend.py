"""The workspace and the sandbox of mendgraph's own agent, as a backend of deepagents with `execute`."""

from base64 import b64encode
from functools import partial
from typing import Any

from mendgraph.nodes.execute_tools.commands.command_outputs import output_text
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import open_commands
from mendgraph.nodes.execute_tools.engine import Engine, EngineConfig
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext
from mendgraph.nodes.execute_tools.secrets.text_parts import masked_blocks
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.execute_tools.tools.search_files import MAX_RESULTS
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, OWN_SETTINGS_RULE
from mendgraph.nodes.guard.policy import Rules, is_hidden, is_refused, judge_content, judge_path
from mendgraph.nodes.records import JsonMap, ToolCall, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.sandbox import check_workspace
from mendgraph.nodes.workspace.files.text_files import decode_text
from mendgraph.nodes.workspace.files.tree_walk import parse_globs
from mendgraph.nodes.workspace.files.workspace import Entry, FileContent, Workspace, relative_glob
from mendgraph.nodes.workspace.sandboxes.backends import AUTO

try:
    from deepagents.backends import protocol
    from deepagents.backends.utils import create_file_data, slice_read_response
except ImportError as missing:
    raise ImportError("WorkspaceBackend is for deepagents: `pip install deepagents`.") from missing


class WorkspaceBackend(protocol.SandboxBackendProtocol):
    """A folder as the file system of a deep agent: `create_deep_agent(backend=WorkspaceBackend("/path/of/project"))`.

    `/app.py` is `app.py` in the folder. Files are opened by handle, so no link leads outside, even if it is created
    meanwhile. Files that `rules` deny, by name or content, are not read, searched or changed. Changes are atomic, and
    keep mode, BOM and line ends. Commands run with `sh` in a sandbox, in the folder under its real path: without
    network, with `.git` read-only, and without denied files. `glob` and `grep` skip files that git ignores; `grep`
    returns at most 100 lines. A failure is the `error` of the result.
    """

    def __init__(
        self,
        root: str,
        *,
        rules: Rules = DEFAULT_GUARDRAIL_RULES,
        timeout_s: float = 120.0,
        max_output_bytes: int = 100_000,
        readable: tuple[str, ...] = (),
        sandbox: str = AUTO,
    ) -> None:
        """A command may take `timeout_s` seconds, whatever it asks for; without a sandbox no command runs.

        Of its output, and of its errors, `max_output_bytes` are kept, half of them from the end. `readable` are more
        folders of the machine that programs may read. `sandbox` is a value of the setting of that name.

        Raises ValueError: the root is no folder to work in.
        """
        if isinstance(real := check_workspace(root), ToolError):
            raise ValueError(real.message)  # noqa: TRY004 - the value is wrong, not its type

        rules = (*rules, OWN_SETTINGS_RULE)
        contents = partial(judge_content, rules=rules)

        def judge(name: str, for_write: bool) -> ToolError | None:  # a file has one path, so that rules of paths hold
            inner = name.removeprefix(f"{real[1:]}/")
            twice = None
            if inner != name:
                twice = invalid(f"Files are named from the workspace: it is '/{inner}'.")

            return twice or judge_path(name, for_write, rules, real)

        self._workspace = Workspace(real, judge, contents=contents)
        limits = CommandRules(("sh",), timeout_s, max_output_bytes=max_output_bytes, readable=readable, sandbox=sandbox)
        refused = partial(is_refused, rules=rules)
        self._commands = open_commands(
            real, limits, partial(is_hidden, rules=rules, root=real), contents, refused=refused
        )
        self._engine = Engine(ActionRegistry(default_tools()), TraceSink(), EngineConfig(enable_cache=False))

    @property
    def id(self) -> str:
        """A unique name of this backend."""
        return f"workspace-{hash(self):x}"

    def ls(self, path: str) -> protocol.LsResult:
        """List a directory."""
        entries = self._workspace.list_directory(_name(path))
        if isinstance(entries, ToolError):
            return protocol.LsResult(error=entries.message)

        return protocol.LsResult(entries=list(map(_info, entries)))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> protocol.ReadResult:
        """Read lines of a text file, without private keys, or all bytes of another one; of at most 10 MB."""
        if isinstance(file := self._workspace.read_file(_name(file_path)), ToolError):
            return protocol.ReadResult(error=file.message)
        if (text := decode_text(file.data)) is not None:
            return slice_read_response(create_file_data(masked_blocks(text.text)), offset, limit)

        return protocol.ReadResult(file_data=create_file_data(b64encode(file.data).decode(), encoding="base64"))

    def write(self, file_path: str, content: str) -> protocol.WriteResult:
        """Create a text file, or replace one."""
        error, _ = self._run("write_file", file_path, content=content)
        return protocol.WriteResult(error, None if error else file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> protocol.EditResult:
        """Replace a text that stands once in the file, or all of them with `replace_all`."""
        arguments = {"old_str": old_string, "new_str": new_string, "replace_all": replace_all}
        error, data = self._run("edit_file", file_path, **arguments)
        return protocol.EditResult(error, None if error else file_path, data.get("replacements"))

    def delete(self, file_path: str) -> protocol.DeleteResult:
        """Delete a text file; a directory stays."""
        error, _ = self._run("delete_file", file_path)
        return protocol.DeleteResult(error, None if error else file_path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> protocol.GrepResult:
        """Find the lines that contain a plain text."""
        most = min(max(max_count or MAX_RESULTS, 1), MAX_RESULTS)
        arguments = {"pattern": pattern, "glob": glob or "", "literal": True, "max_results": most}
        error, data = self._run("search_files", path or "/", **arguments)
        lines: list[Any] = [{**match, "path": f"/{match['path']}"} for match in data.get("matches", ())]

        return protocol.GrepResult(error, None if error else lines, data.get("has_more", False))

    def glob(self, pattern: str, path: str | None = None) -> protocol.GlobResult:
        """Find the files whose names, relative to the directory, match the pattern."""
        if pattern.startswith("/"):
            pattern = f".{pattern}"

        relative = relative_glob(self._workspace, pattern)
        if isinstance(relative, ToolError):
            return protocol.GlobResult(relative.message)

        globs = parse_globs(relative)
        if not globs or ".." in relative.split("/"):
            problem = "is too long, has too many alternatives, or leads out of the folder"
            return protocol.GlobResult(f"The pattern {quoted(pattern[:80])} {problem}.")

        name = _name(path or "/")
        files = [entry for entry in self._workspace.walk(name) if entry.kind == "file"]
        matches: list[Entry] = []

        for glob in globs:  # the first meaning that matches anything counts
            matches = matches or [entry for entry in files if glob.matches(entry.path.removeprefix(f"{name}/"))]

        readable = [entry for entry in matches if self._workspace.denied(entry.path) is None]
        return protocol.GlobResult(matches=[_info(entry) for entry in readable])

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[protocol.FileUploadResponse]:
        """Write the files, each for itself."""
        responses = []
        for path, data in files:
            name = _name(path)
            old_sha256 = getattr(self._workspace.read_file(name), "sha256", "")
            result = self._workspace.write_file(name, data, expected_sha256=old_sha256)
            responses.append(protocol.FileUploadResponse(path, _standard(result)))

        return responses

    def download_files(self, paths: list[str]) -> list[protocol.FileDownloadResponse]:
        """Return the bytes of the files, of at most 10 MB each."""
        responses = []
        for path in paths:
            content = self._workspace.read_file(_name(path))
            data = getattr(content, "data", None)
            responses.append(protocol.FileDownloadResponse(path, data, _standard(content)))

        return responses

    def execute(self, command: str, *, timeout: int | None = None) -> protocol.ExecuteResponse:
        """Run a command line of `sh`, for `timeout` seconds at most. It sees the folder under its real name."""
        commands = self._commands
        if isinstance(commands, ToolError):
            return protocol.ExecuteResponse(commands.message, 126)  # as a shell has it for what it cannot run
        if isinstance(done := commands.run(["sh", "-c", command], timeout_s=timeout or None), ToolError):
            return protocol.ExecuteResponse(done.message, 126)

        outputs = [text for text in map(output_text, (done.stdout, done.stderr)) if text]
        if done.timed_out or done.limit:
            outputs.append(str(done.limit or f"The command was stopped after {done.limit_s:g} s."))

        exit_code = done.exit_code
        if done.timed_out:
            exit_code = 124

        is_cut = bool(done.stdout.left_out or done.stderr.left_out)
        return protocol.ExecuteResponse("\n".join(outputs), exit_code, is_cut)

    def _run(self, tool: str, path: str, **arguments: Any) -> tuple[str | None, JsonMap]:
        """Run a built-in tool; return its error and data. The file's current content counts as read."""
        hashes = {}
        content = self._workspace.read_file(_name(path))
        if isinstance(content, FileContent):
            hashes[content.path] = content.sha256

        call = ToolCall(call_id="", tool=tool, arguments={"path": _name(path), **arguments}, raw_arguments="")
        result = self._engine.run_sync(call, ToolContext(self._workspace, hashes)).result

        if result.error:
            return result.error.message, result.data

        return None, result.data


def _name(path: str) -> str:
    return path.strip("/") or "."


def _info(entry: Entry) -> protocol.FileInfo:
    is_dir = entry.kind == "directory"
    return protocol.FileInfo(path=f"/{entry.path}{'/' * is_dir}", is_dir=is_dir, size=entry.size)


def _standard(done: FileContent | ToolError) -> str | None:
    """Return deepagents' name of a failure, or the message."""
    words = {ToolErrorCode.NOT_FOUND: "file_not_found", ToolErrorCode.PERMISSION_DENIED: "permission_denied"}
    if isinstance(done, ToolError):
        return words.get(done.code, done.message)

    return None
