import importlib
import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.mutants.loading import import_mutated, key_of, loaded_functions, mutated_code, noting_calls
from benchmarks.mutants.mutation import mutants_of

SOURCE = """LIMIT = 3

def wrapped(function):
    def outer():
        return function() + 100
    return outer

@wrapped
def decorated():
    return 1

class Box:
    @property
    def size(self):
        return 2

    @size.setter
    def size(self, value):
        self.last = value + 4
"""
NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"module_for_mutants_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield name
    sys.meta_path[:] = finders
    sys.modules.pop(name, None)


def test_a_mutated_function_takes_the_place_of_the_loaded_one_however_it_is_reached(module: str) -> None:
    loaded = importlib.import_module(module)
    path = str(loaded.__file__)
    functions, before = loaded_functions(path), (loaded.decorated, loaded.Box())
    for mutant in mutants_of("a.py", SOURCE):
        if mutant.applied(SOURCE).count("return None") or mutant.text not in {"2", "3"} or not mutant.function:
            continue
        key = key_of(mutant, SOURCE, functions)
        assert key is not None
        code = mutated_code(mutant.applied(SOURCE), path, key)
        assert code is not None
        for function in functions[key]:
            function.__code__ = code
    assert (before[0](), before[1].size) == (102, 3)


def test_functions_of_one_name_are_told_apart_by_their_lines(module: str) -> None:
    loaded = importlib.import_module(module)
    functions = loaded_functions(str(loaded.__file__))
    keys = {mutant.text: key_of(mutant, SOURCE, functions) for mutant in mutants_of("a.py", SOURCE)}
    assert (keys["3"], keys["5"]) == (("Box.size", 13), ("Box.size", 17))
    assert keys["4"] is None


def test_a_module_is_imported_as_mutated_and_its_file_stays_as_it_is(module: str, tmp_path: Path) -> None:
    file = tmp_path / f"{module}.py"
    assert importlib.import_module(module).LIMIT == 3
    import_mutated(module, str(file), SOURCE.replace("LIMIT = 3", "LIMIT = 4"))
    again = importlib.import_module(module)
    assert (again.LIMIT, again.__file__, file.read_text()) == (4, str(file), SOURCE)


def test_calls_are_noted_in_threads_as_well(module: str) -> None:
    loaded = importlib.import_module(module)
    with noting_calls(str(loaded.__file__)) as called:
        loaded.decorated()
        thread = threading.Thread(target=setattr, args=(loaded.Box(), "size", 1))
        thread.start()
        thread.join()
    loaded.Box().size  # noqa: B018 -- it is called too late
    assert called == {("wrapped.<locals>.outer", 4), ("decorated", 8), ("Box.size", 17)}
