"""What comes of a commit that is made again. Standard library only."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """One commit, made again by one contestant in one form after one kind of request.

    `apart` is why it was not tried. `differences` are files that are not as in the commit, `refusals` the rules that
    refused calls, `errors` other calls that failed. `marks` are the kinds of marks that the outcome has, `first_line`
    is what a person reads first. `failure` is what a contestant raised. `requests` were sent to the model; of their
    `prompt_bytes` (tools and messages as JSON) `repeated_bytes` begin as the request before, which a cache may hold.
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
        """Whether the working tree is the commit's, byte for byte."""
        return not (self.apart or self.differences or self.failure)

    def as_map(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)
