"""The weights from the Hugging Face Hub: one file, fetched on from where the last pull stopped."""

import os
from http import HTTPStatus
from typing import Any

from nodes.call_model.pull_outcome import PullFailure, PullFailureKind, is_disk_error, one_line, wrong_sum
from nodes.call_model.weights import Progress, PullPhase, PullProgress, WeightsSpec, file_sha256

PARTIAL_NAME = "hub.partial"
REACH_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0


def fetch_from_hub(
    spec: WeightsSpec, parts: str, target: str, progress: Progress, *, endpoint: str | None = None
) -> PullFailure | None:
    """Leave the verified file of `spec` at `target`. One try: the Hub must answer within REACH_TIMEOUT_S seconds.

    `parts` is the folder that keeps a partial file; `endpoint` is another Hub than the library's. Returns a failure,
    or None. HF_HUB_OFFLINE and the proxies of the environment are respected; no token is sent. Raises OSError with an
    errno where this machine's disk refuses.
    """
    try:
        import huggingface_hub
    except ImportError:
        message = "the Hugging Face Hub client is not installed: run `uv sync --extra local`"
        return PullFailure(PullFailureKind.EXTRA_MISSING, message)
    partial = os.path.join(parts, PARTIAL_NAME)
    try:
        _fetch_on(huggingface_hub, spec, partial, progress, endpoint)
    except Exception as error:
        if is_disk_error(error):
            raise
        message = f"the Hugging Face Hub could not be reached ({one_line(str(error)) or type(error).__name__})"
        return PullFailure(PullFailureKind.UNREACHABLE, message)
    if file_sha256(partial, spec.size_bytes, progress) != spec.sha256:
        os.unlink(partial)
        return wrong_sum(spec, "the Hugging Face Hub")
    os.replace(partial, target)
    return None


def _fetch_on(hub: Any, spec: WeightsSpec, partial: str, progress: Progress, endpoint: str | None) -> None:
    """Complete the partial file, trying again as long as it grows. `hf_hub_download` would begin anew after a kill."""
    url = hub.hf_hub_url(spec.hub_repo, spec.file_name, endpoint=endpoint)
    found = hub.get_hf_file_metadata(url, token=False, timeout=REACH_TIMEOUT_S)
    if found.size not in {None, spec.size_bytes}:
        raise ValueError(f"it has another {spec.file_name}, of {found.size} bytes")
    while (present := _size_of(partial)) < spec.size_bytes:
        try:
            _append(hub, url, partial, spec, progress)
        except Exception as error:
            if is_disk_error(error) or _size_of(partial) <= present:
                raise
        else:
            if _size_of(partial) <= present:
                raise EOFError("the download ended early")


def _append(hub: Any, url: str, partial: str, spec: WeightsSpec, progress: Progress) -> None:
    headers = {"Range": f"bytes={_size_of(partial)}-", "Accept-Encoding": "identity"}
    with hub.get_session().stream("GET", url, headers=headers, timeout=READ_TIMEOUT_S) as response:
        response.raise_for_status()
        # A server that does not know ranges answers 200 with the whole file.
        with open(partial, "ab" if response.status_code == HTTPStatus.PARTIAL_CONTENT else "wb") as file:
            # Chunks as they come: a fixed size would lose what a broken connection had already brought.
            for chunk in response.iter_bytes():
                file.write(chunk)
                progress(PullProgress(PullPhase.FETCHING, min(file.tell(), spec.size_bytes), spec.size_bytes))


def _size_of(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
