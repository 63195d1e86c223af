"""The same graph and the same users under `langgraph dev`, for one machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mendgraph.graph.fleet.serving.engine import CONFIGURATION
from tests.doubles.replies import Say
from tests.runs.playing import changed_files
from tests.runs.scenario import use
from tests.runs.scenarios_of_work import CALC, EDIT, MENDED, TASK
from tests.runs.servers import Model, tenants_text, token
from tests.runs.studio import end_process, free_port, wait_until_ready

pytestmark = pytest.mark.studio


@dataclass(frozen=True)
class Dev:
    """The running server, with a client for each user."""

    url: str
    model: Model
    root: Path
    log: Path

    def client(self, user: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token(user)}"}, timeout=60)

    def project(self, user: str) -> Path:
        folder = self.root / user / "website"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "calc.py").write_text(CALC["calc.py"], encoding="utf-8")
        return folder


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """`langgraph dev` with the configuration for servers."""
    folder, port = tmp_path_factory.mktemp("dev"), free_port()
    with Model() as model:
        (folder / "projects").mkdir()
        (folder / "tenants.toml").write_text(tenants_text(folder / "projects", model.base_url), encoding="utf-8")
        command = [sys.executable, "-m", "langgraph_cli", "dev", "--config", str(CONFIGURATION), "--no-browser"]
        variables = {"MENDGRAPH_TENANTS": str(folder / "tenants.toml"), "OPENAI_API_KEY": "k-12345"}
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--no-reload", "--port", str(port), "--n-jobs-per-worker", "10"],
                cwd=folder,
                env={**os.environ, **variables, "MENDGRAPH_DATA_DIR": str(folder / "data")},
                stdout=log,
                stderr=log,
            )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/ok", process, folder / "log.txt")
            yield Dev(f"http://127.0.0.1:{port}", model, folder / "projects", folder / "log.txt")
        finally:
            end_process(process)


def run(client: httpx.Client, thread: str, request: str, **more: Any) -> Any:
    body = {"assistant_id": "mendgraph", "input": {"messages": [{"role": "user", "content": request}]}, **more}
    return client.post(f"/threads/{thread}/runs/wait", json=body)


def test_users_work_in_their_own_projects(dev: Dev) -> None:
    folders = {user: dev.project(user) for user in ("ann", "cleo")}
    with dev.client("ann") as ann, dev.client("cleo") as cleo:
        thread = ann.post("/threads", json={}).json()["thread_id"]
        dev.model.say(use(EDIT), Say("Done."))
        ended = run(ann, thread, TASK, context={"workspace": "website"}).json()
        assert ended["outcome"]["kind"] == "FINISHED"
        changed = {user: changed_files(folder, CALC) for user, folder in folders.items()}
        assert changed == {"ann": {"calc.py": MENDED}, "cleo": {}}
        assert ann.get(f"/threads/{thread}/state").json()["values"]["context"]["account"] == "ann"
        assert [cleo.get(f"/threads/{thread}{end}").status_code for end in ("", "/state", "/runs")] == [404, 404, 404]
        assert run(cleo, thread, "Hi.").status_code == 404
        assert cleo.post("/threads/search", json={}).json() == []


def test_nobody_is_anybody_else(dev: Dev) -> None:
    dev.project("ann")
    with httpx.Client(base_url=dev.url) as nobody, dev.client("bob") as bob:
        assert nobody.post("/threads", json={}).status_code == 401
        assert nobody.get("/threads/1/state", headers={"Authorization": "Bearer no"}).status_code == 401
        for foreign in ({"Origin": "http://evil.test"}, {"Host": "evil.test"}):
            assert bob.post("/threads", json={}, headers=foreign).status_code == 403
        thread = bob.post("/threads", json={"metadata": {"owner": "ann"}}).json()
        assert thread["metadata"]["owner"] == "bob"
        assert bob.patch(f"/threads/{thread['thread_id']}", json={"metadata": {"owner": "ann"}}).status_code == 200
        assert bob.get(f"/threads/{thread['thread_id']}").json()["metadata"]["owner"] == "bob"
        values = {"values": {"context": {"workspace": "/"}}, "as_node": "begin_turn"}
        made = {"supersteps": [{"updates": [values]}], "metadata": {"graph_id": "mendgraph"}}
        assert "written by its runs alone" in bob.post("/threads", json=made).text
        [forged] = bob.post("/threads/search", json={"metadata": {"graph_id": "mendgraph"}}).json()
        assert forged["values"] in ({}, None)
        as_ann = {"configurable": {"langgraph_auth_user": {"identity": "ann"}, "workspace": "website"}}
        answer = run(bob, thread["thread_id"], "Hi.", config=as_ann)
        assert answer.status_code == 422 or "project website" in answer.text
        state = {"values": {"context": {"workspace": "/", "account": "bob"}}, "as_node": "begin_turn"}
        assert bob.post(f"/threads/{thread['thread_id']}/state", json=state).status_code == 403
        written = run(bob, thread["thread_id"], "Hi.", input=None, command={"update": {"context": {"workspace": "/"}}})
        assert "written by its runs alone" in written.text
        assert bob.put("/store/items", json={"namespace": ["a"], "key": "a", "value": {}}).status_code in {403, 404}
        assert bob.post("/assistants", json={"graph_id": "mendgraph"}).status_code == 403
