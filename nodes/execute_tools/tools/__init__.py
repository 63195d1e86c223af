"""The tools that a model may call."""

from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools.about_run import delegate, final_answer, update_plan
from mendgraph.nodes.execute_tools.tools.apply_patch import apply_patch
from mendgraph.nodes.execute_tools.tools.edit_file import edit_blocks, edit_file, multi_edit
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.run_command import job_kill, job_output, run_checks, run_command, run_shell
from mendgraph.nodes.execute_tools.tools.search_files import glob_files, list_files, search_files
from mendgraph.nodes.execute_tools.tools.web import http_get
from mendgraph.nodes.execute_tools.tools.write_file import append_file, delete_file, move_file, write_file


def default_tools() -> tuple[Tool, ...]:
    """Return the tools of a coding agent, in the order of the prompt."""
    return (
        read_file, list_files, glob_files, search_files, edit_file, multi_edit, write_file, append_file, move_file,
        delete_file, edit_blocks, apply_patch, run_command, run_shell, job_output, job_kill, http_get, delegate,
        update_plan, run_checks, final_answer,
    )  # fmt: skip
