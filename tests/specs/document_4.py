# The code of document 4, without docstrings and comments: `test_spec_4_oracle.py` compares our Environment with it.
# ruff: noqa: ANN001, B904, BLE001, E401, E501, F401, F841, FURB167, I001, PLR0913, S110, SIM102, SIM105, TRY300, UP006, UP035, UP045
# mypy: allow-untyped-defs, allow-incomplete-defs
# fmt: off

from __future__ import annotations
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple
import os, time, re, concurrent.futures, urllib.parse


@dataclass
class ExecResult:
    ok: bool
    action: str
    args: Dict[str, Any]
    data: Any | None = None
    error: str | None = None
    ms: int = 0
    retries: int = 0

    def to_dict(self) -> Dict[str, Any]:
        return {
            "ok": self.ok,
            "action": self.action,
            "args": self.args,
            "data": self.data,
            "error": self.error,
            "ms": self.ms,
            "retries": self.retries,
        }


class Environment:
    _REDACT_KEYS = re.compile(r"(password|secret|token|api_?key|authorization|bearer)", re.I)

    def __init__(
        self,
        *,
        base_dir: Optional[str] = None,
        allowed_exts: Optional[Iterable[str]] = (".txt", ".md"),
        allow_net: bool = False,
        allowed_domains: Optional[Iterable[str]] = None,
        timeout_s: float = 10.0,
        max_retries: int = 1,
        retry_backoff_s: float = 0.5,
        retry_exceptions: Tuple[type[BaseException], ...] = (TimeoutError, ),
        arg_validators: Optional[Mapping[str, Callable[[Dict[str, Any]], Dict[str, Any]]]] = None,
        logger: Optional[Callable[[Dict[str, Any]], None]] = None,
    ) -> None:
        self.base_dir = os.path.abspath(base_dir) if base_dir else None
        self.allowed_exts = set(allowed_exts or [])
        self.allow_net = allow_net
        self.allowed_domains = set(allowed_domains or [])
        self.timeout_s = float(timeout_s)
        self.max_retries = int(max_retries)
        self.retry_backoff_s = float(retry_backoff_s)
        self.retry_exceptions = retry_exceptions
        self.arg_validators = dict(arg_validators or {})
        self.logger = logger


    def execute_action(self, action, args: Dict[str, Any]) -> Dict[str, Any]:
        start = time.time()
        retries = 0

        try:
            guarded_args = self._prepare_args(action.name, dict(args))
            result = self._run_with_retries(action, guarded_args)
            ms = int((time.time() - start) * 1000)
            payload = ExecResult(ok=True, action=action.name, args=self._redact(guarded_args), data=result, ms=ms, retries=retries).to_dict()
            self._log({"event": "action_ok", **payload})
            return payload

        except BaseException as e:
            ms = int((time.time() - start) * 1000)
            payload = ExecResult(ok=False, action=getattr(action, "name", "<unknown>"), args=self._redact(args), error=str(e), ms=ms, retries=retries).to_dict()
            self._log({"event": "action_error", **payload})
            return payload


    def _prepare_args(self, action_name: str, args: Dict[str, Any]) -> Dict[str, Any]:
        if action_name in {"read_file", "write_file", "search_in_file", "append_file"}:
            if "file_name" in args:
                args["file_name"] = self._safe_path(args["file_name"])
                self._check_extension(args["file_name"])

        if action_name in {"write_file", "append_file"}:
            if not isinstance(args.get("content"), str):
                raise ValueError("Missing or invalid 'content' for write/append operation.")

        if action_name in {"http_get", "http_post", "fetch_url"}:
            if not self.allow_net:
                raise PermissionError("Network access is disabled in this Environment.")
            url = args.get("url")
            if not isinstance(url, str) or not url:
                raise ValueError("A non-empty 'url' is required.")
            self._check_domain(url)

        validator = self.arg_validators.get(action_name)
        if validator:
            args = validator(args)

        return args

    def _run_with_retries(self, action, args: Dict[str, Any]) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._run_with_timeout(action, args, self.timeout_s)
            except self.retry_exceptions as e:
                if attempt > self.max_retries + 1:  # first try + max_retries
                    raise
                time.sleep(self.retry_backoff_s * attempt)
            except Exception:
                raise

    def _run_with_timeout(self, action, args: Dict[str, Any], timeout_s: float) -> Any:
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as ex:
            fut = ex.submit(action.execute, **args)
            try:
                return fut.result(timeout=timeout_s)
            except concurrent.futures.TimeoutError:
                raise TimeoutError(f"Action '{action.name}' timed out after {timeout_s:.1f}s")


    def _safe_path(self, file_name: str) -> str:
        full = os.path.abspath(os.path.join(self.base_dir or ".", file_name))
        if self.base_dir and not (full + os.sep).startswith(self.base_dir + os.sep):
            raise PermissionError("Path traversal blocked.")
        return full

    def _check_extension(self, full_path: str) -> None:
        if not self.allowed_exts:
            return
        _, ext = os.path.splitext(full_path)
        if ext.lower() not in self.allowed_exts:
            raise PermissionError(f"Extension '{ext}' not allowed.")

    def _check_domain(self, url: str) -> None:
        if not self.allowed_domains:
            return
        netloc = urllib.parse.urlparse(url).netloc.split(":")[0].lower()
        if netloc not in {d.lower() for d in self.allowed_domains}:
            raise PermissionError(f"Domain '{netloc}' not allowed.")


    def _log(self, record: Dict[str, Any]) -> None:
        if self.logger:
            try:
                self.logger(self._redact(record))
            except Exception:
                pass  # never let logging break execution


    def _redact(self, obj: Any) -> Any:
        if isinstance(obj, dict):
            return {
                k: ("***" if isinstance(v, str) and self._REDACT_KEYS.search(k) else self._redact(v))
                for k, v in obj.items()
            }
        if isinstance(obj, list):
            return [self._redact(v) for v in obj]
        return obj
