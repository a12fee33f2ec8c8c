"""A running server as the tests see it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sglang_ddtree.demo.server import ServerProcess, cpu_environment, flags

START_TIMEOUT = 240  # seconds; about 12 on two idle cores

RETRACTED = "Retract requests"
"""What the server logs when it takes requests back because the KV pool is full."""

DEFAULTS = {
    "dtype": "float32",
    "skip_server_warmup": True,
    # An idle scheduler polls: without this it takes a core from whatever the test computes meanwhile.
    "sleep_on_idle": True,
    "max_total_tokens": 8192,
    "max_running_requests": 8,
}


class Server(ServerProcess):
    """`base_url`, `log()`, `post()` and `stop()` come from `ServerProcess`."""

    def generate(self, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """POST every payload to ``/generate`` at the same time; the answers in the payloads' order.

        Raises:
            urllib.error.HTTPError: one of them was refused.
        """
        with ThreadPoolExecutor(max(len(payloads), 1)) as pool:
            return list(pool.map(lambda payload: self.post("/generate", payload), payloads))

    def greedy(self, prompts: Sequence[Sequence[int]], count: int, **sampling: Any) -> list[list[int]]:
        """Exactly `count` greedy token ids behind each prompt, all prompts at the same time."""
        params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True, **sampling}
        answers = self.generate([{"input_ids": list(ids), "sampling_params": params} for ids in prompts])
        return [answer["output_ids"] for answer in answers]

    def stream(self, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streaming ``/generate`` request."""
        request = urllib.request.Request(
            f"{self.base_url}/generate",
            json.dumps({**payload, "stream": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            for line in response:
                text = line.decode().strip()
                if text.startswith("data:") and text != "data: [DONE]":
                    yield json.loads(text.removeprefix("data:"))

    def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        """One user message through ``/v1/chat/completions``."""
        body = {"model": "default", "messages": [{"role": "user", "content": content}], "temperature": 0}
        return self.post("/v1/chat/completions", body | fields)

    def refusal(self, payload: dict[str, Any], path: str = "/generate") -> tuple[int, str]:
        """POST a request that must be refused: its HTTP status and the answer's text."""
        try:
            answer = self.post(path, payload)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        raise AssertionError(f"{path} did not refuse {payload}: {answer}")

    def server_info(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.base_url}/server_info", timeout=60) as response:
            return json.loads(response.read())

    def metrics(self) -> list[Sample]:
        """Every sample of ``/metrics``."""
        with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=60) as response:
            families = text_string_to_metric_families(response.read().decode())
        return [sample for family in families for sample in family.samples]

    def flush_cache(self) -> None:
        """Empty the prefix cache."""
        request = urllib.request.Request(f"{self.base_url}/flush_cache", method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def abort(self, rid: str) -> None:
        """Abort every request whose id begins with `rid`."""
        request = urllib.request.Request(
            f"{self.base_url}/abort_request",
            json.dumps({"rid": rid}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()

    def used_tokens(self) -> int:
        """KV slots in use, by the scheduler's own count."""
        with urllib.request.urlopen(f"{self.base_url}/v1/loads", timeout=60) as response:
            return sum(load["num_used_tokens"] for load in json.loads(response.read())["loads"])

    def settled_tokens(self) -> int:
        """`used_tokens` once the scheduler has published its idle state."""
        deadline = time.monotonic() + 20
        while (used := self.used_tokens()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return used


@contextmanager
def launch(
    model: Path,
    log_path: Path,
    *,
    environment: dict[str, str] | None = None,
    threads: int = 1,
    **options: Any,
) -> Iterator[Server]:
    """Start a CPU server, wait until it is ready and end it afterwards, whatever happens.

    Args:
        environment: added to the CPU platform's.
        options: SGLang flags with underscores, over `DEFAULTS`; True is a bare flag, None leaves one out.

    Raises:
        ServerFailed: it did not start; `log` says why.
    """
    arguments = ["--model-path", str(model), *flags({**DEFAULTS, **options})]
    merged = cpu_environment(threads) | (environment or {})
    with Server(arguments, log_path=log_path, environment=merged) as server:
        server.wait_until_ready(START_TIMEOUT)
        yield server
