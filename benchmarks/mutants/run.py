"""Change the pure files in small ways, one at a time, and check whether their tests notice.

The mutants of a file run against the tests of its package, and against those of spec 1 that import it. All files are
written to a temporary folder. Survivors are printed as lines of a diff. benchmarks/mutants/explained.toml has the
explanations of harmless survivors.
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

from benchmarks.mutants.choice import sample, sample_sizes
from benchmarks.mutants.explanations import match_explanations, read_explanations, stale
from benchmarks.mutants.mutation import Mutant, mutants_of
from benchmarks.mutants.report import MINIMUM_SCORE, make_rows, stale_lines, survivor_diffs, table, verdict
from benchmarks.mutants.verdicts import MutantResult, SourceFile, Verdict, judge_mutants
from tests.architecture.product import PACKAGES, ROOT, is_pure, module_name, sources, text_of

THIRD_PARTY: Final = (
    "jsonschema",
    "langchain_core.messages",
    "langchain_openai",
    "langgraph.checkpoint.sqlite",
    "langgraph.graph",
    "langgraph.prebuilt",
    "orjson",
    "pydantic",
    "pytest",
    "rapidfuzz",
    "rich.console",
    "typer",
    "vcr",
    "yaml",
)
"""The third-party modules of the tests, which are imported once."""
NOT_IMPORTED: Final = frozenset(
    {"mendgraph.graph.agent", "mendgraph.harbor", "mendgraph.nodes.call_model.local_server"}
)
"""Modules whose import has effects or needs a missing package, and programs."""


@dataclass(frozen=True)
class FileMutants:
    """The selected mutants of a file."""

    file: str
    source: str
    mutants: tuple[Mutant, ...]


def files_to_mutate(patterns: Sequence[str]) -> list[str]:
    """Return the pure files that match a pattern, or all of them, if their packages have tests."""
    files = [path for path in sources(*PACKAGES) if is_pure(path) and package_tests(path)]
    if not patterns:
        return files
    return [path for path in files if any(fnmatchcase(path, pattern) for pattern in patterns)]


def package_tests(path: str) -> tuple[str, ...]:
    """Return the test files for the mutants of a file, first those that are named after the file.

    They are the tests in folders with the name of the file's package, the tests in any folder that are named after the
    file and import it, and the tests of spec 1 that import it.
    """
    package = PurePosixPath(path).parent.name
    suffix = f"/test_{PurePosixPath(path).name}"
    import_text = f"{module_name(path)} import"

    tests = set()
    for file in sources("tests"):
        if not PurePosixPath(file).name.startswith("test_"):
            continue
        is_candidate = file.endswith(suffix) or file.startswith("tests/specs/test_spec_1_")
        if PurePosixPath(file).parent.name == package or (is_candidate and import_text in text_of(file)):
            tests.add(file)
    return tuple(sorted(tests, key=lambda file: (not file.endswith(suffix), file)))


def select_mutants(files: Sequence[str], sample_size: int | None) -> list[FileMutants]:
    """Return all mutants of the files, or a sample."""
    texts = {file: text_of(file) for file in files}
    mutants = {file: mutants_of(file, text) for file, text in texts.items()}
    sizes = {file: len(members) for file, members in mutants.items()}
    if sample_size is not None:
        sizes = sample_sizes(sizes, sample_size)

    selection = []
    for file in files:
        members = tuple(sample(mutants[file], texts[file], sizes[file]))
        if members:
            selection.append(FileMutants(file, texts[file], members))
    return selection


def judge_file(file_mutants: FileMutants, folder: Path) -> list[MutantResult]:
    """Test the mutants of a file, in one of several processes. The tests write below `folder`."""
    directory = Path(tempfile.mkdtemp(dir=folder))
    tempfile.tempdir = str(directory)
    os.environ["TMPDIR"] = str(directory)

    file = file_mutants.file
    independent = _independent_modules(module_name(file))
    source_file = SourceFile(ROOT, file, file_mutants.source, package_tests(file), directory, independent)
    return judge_mutants(source_file, file_mutants.mutants)


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph("mendgraph", cache_dir=None)


def _independent_modules(module: str) -> tuple[str, ...]:
    """Return mendgraph's modules that do not import this one, directly or indirectly."""
    graph = _imports()
    independent = graph.modules - graph.find_downstream_modules(module) - NOT_IMPORTED
    packages = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
    return tuple(sorted((independent | packages) - {module}))


def prepare(folder: Path) -> None:
    """Prepare this process for forks: import third-party modules only, and write all files to `folder`."""
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
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # without shrinking: any failure is enough
        suppress_health_check=list(hypothesis.HealthCheck),  # a slow machine must not kill a mutant
    )
    _imports()
    gc.freeze()


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="paths or patterns such as nodes/parse/*.py (default: all pure files)"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="test a sample of N mutants, in proportion to the files"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes (%(default)s)")

    options = parser.parse_args(arguments)
    if options.jobs < 1 or (options.sample is not None and options.sample < 1):
        parser.error("--sample and --jobs must be at least 1")
    return options


def judge_all(selection: Iterable[FileMutants], jobs: int, folder: Path) -> list[MutantResult]:
    """Test all mutants, the largest files first. The figures of each file are printed to standard error."""
    results: dict[str, list[MutantResult]] = {}
    by_size = sorted(selection, key=lambda file_mutants: -len(file_mutants.mutants))

    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        files = {pool.submit(judge_file, file_mutants, folder): file_mutants.file for file_mutants in by_size}
        try:
            for task in as_completed(files):
                file = files[task]
                results[file] = task.result()
                killed = sum(result.verdict is not Verdict.SURVIVED for result in results[file])
                print(f"{len(results):4} of {len(files)}  {file}: {killed} of {len(results[file])}", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

    return [result for file in sorted(results) for result in results[file]]


def main(arguments: Sequence[str]) -> int:
    """Test the mutants, print the report, and return the exit code: 1 if too few mutants are killed."""
    options = parse_arguments(arguments)
    files = files_to_mutate(options.files)
    if not files:
        print(f"no pure file with tests matches {' or '.join(options.files)}", file=sys.stderr)
        return 2

    explanations = read_explanations()
    selection = select_mutants(files, options.sample)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        prepare(Path(folder))
        try:
            results = judge_all(selection, options.jobs, Path(folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
    seconds = time.monotonic() - start

    texts = {file: text_of(file) for file in files}
    mutants = {file_mutants.file: file_mutants.mutants for file_mutants in selection}
    survivors = [result.mutant for result in results if result.verdict is Verdict.SURVIVED]
    explained = match_explanations(explanations, survivors, texts)
    rows = make_rows(results, explained)

    parts = [
        survivor_diffs(results, texts, explained),
        table(rows),
        stale_lines(stale(explanations, texts, mutants, survivors)),
        f"{len(results)} mutants in {seconds:.0f} s ({len(results) / seconds:.1f} per second)",
        verdict(rows[-1], sampled=options.sample is not None),
    ]
    print("\n\n".join(part for part in parts if part))
    return 0 if rows[-1].score >= MINIMUM_SCORE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
