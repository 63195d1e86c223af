"""Change the pure files in small ways, one at a time, and see whether their tests notice.

Each file's mutants are run against the tests of its package, and of spec 1 where they import it. Nothing is written
outside a temporary folder.
Survivors are listed as lines of a diff; one that does no harm is explained in benchmarks/mutants/explained.toml.
"""

import argparse
import gc
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from typing import Final

import grimp
import hypothesis

from benchmarks.mutants.choice import chosen, shares
from benchmarks.mutants.explanations import explained, read_explanations, stale
from benchmarks.mutants.mutation import Mutant, mutants_of
from benchmarks.mutants.report import WANTED, rows, staleness, survivors, table, verdict
from benchmarks.mutants.verdicts import Judged, Place, Verdict, judge
from tests.architecture.product import PACKAGES, ROOT, is_pure, module_name, sources, text_of

THIRD_PARTY: Final = (
    *("jsonschema", "langchain_core.messages", "langchain_openai", "langgraph.checkpoint.sqlite", "langgraph.graph"),
    *(
        "langgraph.prebuilt",
        "orjson",
        "pydantic",
        "pytest",
        "rapidfuzz",
        "rich.console",
        "typer",
        "vcr",
        "yaml",
    ),
)
"""What the tests import of others' code, imported once for all."""
EFFECTFUL: Final = frozenset({"mendgraph.graph.agent", "mendgraph.nodes.call_model.local_server"})
"""Modules that do something when they are imported, or are programs."""


@dataclass(frozen=True)
class Chosen:
    """The mutants of a file that are looked at."""

    file: str
    source: str
    mutants: tuple[Mutant, ...]


def files_to_mutate(patterns: Sequence[str]) -> list[str]:
    """The pure files that one of the patterns names, or all, if their packages have tests."""
    pure = [path for path in sources(*PACKAGES) if is_pure(path) and package_tests(path)]
    return [path for path in pure if not patterns or any(fnmatchcase(path, pattern) for pattern in patterns)]


def package_tests(path: str) -> tuple[str, ...]:
    """The test files that mutants of a file are run against, those that are named after the file first.

    They are the tests in folders with the name of the file's package, the tests in any folder that are named after the
    file and import it, and the tests of spec 1 that import it.
    """
    package, own_name = PurePosixPath(path).parent.name, f"test_{PurePosixPath(path).name}"
    files = [file for file in sources("tests") if PurePosixPath(file).name.startswith("test_")]
    candidates = [
        file for file in files if file.endswith(f"/{own_name}") or file.startswith("tests/specs/test_spec_1_")
    ]
    chosen_files = {file for file in files if PurePosixPath(file).parent.name == package}
    chosen_files |= {file for file in candidates if f"{module_name(path)} import" in text_of(file)}
    return tuple(sorted(chosen_files, key=lambda file: (not file.endswith(f"/{own_name}"), file)))


def choose(files: Sequence[str], sample: int | None) -> list[Chosen]:
    """All mutants of the files, or so many of them."""
    texts = {file: text_of(file) for file in files}
    found = {file: mutants_of(file, text) for file, text in texts.items()}
    counts = {file: len(mutants) for file, mutants in found.items()}
    wanted = counts if sample is None else shares(counts, sample)
    every = [Chosen(file, texts[file], tuple(chosen(found[file], texts[file], wanted[file]))) for file in files]
    return [each for each in every if each.mutants]


def judge_file(each: Chosen, folder: Path) -> list[Judged]:
    """What the tests say of a file's mutants; in one of several processes, whose tests write below `folder`."""
    own = Path(tempfile.mkdtemp(dir=folder))
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    place = Place(ROOT, each.file, each.source, package_tests(each.file), own, _independent_of(module_name(each.file)))
    return judge(place, each.mutants)


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph("mendgraph", cache_dir=None)


def _independent_of(module: str) -> tuple[str, ...]:
    """Our modules that do not import this one, not even by another."""
    graph = _imports()
    others = graph.modules - graph.find_downstream_modules(module) - EFFECTFUL - {module}
    prefix = tuple(f"{module.rsplit('.', depth)[0]}" for depth in range(1, module.count(".") + 1))
    return tuple(sorted({*others, *prefix} - {module}))


def prepare(folder: Path) -> None:
    """Make this process one to be forked: others' modules imported, ours not, and all that is written in `folder`."""
    sys.pycache_prefix = str(folder / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    for name in THIRD_PARTY:
        importlib.import_module(name)
    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # no shrinking: any failure is enough
        suppress_health_check=list(hypothesis.HealthCheck),  # a busy machine is no reason to call a mutant killed
    )
    _imports()
    gc.freeze()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the command line says."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "files", nargs="*", metavar="FILE", help="paths or patterns, as nodes/parse/*.py (all pure files)"
    )
    options.add_argument("--sample", type=int, metavar="N", help="look at N mutants, from each file in proportion")
    options.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at work (%(default)s)")
    found = options.parse_args(arguments)
    if found.jobs < 1 or (found.sample is not None and found.sample < 1):
        options.error("--sample and --jobs are 1 at least")
    return found


def judge_all(every: Iterable[Chosen], jobs: int, folder: Path) -> list[Judged]:
    """What the tests say of all mutants, the largest files first; each file's figures are printed to stderr."""
    judged: dict[str, list[Judged]] = {}
    largest = sorted(every, key=lambda each: -len(each.mutants))
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        tasks = {pool.submit(judge_file, each, folder): each.file for each in largest}
        try:
            for task in as_completed(tasks):
                file = tasks[task]
                judged[file] = task.result()
                killed = sum(each.verdict is not Verdict.SURVIVED for each in judged[file])
                print(f"{len(judged):4} of {len(tasks)}  {file}: {killed} of {len(judged[file])}", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [each for file in sorted(judged) for each in judged[file]]


def main(arguments: Sequence[str]) -> int:
    """Run the check, print what it found, and return the exit code: 1 where too few mutants are killed."""
    options = parse(arguments)
    files = files_to_mutate(options.files)
    if not files:
        print(f"no pure file with tests is named {' or '.join(options.files)}", file=sys.stderr)
        return 2
    explanations = read_explanations()
    every = choose(files, options.sample)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        prepare(Path(folder))
        try:
            judged = judge_all(every, options.jobs, Path(folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
    seconds = time.monotonic() - started
    texts = {file: text_of(file) for file in files}
    ignore = [each.mutant for each in judged if each.verdict is Verdict.SURVIVED]
    known = explained(explanations, ignore, texts)
    by_file = {each.file: each.mutants for each in every}
    figures = rows(judged, known)
    parts = [
        survivors(judged, texts, known),
        table(figures),
        staleness(stale(explanations, texts, by_file, ignore)),
        f"{len(judged)} mutants in {seconds:.0f} s ({len(judged) / seconds:.1f} a second)",
        verdict(figures[-1], sampled=options.sample is not None),
    ]
    print("\n\n".join(part for part in parts if part))
    return 0 if figures[-1].score >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
