"""The command is killed in its model calls and resumed by the next command: each run ends within its budget."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from mendgraph.graph.configuration.presets import HOSTED
from mendgraph.nodes.call_model.ledger import LEAST_CUT_OFF
from mendgraph.nodes.language.display import short_id
from mendgraph.nodes.records import JsonMap
from tests.extent import LEVEL, slow
from tests.providers.openai_gpt5 import OpenAIGpt5
from tests.providers.script import Turn, say, use
from tests.workspace_files import changed_files, write_files

RUNS: Final = (0, 6, 20)[LEVEL]
"""They are killed 9 and 40 times."""
MOST_KILLS: Final = 4
COMMAND: Final = Path(sys.executable).with_name("mendgraph")
FILES: Final = {"count.txt": "count = 1\n", "log.txt": "begin\n"}
DONE: Final = {"count.txt": "count = 11\n", "log.txt": "begin\none\ntwo\n"}
SCRIPT: Final = (
    use(("read_file", '{"path": "count.txt"}')),
    use(("append_file", '{"path": "log.txt", "content": "one\\n"}')),
    use(("edit_file", '{"path": "count.txt", "old_str": "count = 1\\n", "new_str": "count = 11\\n"}')),
    use(("append_file", '{"path": "log.txt", "content": "two\\n"}')),
    say("Counted.", thinks=True),
)
"""Each effect that happens twice, or never, is seen in the files."""


class CutReply(list[bytes]):
    """The events of a reply; before the one at `place` `kill` is called."""

    def __init__(self, events: list[bytes], place: int, kill: Callable[[], None]) -> None:
        super().__init__(events)
        self._place, self._kill = place, kill

    def __iter__(self) -> Iterator[bytes]:
        for place, event in enumerate(super().__iter__()):
            if place == self._place:
                self._kill()
            yield event


class KillingServer(OpenAIGpt5):
    """Kills the process whose request it answers: in calls and at reply events that `choice` picks."""

    def __init__(self, choice: random.Random) -> None:
        super().__init__(SCRIPT)
        self.process: subprocess.Popen[str] | None = None
        self.usages: list[JsonMap] = []
        """The usage of each request, as the provider bills a whole reply."""
        self._choice, self._kills_left = choice, choice.randint(1, MOST_KILLS)
        self._first = choice.randrange(len(SCRIPT))

    def events(self, turn: Turn) -> list[bytes]:
        events = super().events(turn)
        self.usages.append(turn.usage)
        is_first = len(self.usages) == self._first + 1
        if self._kills_left and (is_first or (len(self.usages) > self._first and self._choice.random() < 0.5)):
            self._kills_left -= 1
            return CutReply(events, self._choice.randrange(len(events)), self._kill)
        return events

    def _kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def run_command(server: KillingServer, place: Path, *words: str) -> tuple[int, str, str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "MENDGRAPH_DATA_DIR": str(place / "data"),
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_KEY": server.key,
    }
    command = [str(COMMAND), "--root", str(place / "workspace"), *words]
    pipes: JsonMap = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        server.process = process
        output, errors = process.communicate()
    return process.returncode, output, errors


@slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # connections that were cut off
@pytest.mark.parametrize("seed", range(1, 1 + RUNS))
def test_command_killed_in_its_model_calls_is_resumed_to_its_end(seed: int, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    write_files(workspace, FILES)
    with KillingServer(random.Random(seed)) as server:
        code, output, errors = run_command(server, tmp_path, "--json", "-m", "gpt-5-mini", "Count, and log it.")
        kills = 0
        while code == -signal.SIGKILL:
            kills += 1
            code, output, errors = run_command(server, tmp_path, "--json", "resume")

        assert (code, errors.count("BUDGET_STOP")) == (0, 0), errors
        runs = json.loads(run_command(server, tmp_path, "runs", "--json")[1])
        days = json.loads(run_command(server, tmp_path, "usage", "--json")[1])
        refusals = [refusal.why for refusal in server.refusals]

    assert refusals == []
    assert 1 <= kills <= MOST_KILLS
    assert changed_files(workspace, FILES) == DONE

    result, (run,), (day,) = json.loads(output), runs, days
    assert (result["outcome"]["kind"], result["outcome"]["answer"]) == ("FINISHED", "Counted.")
    assert errors.startswith(
        f"mendgraph: resumes run {short_id(run['run_id'])} (Count, and log it.), model gpt-5-mini, "
    )
    assert (run["state"], run["kind"], run["files"]) == ("finished", "FINISHED", sorted(FILES))

    usage, billed = result["outcome"]["usage"], server.usages
    calls, inputs, outputs = (usage[f"total_{name}"] for name in ("calls", "input_tokens", "output_tokens"))
    assert calls == len(billed) == len(SCRIPT) + kills
    assert outputs <= sum(usage["completion_tokens"] for usage in billed) + kills * LEAST_CUT_OFF
    assert outputs >= kills * LEAST_CUT_OFF
    assert inputs > 0.9 * sum(
        usage["prompt_tokens"] for usage in billed
    )  # of a call that was cut off it is an estimate
    assert calls <= HOSTED["max_calls_per_turn"]
    assert outputs <= HOSTED["max_output_tokens_per_session"]
    assert inputs <= HOSTED["max_input_tokens_per_session"]

    assert (day["calls"], day["input_tokens"], day["output_tokens"], day["unsettled"]) == (calls, inputs, outputs, 0)
    assert day["cost_usd"] == pytest.approx(usage["cost_usd"], abs=1e-6)
