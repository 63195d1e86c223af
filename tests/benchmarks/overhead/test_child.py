from pathlib import Path

from benchmarks.overhead.child import LOADERS, do
from benchmarks.overhead.job import Job
from benchmarks.overhead.workers import ENTRANTS

JOB = Job("http://127.0.0.1:9/v1", ".", ".")


class Contestant:
    """One that is told by its job whether to fail."""

    def run(self, job: Job) -> None:
        """One run."""
        Path(job.keep, "ran").touch()

    async def arun(self, job: Job) -> None:
        """Several."""
        raise ValueError(f"{job.count} are too many")


def test_every_entrant_has_a_loader() -> None:
    assert {entrant.loader for entrant in ENTRANTS} == set(LOADERS)
    modules = {loader.partition(":")[0] for loader in LOADERS.values()}
    folder = Path(__file__).parent.parent.parent.parent / "benchmarks" / "overhead" / "contestants"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == modules


def test_a_job_is_done_and_its_cost_is_told(tmp_path: Path) -> None:
    told = do(Contestant(), Job("", "", str(tmp_path)))
    assert (list(told), told["cpu_s"] >= 0, (tmp_path / "ran").exists()) == (["cpu_s"], True, True)


def test_a_failure_is_told() -> None:
    assert do(Contestant(), Job("", "", "", count=64)) == {"error": "ValueError: 64 are too many"}
