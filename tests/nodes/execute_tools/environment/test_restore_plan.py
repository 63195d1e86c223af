import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from nodes.execute_tools.environment.journal_records import ChangeState, FileEffect, FileState, RecordedChange
from nodes.execute_tools.environment.restore_plan import (
    NO_FILE,
    Found,
    FoundAbove,
    FoundDirectory,
    LeftFile,
    NetEffect,
    Obstacle,
    RestorePlan,
    RestoreStep,
    Unusable,
    is_state,
    net_effects,
    restore_plan,
)
from nodes.records import ChangeKind

A, B, C, D = (FileState(letter, 0o644) for letter in "ABCD")
UNKNOWN = FileState("?", 0o644)


def change(number: int, *effects: tuple[str, FileState, FileState], made: Sequence[str] = ()) -> RecordedChange:
    found = tuple(FileEffect(*effect) for effect in effects)
    return RecordedChange(f"t{number}", number, number, found, tuple(made), ChangeState.DONE)


def chain(*effects: tuple[str, FileState, FileState], made: Sequence[str] = ()) -> list[RecordedChange]:
    """Changes of one file each, given oldest first, as the journal gives them: newest first."""
    return [change(number, effect, made=made) for number, effect in enumerate(effects)][::-1]


def plan(
    changes: Sequence[RecordedChange], refused: Mapping[str, LeftFile] | None = None, **found: Found
) -> RestorePlan:
    """The plan; `d__x` stands for the path "d/x"."""
    return restore_plan(changes, {name.replace("__", "/"): each for name, each in found.items()}, refused)


def steps(*found: RestoreStep) -> RestorePlan:
    return RestorePlan((), found, (), ())


def left(path: str, obstacle: Obstacle, detail: str = "") -> RestorePlan:
    return RestorePlan((), (), (), (LeftFile(path, obstacle, detail),))


# --- What a run did to one path in all


@pytest.mark.parametrize(
    ("effects", "net"),
    [
        ([(A, B)], NetEffect("f", A, B)),
        ([(A, B), (B, C)], NetEffect("f", A, C)),
        ([(NO_FILE, A), (A, B)], NetEffect("f", NO_FILE, B)),
        ([(A, NO_FILE), (NO_FILE, B)], NetEffect("f", A, B)),
        ([(A, B), (C, D)], NetEffect("f", A, D, gap=True)),
        ([(A, B), (C, D), (D, B)], NetEffect("f", A, B, gap=True)),
        ([(A, UNKNOWN), (C, D)], NetEffect("f", A, D)),
        ([(A, B), (UNKNOWN, D)], NetEffect("f", A, D)),
        ([(A, B), (B._replace(mode=0o755), C)], NetEffect("f", A, C, gap=True)),
        ([(NO_FILE, FileState("B")), (B, C)], NetEffect("f", NO_FILE, C)),
        ([(A, B), (NO_FILE, C)], NetEffect("f", A, C, gap=True)),
        ([(A, B), (B, A)], None),
        ([(NO_FILE, B), (B, NO_FILE)], None),
        (
            [(FileState("A", 0o4755), FileState("A", 0o755))],
            NetEffect("f", FileState("A", 0o4755), A._replace(mode=0o755)),
        ),
        ([(UNKNOWN, UNKNOWN)], NetEffect("f", UNKNOWN, UNKNOWN)),
    ],
)
def test_the_oldest_state_before_and_the_newest_after_count(
    effects: list[tuple[FileState, FileState]], net: NetEffect | None
) -> None:
    assert net_effects(chain(*(("f", *each) for each in effects))) == (() if net is None else (net,))


def test_net_effects_are_sorted_and_speak_of_each_path_once() -> None:
    moved = change(1, ("z", NO_FILE, A), ("b", A, NO_FILE))
    assert net_effects([change(2, ("z", A, C)), moved]) == (NetEffect("b", A, NO_FILE), NetEffect("z", NO_FILE, C))


@pytest.mark.parametrize(
    ("now", "wanted", "same"),
    [
        (A, A, True),
        (A, B, False),
        (A, A._replace(mode=0o600), False),
        (A, A._replace(mode=None), True),
        (FileState("A", 0o4755), FileState("A", 0o755), True),
        (NO_FILE, NO_FILE, True),
        (NO_FILE, A, False),
        (UNKNOWN, UNKNOWN, False),
        (A, UNKNOWN, False),
    ],
)
def test_a_state_is_its_bytes_and_the_mode_that_is_known(now: FileState, wanted: FileState, same: bool) -> None:
    assert is_state(now, wanted) is same


# --- One path


EDITED = chain(("f", A, B), ("f", B, C))


