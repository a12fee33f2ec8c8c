from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sglang_ddtree.bench.server import RunningServer
from sglang_ddtree.client import Client, RequestFailed


@contextmanager
def replying(answer: bytes) -> Iterator[str]:
    """The base URL of a socket that answers one request with `answer` and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode() + body


def test_an_answer_is_decoded() -> None:
    with replying(http(b'{"page_size": 4}')) as url:
        assert Client(url + "/").info() == {"page_size": 4}


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (http(b"no logprobs", "400 Bad Request"), 400, "/server_info: status 400: no logprobs"),
        (http(b"boom", "500 Internal Server Error"), 500, "status 500: boom"),
        (http(b'{"page', length=40), None, "IncompleteRead"),
        (http(b"<html>"), None, "the answer is not JSON: b'<html>'"),
        (http(b"[1]"), None, "is it a SGLang server"),
        (b"", None, "RemoteDisconnected"),
    ],
)
def test_every_failure_names_the_address_and_the_reason(
    answer: bytes, status: int | None, message: str
) -> None:
    with replying(answer) as url, pytest.raises(RequestFailed, match=message) as caught:
        Client(url).info()
    assert str(caught.value).startswith(f"{url}/server_info: ")
    assert caught.value.status == status


def test_nobody_listening_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(RequestFailed, match=r"Connection refused"):
        Client(url).ask("/generate", {})


EVENT = b'data: {"output_ids": [7, 8], "meta_info": {"completion_tokens": 2, "finish_reason": %s}}\n\n'


def test_a_streamed_answer_becomes_a_timeline() -> None:
    body = EVENT % b"null" + EVENT % b'{"type": "length"}' + b"data: [DONE]\n\n"
    with replying(http(body)) as url:
        found = RunningServer(url).generate([1, 2], 0.0, 2)
    assert found.output_ids == (7, 8)
    assert found.sent <= found.first <= found.last


@pytest.mark.parametrize("cut", [10, len(EVENT) + 20])
def test_a_stream_that_breaks_off_fails_the_request(cut: int) -> None:
    body = (EVENT % b"null" + EVENT % b'{"type": "length"}')[:cut]
    with replying(http(body)) as url, pytest.raises(RequestFailed, match=r"broke off|without a reason"):
        RunningServer(url).generate([1, 2], 0.0, 2)
