"""`from mendgraph import ...` gives the public names, and loads nothing before they are used."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import mendgraph
from tests.architecture.product import ROOT
from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.extent import slow

OTHERS = ("langchain.agents", "deepagents", "langgraph_supervisor", "langgraph_swarm")
PARTS_FOR_OTHERS = ("Middleware", "Backend", "AgentStoppedError")
HEAVY = ("langgraph", "langchain_core", "langchain_openai", "openai", "pydantic")


def test_public_name_is_the_object_of_its_module() -> None:
    for name in mendgraph.__all__:
        assert getattr(mendgraph, name) is getattr(import_module(mendgraph._HOMES[name]), name), name


DESCRIBED_WHERE_IT_STANDS = {"Event", "Approve", "DEFAULT_GUARDRAIL_RULES"}
"""Names of values, which have no docstring of their own."""


def test_public_name_has_a_docstring_for_itself_and_its_arguments() -> None:
    """A function's docstring also describes each argument."""
    for name in sorted(set(mendgraph.__all__) - DESCRIBED_WHERE_IT_STANDS):
        public = getattr(mendgraph, name)
        docstring = inspect.getdoc(public) or ""
        assert docstring.partition("\n")[0].endswith((".", ":")), name
        assert not docstring.startswith(f"{name}("), name  # what `dataclass` writes where nobody wrote anything
        elsewhere = ("as `load_mcp_tools`", "otherwise as", "are those of")
        if inspect.isfunction(public) and not any(phrase in docstring.lower() for phrase in elsewhere):
            unsaid = [
                parameter
                for parameter in inspect.signature(public).parameters
                if parameter not in docstring and parameter not in OF_ALL
            ]
            assert (name, unsaid) == (name, [])


OF_ALL = {"workspace", "run", "options", "function", "step"}
"""Arguments that the module says of all its functions."""


MOST_MODULES = 216
"""Of ours, that a run loads which reads a file and answers."""
OF_OTHER_RUNS = (
    *("mendgraph.graph.cassettes", "mendgraph.graph.fleet", "mendgraph.graph.report", "mendgraph.graph.terminal"),
    *(
        "mendgraph.graph.langchain.hooks",
        "mendgraph.graph.machine.children",
        "mendgraph.graph.persistence.postgres_saver",
    ),
    *("mendgraph.nodes.call_model.local_model", "mendgraph.nodes.execute_tools.mcp_tools"),
    *("mendgraph.nodes.workspace.copies", "mendgraph.nodes.execute_tools.network"),
    *("mendgraph.nodes.execute_tools.edits.definitions", "mendgraph.nodes.execute_tools.evidence.examples"),
    *("mendgraph.nodes.workspace.journal.restoring", "mendgraph.nodes.workspace.store.postgres"),
    "mendgraph.nodes.small_model",
    *("jsonschema", "langchain.agents", "mcp", "prompt_toolkit", "psycopg", "rapidfuzz", "ray", "typer", "vcr"),
)
"""What only a run loads that edits, delegates, undoes, or is run in another way; and packages of others."""


def test_version_is_the_installed_one_and_an_unknown_name_raises() -> None:
    assert mendgraph.__version__ == version("mendgraph")
    with pytest.raises(AttributeError, match="module 'mendgraph' has no attribute 'run_tusk'"):
        _ = mendgraph.run_tusk


FIRST_RUN = f"""
import sys
import mendgraph
print([name for name in {HEAVY!r} if name in sys.modules])
from mendgraph import AgentContext, run_task
result = run_task("How many lines has a.txt?", AgentContext(workspace=sys.argv[1], model="m", base_url=sys.argv[2]))
print(result.answer, *sys.modules, sep="\\n")
"""


def test_import_is_cheap_and_a_first_run_loads_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    with ScriptedServer([Calls([("read_file", '{"path": "a.txt"}')]), Say("It has one line.")]) as server:
        command = [sys.executable, "-c", FIRST_RUN, str(tmp_path), server.base_url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy, answer, *loaded = done.stdout.splitlines()
    assert (heavy, answer) == ("[]", "It has one line.")
    assert sorted({*OF_OTHER_RUNS}.intersection(loaded)) == []
    assert len([name for name in loaded if name.startswith("mendgraph.")]) <= MOST_MODULES


CHAT_MODEL_RUN = """
import sys
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from mendgraph import run_task
run_task("Say hello", workspace=sys.argv[1], model=GenericFakeChatModel(messages=iter([AIMessage("Hello.")])))
print("openai" in sys.modules)
"""


@slow
def test_run_with_a_chat_model_of_another_package_does_not_load_openai(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHAT_MODEL_RUN, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


@slow
def test_programs_with_langchain_load_no_other_agent_packages() -> None:
    """Those packages take a second to load: only our modules named after them need them."""
    files = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests" / "langchain").glob("*.py")]
    imports = [node for file in files for node in ast.walk(file) if isinstance(node, ast.ImportFrom)]
    imported = {(str(statement.module), name.name) for statement in imports for name in statement.names}
    plain = [
        f"from {module} import {name}"
        for module, name in sorted(imported)
        if module.startswith("mendgraph")
        and "hooks" not in (*module.split("."), name)  # which a machine with hooks imports
        and not name.endswith(PARTS_FOR_OTHERS)
    ]
    assert "from mendgraph import build_graph" in plain
    program = "\n".join(["import sys", *plain, f"print([name for name in {OTHERS!r} if name in sys.modules])"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