@pytest.mark.parametrize(
    ("changes", "now", "expected"),
    [
        (EDITED, C, steps(RestoreStep("f", C, A))),
        (EDITED, A, steps()),
        (EDITED, B, left("f", Obstacle.CHANGED_SINCE)),
        (EDITED, NO_FILE, left("f", Obstacle.CHANGED_SINCE)),
        (EDITED, C._replace(mode=0o600), left("f", Obstacle.CHANGED_SINCE)),
        (EDITED, Unusable("a link"), left("f", Obstacle.CHANGED_SINCE, "a link")),
        (chain(("f", A, B), ("f", C, D)), D, left("f", Obstacle.CHANGED_BETWEEN)),
        (chain(("f", A, B), ("f", C, D)), B, left("f", Obstacle.CHANGED_SINCE)),
        (chain(("f", A, B), ("f", C, D)), A, steps()),
        (chain(("f", UNKNOWN, B)), B, left("f", Obstacle.NOT_KEPT)),
        (chain(("f", UNKNOWN, B)), A, left("f", Obstacle.NOT_KEPT)),
        (chain(("f", A, UNKNOWN)), B, left("f", Obstacle.NOT_KEPT)),
        (chain(("f", A, UNKNOWN)), A, steps()),
        (chain(("f", NO_FILE, UNKNOWN)), Unusable("a link"), left("f", Obstacle.NOT_KEPT)),
        (chain(("f", NO_FILE, UNKNOWN)), NO_FILE, steps()),
        (chain(("f", A, UNKNOWN), ("f", UNKNOWN, B)), B, steps(RestoreStep("f", B, A))),
        (chain(("f", NO_FILE, FileState("B"))), B, steps(RestoreStep("f", B, NO_FILE))),
        (chain(("f", A, NO_FILE)), NO_FILE, steps(RestoreStep("f", NO_FILE, A))),
        (chain(("f", A, NO_FILE)), B, left("f", Obstacle.CHANGED_SINCE)),
        (chain(("f", A, A._replace(mode=0o755))), A._replace(mode=0o755), None),
    ],
)
def test_a_file_that_is_as_the_run_left_it_becomes_what_it_was(
    changes: list[RecordedChange], now: Found, expected: RestorePlan | None
) -> None:
    expected = expected or steps(RestoreStep("f", A._replace(mode=0o755), A))
    assert plan(changes, f=now) == expected


def test_what_the_run_left_as_it_had_found_it_is_not_touched() -> None:
    assert restore_plan(chain(("f", A, B), ("f", B, A)), {}) == steps()


def test_the_kind_of_a_step_says_what_happens_to_the_file() -> None:
    kinds = [RestoreStep("f", *each).kind for each in ((NO_FILE, A), (B, A), (B, NO_FILE), (B, B))]
    assert kinds == [ChangeKind.CREATED, ChangeKind.EDITED, ChangeKind.DELETED, ChangeKind.EDITED]


def test_a_refusal_counts_only_where_something_has_to_be_done() -> None:
    refused = {"f": LeftFile("f", Obstacle.DENIED, "no")}
    assert plan(EDITED, refused, f=C) == left("f", Obstacle.DENIED, "no")
    assert plan(EDITED, refused, f=A) == steps()
    assert plan(EDITED, refused, f=D) == left("f", Obstacle.CHANGED_SINCE)


def test_the_reason_is_one_phrase() -> None:
    assert LeftFile("f", Obstacle.CHANGED_SINCE).why == "Changed since the run"
    assert LeftFile("f", Obstacle.DENIED, "a rule").why == "May not be written: a rule"


# --- Files and directories in each other's place


def test_a_directory_that_the_run_put_in_the_place_of_a_file_makes_room_for_it() -> None:
    changes = [change(2, ("d/e/x", NO_FILE, B), made=("d", "d/e")), change(1, ("d", A, NO_FILE))]
    inside = FoundDirectory(frozenset({"d/e/x"}), frozenset({"d/e"}))
    assert plan(changes, d=inside, d__e__x=B) == RestorePlan(
        clearing=(RestoreStep("d/e/x", B, NO_FILE),),
        steps=(RestoreStep("d", NO_FILE, A),),
        directories=("d/e", "d"),
        left=(),
    )


@pytest.mark.parametrize(
    ("files", "directories", "x"),
    [({"d/x", "d/theirs"}, set(), B), ({"d/x"}, {"d/theirs"}, B), ({"d/x"}, set(), C)],
)
def test_a_directory_that_holds_what_the_run_did_not_make_stays(
    files: set[str], directories: set[str], x: FileState
) -> None:
    changes = [change(2, ("d/x", NO_FILE, B), made=("d",)), change(1, ("d", A, NO_FILE))]
    found = plan(changes, d=FoundDirectory(frozenset(files), frozenset(directories)), d__x=x)
    assert found.left[0] == LeftFile("d", Obstacle.CHANGED_SINCE, "it is a directory now")
    assert [each.path for each in found.left] == (["d"] if x == B else ["d", "d/x"])
    assert [step.path for step in found.all_steps] == (["d/x"] if x == B else [])


def test_a_directory_that_somebody_else_made_in_the_place_of_a_file_stays() -> None:
    changes = chain(("d", A, NO_FILE))
    empty = FoundDirectory(frozenset(), frozenset())
    assert plan(changes, d=empty) == left("d", Obstacle.CHANGED_SINCE, "it is a directory now")


