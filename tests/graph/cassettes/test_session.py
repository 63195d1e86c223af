"""Its whole behaviour is shown by `test_plugin.py`; here is what that cannot see."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graph.cassettes.session import FIXTURE, CassetteSession


def session(root: Path, *arguments: str) -> CassetteSession:
    return CassetteSession(str(root), str(root / "kept"), "", [str(root / each) for each in arguments])


def item(name: str, /, *chosen: object, uses: bool = True, fails: bool = False, **said: object) -> Any:
    marks = [pytest.Mark(FIXTURE, chosen, said, _ispytest=True)] if chosen or said else []
    return SimpleNamespace(
        nodeid=name,
        own_markers=marks,
        fixturenames=[FIXTURE] if uses else [],
        iter_markers=lambda _: marks,
        get_closest_marker=lambda _: "xfail" if fails else None,
    )


def refusal(account: CassetteSession, test: Any) -> str:
    """Why the test has no cassette."""
    with pytest.raises(pytest.fail.Exception) as caught:
        account.open(test)
    return str(caught.value)


def test_only_tests_with_a_cassette_are_noted(tmp_path: Path) -> None:
    account = session(tmp_path)
    account.note([item("a.py::b"), item("a.py::c", "d"), item("a.py::e", "no/name"), item("a.py::f", uses=False)])
    assert account.named == {"a/b.yaml", "a/d.yaml", "a/e.yaml"}


def test_a_name_may_be_given_as_such(tmp_path: Path) -> None:
    account = session(tmp_path)
    account.note([item("a.py::b", name="d"), item("a.py::c", model="m")])
    assert account.named == {"a/d.yaml", "a/c.yaml"}
    assert "there is no cassette kept/a/d.yaml" in refusal(account, item("a.py::b", name="d"))


def test_two_tests_of_one_name_do_not_share_a_cassette(tmp_path: Path) -> None:
    account = session(tmp_path)
    first, second = item("a.py::b", "d"), item("a.py::c", "d")
    account.note([first, second])
    told = "kept/a/d.yaml is also the cassette of a.py::b: give one of the two another name"
    assert refusal(account, second) == told
    assert refusal(account, first).startswith("there is no cassette kept/a/d.yaml: ")


def test_an_expected_failure_does_not_hide_what_is_wrong_with_a_cassette(tmp_path: Path) -> None:
    account = session(tmp_path)
    plain, expected = item("a.py::b"), item("a.py::c", fails=True)
    missing = [refusal(account, each) for each in (plain, expected)]
    assert account.finish() == [f"a.py::c: {missing[1]}"]
    controller = session(tmp_path)
    controller.hear(account.told())
    assert controller.finish() == [f"a.py::c: {missing[1]}"]


def test_a_module_of_which_tests_were_selected_is_not_whole(tmp_path: Path) -> None:
    account = session(tmp_path, "deep/a.py::b", "c.py", "-k")
    for module in ("deep/a.py", "c.py", "d.py"):
        account.note_module(module)
    assert account.whole == {"c.py", "d.py"}


def test_what_workers_tell_is_put_together(tmp_path: Path) -> None:
    controller, worker = session(tmp_path), session(tmp_path)
    worker.note([item("a.py::b")])
    worker.note_module("a.py")
    worker.recorded.append("kept/a/b.yaml")
    told = worker.told()
    for _ in range(2):
        controller.hear(told)
    assert (controller.named, controller.whole) == ({"a/b.yaml"}, {"a.py"})
    assert controller.recorded == ["kept/a/b.yaml"] * 2


def test_files_of_other_tools_and_files_that_vanish_are_let_alone(tmp_path: Path) -> None:
    account = session(tmp_path)
    assert account.finish() == []
    (tmp_path / "kept" / "a").mkdir(parents=True)
    (tmp_path / "kept" / "a" / "gone.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "kept" / "a" / "foreign.yaml").write_text("interactions: []\n", encoding="utf-8")
    (tmp_path / "kept" / "a" / "ours.yaml").write_text("recorded_from: x\n", encoding="utf-8")
    account.note_module("a.py")
    assert account.finish() == ["kept/a/ours.yaml is not used by any test: delete it, or bring its test back"]
