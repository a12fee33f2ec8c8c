"""A running SGLang server over HTTP, its errors as one exception."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ANSWER_TIMEOUT = 600  # seconds without a byte


class RequestFailed(RuntimeError):
    """The server refused, aborted or never finished a request; `status` is the HTTP status, None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """`base_url` is scheme, host and port, like ``http://127.0.0.1:30000``. May be used from many threads."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")

    def info(self) -> Mapping[str, Any]:
        """The server's ``/server_info``.

        Raises:
            RequestFailed: it did not answer, or not with a JSON object.
        """
        found = self.ask("/server_info", timeout=60)
        if not isinstance(found, Mapping):
            raise RequestFailed(f"{self.base_url}/server_info: got {found!r:.60}; is it a SGLang server?")
        return found

    def ask(
        self, path: str, payload: Mapping[str, Any] | None = None, timeout: float = ANSWER_TIMEOUT
    ) -> Any:
        """The decoded answer to a GET, or to a POST of `payload` as JSON; `timeout` is in seconds.

        Raises:
            RequestFailed: the server did not answer with status 200 and JSON.
        """
        body = None if payload is None else json.dumps(payload).encode()
        with self.open(path, body, timeout) as response:
            answer = response.read()
        try:
            return json.loads(answer)
        except ValueError as error:
            raise RequestFailed(f"{self.base_url}{path}: the answer is not JSON: {answer[:60]!r}") from error

    @contextmanager
    def open(
        self, path: str, body: bytes | None = None, timeout: float = ANSWER_TIMEOUT
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET, or to a POST of the JSON `body`, to be read inside the block.

        Raises:
            RequestFailed: the server cannot be reached, answered with an error, or the connection broke.
        """
        request = urllib.request.Request(self.base_url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                yield response
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:300]
            raise RequestFailed(f"{self.base_url}{path}: status {error.code}: {text}", error.code) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RequestFailed(f"{self.base_url}{path}: {type(error).__name__}: {reason}") from error
