"""What a step costs beside its model: CPU of this process for each step of a run, as ratios measured in one run.

A scripted endpoint in a process of its own asks for the same 4 kB file again and again (from another line each time)
and then answers. Three ways to serve it take turns: a plain httpx2 loop, a loop on the openai SDK, and the whole
machine with its guard, gateway, ledger and loop control. Nothing waits for a model. Then, what the database of a run
grows to: in turns of 2 x 1 kB, and in one turn of edits whose diffs have 2 kB each.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
from langgraph.checkpoint.sqlite import SqliteSaver
from rich.console import Console
from rich.table import Table

from graph import AgentContext, run_task
from graph.state import serializer
from graph.store import Store
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer
from tests.runs.growth import edit, talk, with_add_messages

FILE = "".join(f"line_{number:03} = {'x' * 30!r}\n" for number in range(90))
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a text file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}

EDITS = 100


def reply_after(steps: int) -> Callable[[dict[str, Any]], Reply]:
    """A script of this many reads, told from the request itself, and then the answer."""

    def reply(request: dict[str, Any]) -> Reply:
        done = sum(message["role"] == "tool" for message in request["messages"])
        if done >= steps:
            return Say("Done.")
        return Calls([("read_file", json.dumps({"path": "data.py", "start_line": 1 + done % 80, "limit": 500}))])

    return reply


def serve(steps: int, pipe: Connection) -> None:
    """Run the endpoint until the other end of the pipe closes."""
    with ScriptedServer(then=reply_after(steps)) as server:
        pipe.send(server.base_url)
        pipe.poll(None)


def loop(send: Callable[[list[dict[str, Any]]], dict[str, Any]], folder: Path) -> int:
    """The least that an agent does: send the history, run the tool, append. Returns the steps that it made."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read data.py."}]
    steps = 0
    while True:
        reply = send(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return steps
        for call in reply["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            lines = (folder / arguments["path"]).read_text("utf-8").splitlines(keepends=True)
            text = "".join(lines[arguments["start_line"] - 1 :])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"content": text})})
        steps += 1


def with_httpx(url: str, folder: Path) -> int:
    """A plain loop over HTTP."""
    with httpx2.Client(verify=False) as client:

        def send(messages: list[dict[str, Any]]) -> dict[str, Any]:
            body = {"model": "m", "messages": messages, "tools": [TOOL]}
            answer = client.post(f"{url}/chat/completions", json=body).json()
            return {k: v for k, v in answer["choices"][0]["message"].items() if v is not None}

        return loop(send, folder)


def with_openai(url: str, folder: Path) -> int:
    """The same loop on the openai SDK."""
    with openai.OpenAI(base_url=url, api_key="not-needed", http_client=httpx2.Client(verify=False)) as client:

        def send(messages: Any) -> dict[str, Any]:
            tools: Any = [TOOL]
            answer = client.chat.completions.create(model="m", messages=messages, tools=tools)
            return dict(answer.choices[0].message.model_dump(exclude_none=True))

        return loop(send, folder)


def with_mendgraph(url: str, folder: Path) -> int:
    """The whole machine, streaming, in the native protocol."""
    context = AgentContext(
        workspace=str(folder),
        base_url=url,
        model="m",
        protocol="native",
        max_calls_per_session=1_000,
        max_calls_per_turn=1_000,
        max_input_tokens_per_session=10**9,
    )
    return int(run_task("Read data.py.", context).outcome.usage["steps_in_current_turn"])


CONTESTANTS: dict[str, Callable[[str, Path], int]] = {
    "httpx2 loop": with_httpx,
    "openai SDK loop": with_openai,
    "mendgraph": with_mendgraph,
}


def cpu_ms(run: Callable[[str, Path], int], url: str, folder: Path, steps: int) -> float:
    """CPU milliseconds (user and system) of one step in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    made = run(url, folder)
    after = resource.getrusage(resource.RUSAGE_SELF)
    if made != steps:
        sys.exit(f"{run.__name__} made {made} steps instead of {steps}: nothing to compare")
    return 1_000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / steps


def measure(steps: int, rounds: int) -> dict[str, list[float]]:
    """Let the contestants take turns, after one unmeasured turn each."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(steps, theirs), daemon=True)
    server.start()
    theirs.close()
    url = ours.recv()
    measured: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data.py").write_text(FILE, "utf-8")
        for turn in range(rounds + 1):
            for contestant, run in CONTESTANTS.items():
                cost = cpu_ms(run, url, folder, steps)
                if turn:
                    measured[contestant].append(cost)
    ours.close()
    server.join(5)
    return measured


def growth_table(turns: int) -> Table:
    """How large a database becomes under durability "sync", also with LangGraph's own channel and its own saver."""
    with tempfile.TemporaryDirectory() as name:
        roots = [Path(name, each) for each in ("turns", "edits", "plain")]
        for root in roots:
            root.mkdir()
        with closing(Store(str(roots[0]))) as talking, closing(Store(str(roots[1]))) as editing:
            grown = {f"{turns} turns": talk(talking, roots[0], turns), f"{EDITS} edits": edit(editing, roots[1], EDITS)}
        with closing(sqlite3.connect(os.path.join(name, "plain.sqlite"), check_same_thread=False)) as connection:
            plain: Any = SimpleNamespace(saver=SqliteSaver(connection, serde=serializer()))
            grown[f"{turns} turns with add_messages"] = talk(plain, roots[2], turns, with_add_messages)
    table = Table(title="Size of a workspace's database")
    for column in ("", "MB at half", "MB at the end", "R² of a line"):
        table.add_column(column, justify="left" if not column else "right")
    for contestant, growth in grown.items():
        half, end = growth.sizes[len(growth.sizes) // 2 - 1], growth.sizes[-1]
        table.add_row(contestant, f"{half / 1e6:.1f}", f"{end / 1e6:.1f}", f"{growth.r_squared:.4f}")
    return table


def main() -> None:
    """Measure and print the tables; what the runs keep is removed again."""
    with tempfile.TemporaryDirectory() as name:
        os.environ[DATA_DIR_VARIABLE] = name
        report()


def report() -> None:
    """Do what the command line says."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--turns", type=int, default=200, help="how long the run is whose database is measured")
    chosen = options.parse_args()
    measured = measure(chosen.steps, chosen.rounds)
    floor = statistics.median(measured["httpx2 loop"])
    table = Table(title=f"CPU per step, {chosen.steps} steps, median of {chosen.rounds} rounds taken in turns")
    for column in ("", "ms a step", "lowest", "highest", "ratio to the httpx2 loop"):
        table.add_column(column, justify="left" if not column else "right")
    for name, costs in measured.items():
        median = statistics.median(costs)
        figures = (f"{median:.2f}", f"{min(costs):.2f}", f"{max(costs):.2f}", f"{median / floor:.2f}")
        table.add_row(name, *figures)
    Console().print(table)
    Console().print(growth_table(chosen.turns))


if __name__ == "__main__":
    main()
