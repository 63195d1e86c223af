import re

import pytest

from benchmarks.real_model.checking import Answers, Every
from benchmarks.real_model.tasks.questions import QUESTIONS
from tests.benchmarks.real_model.tasks.verdicts import TASKS, verdict

GOOD = {
    "ask_parse_size": "It returns 3072, because Ki stands for 1024.",
    "ask_where_defined": "`retry_delay` is defined in transport.py.",
    "ask_key_error": 'The options hold no "port", and DEFAULTS has none either.',
    "ask_default_timeout": "45 seconds, the default of Options.timeout.",
}
BAD = {
    "ask_parse_size": "It returns 3000.",
    "ask_where_defined": "In handlers.py.",
    "ask_key_error": "Because the host db1 is not known.",
    "ask_default_timeout": "16 seconds.",
}


@pytest.mark.parametrize("name", [task.name for task in QUESTIONS])
def test_the_facts_are_asked_for(name: str) -> None:
    verdicts = [verdict(TASKS[name], answer=answer) for answer in (GOOD[name], BAD[name], "")]
    assert [said is None for said in verdicts] == [True, False, False]


@pytest.mark.parametrize("name", [task.name for task in QUESTIONS])
def test_a_changed_workspace_is_not_accepted(name: str) -> None:
    task = TASKS[name]
    path = next(iter(task.files))
    changed = {path: task.files[path] + "\n"}
    assert verdict(task, changed, GOOD[name]) == f"Nothing was to be changed, but {path} did."
    assert verdict(task, {"new.py": ""}, GOOD[name]) == "Nothing was to be changed, but new.py did."


@pytest.mark.parametrize("name", [task.name for task in QUESTIONS])
def test_the_request_does_not_give_the_answer_away(name: str) -> None:
    check = TASKS[name].check
    assert isinstance(check, Every)
    facts = [fact for each in check.checks if isinstance(each, Answers) for fact in each.facts]
    assert facts != []
    assert [fact for fact in facts if re.search(fact, TASKS[name].request, re.IGNORECASE)] == []