def test_a_file_in_the_place_of_a_directory_goes_before_what_was_in_there_comes() -> None:
    changes = [change(1, ("d", NO_FILE, B), ("d/x", A, NO_FILE))]
    assert plan(changes, d=B, d__x=FoundAbove("d")) == RestorePlan(
        (RestoreStep("d", B, NO_FILE),), (RestoreStep("d/x", NO_FILE, A),), (), ()
    )
    assert plan(changes, d=C, d__x=FoundAbove("d")).left == (
        LeftFile("d", Obstacle.CHANGED_SINCE),
        LeftFile("d/x", Obstacle.CHANGED_SINCE, "a part of its path is a file now"),
    )


@pytest.mark.parametrize("now", [FoundAbove("d"), FoundDirectory(frozenset({"d/x/theirs"}), frozenset())])
def test_where_something_else_is_there_is_no_file_to_take_away(now: Found) -> None:
    assert plan(chain(("d/x", NO_FILE, A)), d__x=now) == steps()


def test_directories_that_the_run_made_go_innermost_first_but_not_where_a_file_comes_back() -> None:
    made = ("a", "a/b", "c", "c/d")
    changes = [change(1, ("a/b/new", NO_FILE, A), ("c/d/old", A, NO_FILE), made=made)]
    found = plan(changes, a__b__new=A, c__d__old=NO_FILE)
    assert found.directories == ("a/b", "a")


# --- A model

PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "d")
Tree = dict[str, FileState]
STATES = st.builds(FileState, st.sampled_from("ABC"), st.sampled_from((0o644, 0o755)))


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def fits(tree: Tree, path: str) -> bool:
    """Whether a file may be at the path: none is above it, and none below."""
    return not set(above(path)) & tree.keys() and not any(name.startswith(f"{path}/") for name in tree)


@dataclasses.dataclass
class World:
    """Files, and the directories that hold them; nothing removes a directory but the restoring."""

    tree: Tree
    directories: set[str]

    def put(self, path: str, state: FileState) -> list[str]:
        """Gives the directories that had to be made."""
        self.tree.pop(path, None)
        if not state.sha256:
            return []
        assert fits(self.tree, path)
        assert path not in self.directories
        self.tree[path] = state
        made = [each for each in above(path) if each not in self.directories]
        self.directories.update(made)
        return made

    def may_put(self, path: str) -> bool:
        return fits(self.tree, path) and path not in self.directories

    def found(self, path: str) -> Found:
        file = next((each for each in above(path) if each in self.tree), None)
        if file is not None:
            return FoundAbove(file)
        if path in self.directories:
            below = f"{path}/"
            return FoundDirectory(
                frozenset(name for name in self.tree if name.startswith(below)),
                frozenset(name for name in self.directories if name.startswith(below)),
            )
        return self.tree.get(path, NO_FILE)

    def remove_empty(self, directories: Sequence[str]) -> None:
        for name in directories:
            held = {*self.tree, *self.directories}
            if not any(each.startswith(f"{name}/") for each in held):
                self.directories.discard(name)


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from(PATHS), STATES, max_size=4), st.data())
def test_whatever_a_run_does_is_taken_back(start: Tree, data: st.DataObject) -> None:
    tree = {path: state for path, state in start.items() if fits({each: A for each in start if each != path}, path)}
    world = World(dict(tree), {each for path in tree for each in above(path)})
    directories, changes = set(world.directories), list[RecordedChange]()
    for number in range(data.draw(st.integers(0, 12))):
        path, state = data.draw(st.sampled_from(PATHS)), data.draw(STATES | st.just(NO_FILE))
        before = world.tree.get(path, NO_FILE)
        if state.sha256 and not world.may_put(path):
            # A command may replace a directory by a file, or a file by a directory.
            inside = [name for name in world.tree if name.startswith(f"{path}/")] + [
                name for name in above(path) if name in world.tree
            ]
            gone = [(name, world.tree.pop(name), NO_FILE) for name in inside]
            world.directories -= {path, *(each for each in world.directories if each.startswith(f"{path}/"))}
            made = world.put(path, state)
            changes.insert(0, change(number, *gone, (path, NO_FILE, state), made=made))
        elif before != state:
            changes.insert(0, change(number, (path, before, state), made=world.put(path, state)))
    found = {effect.path: world.found(effect.path) for effect in net_effects(changes)}
    done = restore_plan(changes, found)
    assert done.left == ()
    for phase in (done.clearing, done.steps):
        for step in sorted(phase, key=lambda step: not step.goal.sha256):  # in one change nothing makes room
            assert world.tree.get(step.path, NO_FILE) == step.now
            world.put(step.path, step.goal)
        world.remove_empty(done.directories)
    assert world.tree == tree
    assert world.directories <= directories, "a directory of the run stays"
    again = restore_plan(changes, {path: world.found(path) for path in found})
    assert (again.all_steps, again.left) == ((), ())
