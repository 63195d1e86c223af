"""Runs whose store is shared: many runs on few connections, on several machines, and with lost connections."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pytest

from mendgraph import RunResult, list_runs, resume_run, run_task
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, OutcomeKind, ProviderFailure
from mendgraph.nodes.workspace.files.deadline import pause
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.database import read_url
from mendgraph.nodes.workspace.store.postgres import MOST_CONNECTIONS, PostgresPool, close_postgres, pool_of
from mendgraph.nodes.workspace.store.run_folder import give_workspace_name, workspace_folder, workspace_name
from mendgraph.nodes.workspace.store.run_lock import Owner
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.wire import Wire
from tests.extent import LEVEL, slow
from tests.postgres import SETTINGS, postgres_programs, running_postgres, server_account, wait_for_server
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.run_plays import LINES, context, list_states, project, run_lines, tree, use
from tests.surfaces.terminal.stopping import stalled_endpoint, start_command

WORD = "-".join(("plum", "51", "orchard"))


class Disturbed(HistoryModel):
    """Something happens before the model's third reply."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(LINES)
        self._happens: Callable[[], None] | None = happens

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        if self._happens and sum(message["role"] == "assistant" for message in call.prompt.messages) == 2:
            happens, self._happens = self._happens, None
            happens()
        return super().complete(call, on_text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def end_of(result: object) -> tuple[OutcomeKind, str]:
    assert isinstance(result, RunResult), result
    return result.outcome.kind, result.outcome.reason


FINISHED = (OutcomeKind.FINISHED, "answered")
FAILED = (OutcomeKind.SYSTEM_ERROR, "store_failed")


# --- Many runs


@slow
def test_fifty_concurrent_runs_share_few_connections(shared_store: str, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(50)]
    for folder in folders:
        folder.mkdir()

    def work(folder: Path) -> tuple[OutcomeKind, str]:
        return end_of(run_task("Hello", context(folder, audit=False), model=HistoryModel((Say("Hi."),))))

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(work, folders)) == [FINISHED] * 50
    with psycopg.connect(shared_store) as admin:
        (open_now,) = admin.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'mendgraph' AND datname = current_database()"
        ).fetchone() or (0,)
        (runs,) = admin.execute("SELECT count(DISTINCT workspace) FROM mendgraph.all_runs").fetchone() or (0,)
    assert (open_now <= MOST_CONNECTIONS + 1, runs) == (True, 50)
    assert [len(list_states(folder)) for folder in folders[:3]] == [1, 1, 1]


# --- Lost connections


class Server:
    """A server that a test may stop and start again."""

    def __init__(self, url: str) -> None:
        self.url, self._folder = url, Path(unquote(url.partition("host=")[2]))
        self._again: subprocess.Popen[str] | None = None

    def stop(self) -> None:
        """Stop it; all connections are lost."""
        pid = int(Path(self._folder, "data", "postmaster.pid").read_text(encoding="ascii").split()[0])
        os.kill(pid, signal.SIGINT)
        while Path(self._folder, "data", "postmaster.pid").exists():
            pause(0.01)
        if self._again is not None:
            self._again.wait(60)

    def start(self) -> None:
        """Start it again, where it was."""
        user, group = server_account()
        settings = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        command = [f"{postgres_programs()}/postgres", "-D", f"{self._folder}/data", "-k", str(self._folder), *settings]
        log = Path(self._folder, "log")
        with log.open("ab") as output:
            self._again = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=user, group=group, text=True
            )
        wait_for_server(self.url, self._again, log)

    def close(self) -> None:
        """Stop it for good."""
        if self._again is not None:
            with suppress(ProcessLookupError):
                self._again.send_signal(signal.SIGINT)
            self._again.wait(60)


