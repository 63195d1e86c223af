"""LangGraph's clients for Node and for Python: one scenario has the same result with both."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import needs_node_modules
from tests.doubles.replies import Reply, Say, Stall
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.surfaces.serving.studio import Dev, model_name, native_server
from tests.vocabulary import JsonMap
from tests.workspace_files import changed_files, write_files

pytestmark = [slow, pytest.mark.studio]

HERE = Path(__file__).parent
SCENARIO = HERE / "client_scenario.json"
SEEN: JsonMap = json.loads((HERE / "client_seen.json").read_text(encoding="utf-8"))
"""What every client has to see."""

PLAYED: JsonMap = json.loads(SCENARIO.read_text(encoding="utf-8"))
CLIENTS = {"python": [sys.executable, str(HERE / "python_client.py")], "node": ["node", str(HERE / "node_client.mjs")]}


@dataclass(frozen=True)
class ClientResult:
    """The result of a client's script: its process, the changed files, and how many replies of the model are left."""

    done: subprocess.CompletedProcess[str]
    files: dict[str, str]
    unsaid: int


@pytest.fixture(scope="module")
def all_played(studio_server: Dev, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClientResult]:
    """The scripts of all clients that this machine can run, in parallel, each with its own model."""

    def play(language: str) -> ClientResult:
        folder = tmp_path_factory.mktemp(language)
        write_files(folder, PLAYED["files"])
        with native_server(*map(reply_of, PLAYED["replies"])) as model:
            command = [*CLIENTS[language], studio_server.url, str(SCENARIO), str(folder), model_name(model)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            return ClientResult(done, changed_files(folder, PLAYED["files"]), model.remaining)

    languages = [language for language in CLIENTS if language != "node" or not needs_node_modules.args[0]]
    with ThreadPoolExecutor(len(languages)) as people:
        return dict(zip(languages, people.map(play, languages), strict=True))


@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=needs_node_modules)])
def test_node_and_python_client_get_the_same_events(all_played: dict[str, ClientResult], language: str) -> None:
    played = all_played[language]
    assert (played.done.returncode, played.done.stderr, played.unsaid) == (0, "", 0)
    assert [*json.loads(played.done.stdout).items()] == [*SEEN.items()]  # to the letter
    assert played.files == {"notes.txt": "add subtracted\n"}


def reply_of(reply: JsonMap) -> Use | Reply:
    """A reply of the scenario as a message of the model."""
    if "stall" in reply:
        return Stall(2, Say(reply["stall"]))
    calls: Any = reply.get("calls")
    return use(*((tool, arguments) for tool, arguments in calls)) if calls else Say(reply["say"])
