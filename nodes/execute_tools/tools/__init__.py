"""The tools that a model may call: one file for each, and beside them the pure ideas that they use."""

from nodes.execute_tools.registry import Tool
from nodes.execute_tools.tools.edit_blocks import edit_blocks
from nodes.execute_tools.tools.edit_file import edit_file
from nodes.execute_tools.tools.final_answer import final_answer
from nodes.execute_tools.tools.glob_files import glob_files
from nodes.execute_tools.tools.list_files import list_files
from nodes.execute_tools.tools.read_file import read_file
from nodes.execute_tools.tools.search_files import search_files
from nodes.execute_tools.tools.update_plan import update_plan
from nodes.execute_tools.tools.write_file import write_file


def default_tools() -> tuple[Tool, ...]:
    """The tools of a coding agent, in the order in which a model reads of them."""
    return (
        read_file,
        list_files,
        glob_files,
        search_files,
        edit_file,
        write_file,
        edit_blocks,
        update_plan,
        final_answer,
    )
