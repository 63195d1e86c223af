"""A run killed between an approval and its effects, and after them: each effect is approved and happens once."""

from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer, PlayResult
from tests.extent import LEVEL, sampled, slow
from tests.surfaces.runs.approval_play import AFTER, BUG, QUESTION, THREE, requested_calls, session


def run_and_kill(server: ForkServer, root: Path, way: str, death: str) -> PlayResult:
    """A process that answers or resumes, and is killed at `death`."""
    return server.run("taken_up", {"root": str(root), "way": way, "death": death})


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of a run that waits for an answer, whose process has ended."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    root.mkdir()
    (root / "calc.py").write_text(BUG, encoding="utf-8")
    with session(root, THREE) as now:
        requested_calls(now.stream("Fix add"))
    return root


@sampled
@pytest.mark.parametrize("death", ["guarded", "before", "after"] if LEVEL else ["before"])
def test_kill_after_the_answer_neither_loses_nor_repeats_an_effect(
    server: ForkServer, waiting: Path, death: str
) -> None:
    killed = run_and_kill(server, waiting, "answer", death)
    assert killed.killed
    resumed = run_and_kill(server, waiting, "resume", "never")
    if death == "guarded" and resumed.value[0] == "Asked":  # killed while guard's verdict was being saved
        assert resumed.value == ["Asked", {"calc.py": BUG}]
        return
    assert resumed.value == ["Ended", AFTER]
    assert not (waiting.parent / "rung").exists()


@slow
def test_kill_before_the_answer_asks_again(server: ForkServer, waiting: Path) -> None:
    resumed = run_and_kill(server, waiting, "resume", "never")
    assert resumed.value == ["Asked", {"calc.py": BUG}]
    answered = run_and_kill(server, waiting, "answer", "never")
    assert answered.value == ["Ended", AFTER]


@pytest.fixture
def two_hunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of a run that waits for an answer about two hunks, whose process has ended."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    root.mkdir()
    (root / "long.py").write_text("a = 1\n" + "\n" * 9 + "b = 1\n", encoding="utf-8")
    edits = ", ".join(f'{{"old_str": "{name} = 1", "new_str": "{name} = 2"}}' for name in "ab")
    with session(root, f'tool: multi_edit({{"path": "long.py", "edits": [{edits}]}})') as now:
        requested_calls(now.stream("Edit"))
    return root


def choose_and_kill(server: ForkServer, root: Path, death: str) -> None:
    """Choose the second hunk in a process that is killed at `death`."""
    chosen = {"decisions": {"0": {"action": "approve", "hunks": [2]}}}
    assert server.run("taken_up", {"root": str(root), "way": "answer", "death": death, "answer": chosen}).killed


@sampled
@pytest.mark.parametrize("death", ["before", "after"] if LEVEL else ["after"])
def test_kill_after_the_choice_of_hunks_writes_them_once_and_tells_the_model(
    server: ForkServer, two_hunks: Path, death: str
) -> None:
    choose_and_kill(server, two_hunks, death)
    resumed = run_and_kill(server, two_hunks, "resume", "never")
    assert resumed.value == ["Ended", {"long.py": "a = 1\n" + "\n" * 9 + "b = 2\n"}]
    with session(two_hunks) as now:
        texts = "".join(message.text for message in now.result().messages)
    assert texts.count("a person approved only 2:") == 1


@slow
def test_chosen_hunks_that_are_gone_before_the_effect_are_a_conflict(server: ForkServer, two_hunks: Path) -> None:
    choose_and_kill(server, two_hunks, "before")
    (two_hunks / "long.py").write_text("a = 1\nb = 1\n", encoding="utf-8")
    assert run_and_kill(server, two_hunks, "resume", "never").value == ["Ended", {"long.py": "a = 1\nb = 1\n"}]
    with session(two_hunks) as now:
        assert "The hunks that a person approved are not in the diff" in now.result().messages[2].text


def test_question_is_asked_again_after_a_kill_and_its_answer_is_stored_once(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    with session(root, QUESTION, questions=True) as now:
        requested_calls(now.stream("Paint it"))

    assert run_and_kill(server, root, "resume", "never").value[0] == "Asked"
    answer = {"root": str(root), "way": "answer", "death": "before", "answer": "blue"}
    assert server.run("taken_up", answer).killed
    assert run_and_kill(server, root, "resume", "never").value == ["Ended", {}]

    with session(root) as now:
        texts = [message.text for message in now.result().messages]
    assert "".join(texts).count("blue") == 1


def test_raised_limit_is_asked_about_until_answered_and_survives_a_kill(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    root.mkdir()
    (root / "calc.py").write_text(BUG, encoding="utf-8")
    with session(root, THREE.splitlines()[0], mode="auto", on_limit="ask", max_calls_per_turn=1) as now:
        (limit,) = requested_calls(now.stream("Fix add"))
    assert limit["arguments"] == {"max_calls_per_turn": 2}

    assert run_and_kill(server, root, "resume", "never").value[0] == "Asked"
    raised = {"decisions": {"0": {"action": "edit", "arguments": {"max_calls_per_turn": 3}}}}
    answer = {"root": str(root), "way": "answer", "death": "raised", "answer": raised}
    assert server.run("taken_up", answer).killed
    assert run_and_kill(server, root, "resume", "never").value == ["Ended", {"calc.py": AFTER["calc.py"]}]


@slow
def test_file_changed_between_approval_and_effect_is_left_alone(server: ForkServer, waiting: Path) -> None:
    killed = run_and_kill(server, waiting, "answer", "guarded")
    assert killed.killed
    (waiting / "calc.py").write_text("# new\n" + BUG, encoding="utf-8")
    resumed = run_and_kill(server, waiting, "resume", "never")
    assert resumed.value == ["Ended", {"calc.py": "# new\n" + BUG, "log.txt": "two"}]
