"""Back to an earlier step: of the files alone, or of a whole run, which begins there once more.

As in `graph.runs`, a run is named by the beginning of its id, and what can be expected to fail is a `ToolError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from graph.judged_workspace import judged_workspace
from graph.open_store import thread_config, with_store_alone
from graph.run_records import find_run
from graph.run_steps import call_after
from graph.step_history import step_history
from graph.store import Store
from graph.way_on import TO_THE_CALL
from nodes.execute_tools.environment.artifacts import copy_artifacts
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.restoring import Restored, restore
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from nodes.language.history import is_request
from nodes.records import ToolError


@dataclass(frozen=True)
class Forked:
    """A new run that begins where its `parent` was after a step. `restored` are the files as they were then."""

    run_id: str
    parent: str
    restored: Restored


def undo_run(
    run: str,
    workspace: str = ".",
    *,
    from_step: int = 0,
    skip_changed: bool = False,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
) -> Restored | ToolError:
    """Restore the files as they were before the run, or before its step `from_step`; nothing else is touched.

    Nothing at all is changed where somebody else has changed one of them since (CONFLICT), or where the `rules` deny
    one (PERMISSION_DENIED), unless `skip_changed` leaves those as they are.
    """

    def undo(store: Store, root: str) -> Restored | ToolError:
        found = find_run(run, store.runs())  # its settings are not wanted, so they may be damaged
        if isinstance(found, ToolError):
            return found
        restored = restore(
            Journal(store.folder), judged_workspace(root, rules), found.run_id, from_step, skip_changed=skip_changed
        )
        if isinstance(restored, Restored):
            store.mark_undone(found.run_id)
        return restored

    return with_store_alone(workspace, "mendgraph undo", undo)


def fork_run(
    run: str,
    at: int,
    workspace: str = ".",
    *,
    skip_changed: bool = False,
    rules: tuple[FileGuardrailRule, ...] = DEFAULT_GUARDRAIL_RULES,
) -> Forked | ToolError:
    """Begin a new run with the conversation, the budget and the files of another one as they were after step `at`.

    `resume_run` goes on with it. What the other run did after the step is taken back; `skip_changed` and `rules` say
    what becomes of it where that cannot be, as in `undo_run`.
    NOT_FOUND names the steps after which a run can begin.
    """
    from graph.build import build_graph

    def fork(store: Store, root: str) -> Forked | ToolError:
        parent = store.run(run)
        if isinstance(parent, ToolError):
            return parent
        machine = build_graph(store.saver)
        due = call_after(step_history(store.saver, parent.run_id), at)
        if isinstance(due, ToolError):
            return due
        values = machine.get_state(due.config).values  # before anything is changed: it may be unreadable
        journal, files = Journal(store.folder), judged_workspace(root, rules)
        restored = restore(journal, files, parent.run_id, at + 1, skip_changed=skip_changed)
        if isinstance(restored, ToolError):
            return restored
        new = uuid4().hex
        copy_artifacts(parent.run_id, new)
        machine.update_state(thread_config(new), {**values, "run_id": new}, as_node=TO_THE_CALL)
        turns, request = _turn_at_work(values)
        context = values["context"].model_dump_json()
        store.add_fork(new, replace(parent, turns=turns, request=request, stored_context=context), at)
        return Forked(new, parent.run_id, restored)

    return with_store_alone(workspace, "mendgraph fork", fork)


def _turn_at_work(values: Mapping[str, Any]) -> tuple[int, str]:
    """The number and the words of the request that a state works on; see `graph.run_keeper` for the ids."""
    requests = [message for message in values["messages"] if is_request(message)]
    number = str(requests[-1].id).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0, requests[-1].text
