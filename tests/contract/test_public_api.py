"""The public API is as reviewed: `public_api.txt` is what users may rely on, and each change of it is a decision."""

from pathlib import Path

from tests.contract.command_names import command_facts, exit_code_facts, setting_facts, variable_facts
from tests.contract.python_names import exported_facts, record_facts
from tests.snapshots import Snapshots

FILE = Path(__file__).with_name("public_api.txt")

SECTIONS = {
    "Names that `mendgraph` exports": exported_facts,
    "Records that these names hold, take or return": record_facts,
    "Settings of a run: the fields of AgentContext": setting_facts,
    "Command line: options of `mendgraph` itself may stand anywhere": command_facts,
    "Exit codes": exit_code_facts,
    "Environment variables": variable_facts,
}


def test_public_api_equals_reviewed_snapshot(snapshots: Snapshots) -> None:
    blocks = ["\n".join([f"# {title}", "", *facts(), ""]) for title, facts in SECTIONS.items()]
    snapshots.check(FILE, "\n".join(blocks))
