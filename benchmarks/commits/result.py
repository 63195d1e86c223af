"""The result of a reproduced commit. Standard library only."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """The result of one contestant for one commit, one form of changes and one kind of request.

    `apart` is why the commit was not tried. `differences` are the files that differ from the commit, `refusals` the
    rules of denied calls, `errors` those of other failed calls. `marks` are the kinds of the outcome's marks, and
    `first_line` is the outcome's first line. `failure` is the exception of the contestant. `requests` counts the model
    calls, `prompt_bytes` the bytes of their tools and messages as JSON, and `repeated_bytes` those that repeat the
    beginning of the previous request, which a provider may cache.
    """

    repository: str
    sha: str
    contestant: str
    request: str = ""
    form: str = ""
    apart: str = ""
    differences: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    first_line: str = ""
    outcome: str = ""
    seconds: float = 0.0
    failure: str = ""
    requests: int = 0
    prompt_bytes: int = 0
    repeated_bytes: int = 0

    @property
    def is_identical(self) -> bool:
        """Whether the working tree equals the commit, byte for byte."""
        return not (self.apart or self.differences or self.failure)

    def as_map(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)