@slow
def test_restarted_server_is_waited_for_and_a_stopped_one_ends_the_run_without_loss(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = project(tmp_path / "whole")
    run_lines(undisturbed)
    with running_postgres() as url:
        server = Server(url)
        monkeypatch.setenv("MENDGRAPH_STORE_URL", url)
        try:

            def start_anew() -> None:
                server.stop()
                starting.start()

            starting = threading.Timer(0.5, server.start)
            other = project(tmp_path / "other")
            assert end_of(run_task("Mend add.", context(other), model=Disturbed(start_anew))) == FINISHED
            assert tree(other) == tree(undisturbed)
            starting.join()
            with monkeypatch.context() as patch:
                patch.setattr("mendgraph.nodes.workspace.store.postgres.LONGEST_WAIT_S", 0.5)
                result = run_task("Mend add.", context(folder), model=Disturbed(server.stop), thread_id="r")
                assert end_of(result) == FAILED
            assert "The shared store 'postgres' on " in result.outcome.message
            refused = list_runs(str(folder))
            assert "cannot be reached" in getattr(refused, "message", "")
            server.start()
            assert end_of(resume_run("r", str(folder), model=HistoryModel(LINES))) == FINISHED
            assert tree(folder) == tree(undisturbed)
            assert [changes.step for changes in Journal(str(workspace_folder(str(folder)))).changes_of("r")] == [
                5,
                4,
                3,
                2,
            ]
        finally:
            close_postgres()
            server.close()


CUTS = range(90, 930, 15 if LEVEL == 2 else 45)
"""What of all that a run sends to the server, once it is at work, does not arrive, or is not answered."""


@slow
@pytest.mark.parametrize("late", [False, True])
def test_run_continues_after_its_connection_is_cut_at_any_point(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    undisturbed = project(tmp_path / "whole")
    run_lines(undisturbed)
    for at in CUTS:
        cut = project(tmp_path / str(at))
        with closing(Wire(shared_store, at, late=late)) as wire:
            monkeypatch.setenv("MENDGRAPH_STORE_URL", wire.url)
            result = run_task("Mend add.", context(cut), model=HistoryModel(LINES), thread_id=f"r{at}")
            close_postgres()
        assert (end_of(result), tree(cut) == tree(undisturbed)) == (FINISHED, True), (at, result.outcome)
        monkeypatch.setenv("MENDGRAPH_STORE_URL", shared_store)
        steps = [changes.step for changes in Journal(str(workspace_folder(str(cut)))).changes_of(f"r{at}")]
        assert (steps, sum(message.text == "It adds now." for message in result.messages)) == ([5, 4, 3, 2], 1), at


@slow
def test_process_that_lost_the_workspace_changes_nothing_and_another_continues(
    shared_store: str, folder: Path, tmp_path: Path
) -> None:
    undisturbed = project(tmp_path / "whole")
    run_lines(undisturbed)
    url = read_url(shared_store)
    elsewhere_pool = PostgresPool(url)
    elsewhere = elsewhere_pool.locks
    trees: list[Any] = []

    def lose_it() -> None:
        connection = pool_of(url).locks._connection
        assert connection is not None
        with psycopg.connect(shared_store, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 60000)", (connection.info.backend_pid,))
        assert elsewhere.take(str(workspace_name(str(workspace_folder(str(folder))))), Owner("r", host="far away"))
        trees.append(tree(folder))

    result = run_task("Mend add.", context(folder), model=Disturbed(lose_it), thread_id="r")
    assert end_of(result) == FAILED
    assert result.outcome.message.startswith("This process lost its lock on the workspace")
    assert tree(folder) == trees[0]
    busy = resume_run("r", str(folder), model=HistoryModel(LINES))
    assert end_of(busy) == (OutcomeKind.SYSTEM_ERROR, "workspace_busy")
    elsewhere.release(str(workspace_name(str(workspace_folder(str(folder))))))
    elsewhere_pool.close()
    assert end_of(resume_run("r", str(folder), model=HistoryModel(LINES))) == FINISHED
    assert tree(folder) == tree(undisturbed)


@slow
def test_thread_is_active_on_one_machine_and_continues_on_another_after_a_kill(
    shared_store: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine is a process with its own copy of the workspace and data folder."""
    name = "ann/notes"
    other_machine = folder.parent / "there" / "project"
    shutil.copytree(folder, other_machine)
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(other_machine.parent / "data"))
    assert give_workspace_name(str(workspace_folder(str(other_machine))), name) is None
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(folder.parent / "data"))
    assert give_workspace_name(str(workspace_folder(str(folder))), name) is None
    with (
        stalled_endpoint("I think hard") as base_url,
        start_command(other_machine, base_url, "--json", "Look here.") as other,
    ):
        run = first_run(folder, other.pid)
        busy = resume_run(run, str(folder), model=HistoryModel((Say("Hi."),)))
        assert end_of(busy) == (OutcomeKind.SYSTEM_ERROR, "workspace_busy")
        assert isinstance(busy, RunResult)
        assert f"process {other.pid}" in busy.outcome.message
        other.send(signal.SIGKILL)
        other.end()
    result = resume_run(run, str(folder), model=HistoryModel((Say("Hi."),)))
    while isinstance(result, RunResult) and result.outcome.reason == "workspace_busy":
        result = resume_run(run, str(folder), model=HistoryModel((Say("Hi."),)))  # the server hears of the end at once
    assert end_of(result) == FINISHED
    assert shared_store


def first_run(folder: Path, pid: int) -> str:
    """The id of the only run of the workspace, once its process has taken the workspace and written it down."""
    while True:
        os.kill(pid, 0)  # it is at work still
        pause(0.02)
        runs = list_runs(str(folder))
        if isinstance(runs, tuple) and runs and runs[0].standing == "working":
            return runs[0].run_id


# --- What is stored


def test_password_and_secrets_are_not_in_the_database_or_in_messages(
    shared_store: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning, _, options = shared_store.partition("?")
    url = f"{beginning.replace('tester@', f'tester:{quote(WORD)}@')}?{options}"
    monkeypatch.setenv("MENDGRAPH_STORE_URL", url)
    lines = (*LINES[:-1], Say(f"The password is {WORD}, and {quote(WORD)}."))
    result = run_task(f"Use {WORD} to mend add.", context(folder), model=HistoryModel(lines))
    assert end_of(result) == FINISHED
    assert WORD not in repr(result)
    with psycopg.connect(shared_store) as admin:
        tables = admin.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('mendgraph') AND relkind = 'r'"
        )
        for (table,) in tables.fetchall():
            for row in admin.execute(f"SELECT * FROM mendgraph.{table}".encode()):  # noqa: S608 - ours
                assert WORD.encode() not in b" ".join(
                    cell if isinstance(cell, bytes) else str(cell).encode() for cell in row
                )
    close_postgres()


@slow
@pytest.mark.usefixtures("any_store")
def test_any_thread_name_and_any_text_are_restored(folder: Path, any_store: str) -> None:
    request = "Look \ue000 at it: 'x' %s ?"
    for thread in ("a:b", "é\ue000", "'; DROP TABLE runs; --", "%s?"):
        result = run_task(request, context(folder), model=HistoryModel((Say("Done \ue000 it."),)), thread_id=thread)
        assert end_of(result) == FINISHED
        runs = list_runs(str(folder))
        assert isinstance(runs, tuple)
        assert (runs[0].run_id, runs[0].request, runs[0].standing) == (thread, request, "finished")
        assert result.messages[0].text == request

    result = run_task("Look.", context(folder), model=HistoryModel((Say("Done."),)), thread_id="\ud800")
    assert end_of(result) == (FINISHED if any_store == "postgresql" else FAILED)


# --- Environment of commands


@needs_sandbox
@pytest.mark.usefixtures("shared_store")
def test_programs_cannot_see_the_store_url(folder: Path) -> None:
    calls = ("run_command", {"argv": ["env"]})
    model = HistoryModel((use(calls), Say("Done.")))
    result = run_task("Look.", context(folder, allowed_programs=("env",), mode="auto"), model=model)
    (output,) = [message.text for message in result.messages if message.type == "tool"]
    assert ("PATH=" in output, "MENDGRAPH" in output) == (True, False)
