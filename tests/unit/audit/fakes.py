"""A server that answers SGLang's HTTP requests from a script; a token is a character."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEMPLATE = "<user>"


class Refusal(Exception):
    """Answered with status 400."""


@dataclass
class Script:
    """What the server says.

    `texts` maps a prompt to its greedy answer. `logprobs` maps prompt and position to token -> nats; elsewhere the
    chosen token has -0.1, "~" -3 and any other -9.
    """

    texts: Mapping[str, str]
    logprobs: Mapping[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)
    algorithm: str | None = None
    dtype: str = "bfloat16"
    has_template: bool = True
    finish: Mapping[str, Any] = field(default_factory=lambda: {"type": "length"})
    requests: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, path: str, body: Any) -> Any:
        if path == "/server_info":
            return {"speculative_algorithm": self.algorithm, "model_path": "m", "dtype": self.dtype}
        if path == "/v1/tokenize":
            if "messages" not in body:
                return {"tokens": _ids(body["prompt"])}
            if not self.has_template:
                raise Refusal("no chat template")
            return {"tokens": _ids(TEMPLATE + body["messages"][0]["content"])}
        if path == "/v1/detokenize":
            return {"text": ["".join(map(chr, ids)) for ids in body["tokens"]]}
        assert path == "/generate"
        self.requests.append(body)
        return self._generate(body)

    def _generate(self, body: dict[str, Any]) -> Any:
        read = "".join(map(chr, body["input_ids"])).removeprefix(TEMPLATE)
        prompt = next((one for one in self.texts if read.startswith(one)), None)
        if prompt is None:
            raise Refusal(f"prompt too long: {read}")
        begin = len(read) - len(prompt)
        count = body["sampling_params"]["max_new_tokens"]
        new = list(enumerate(self.texts[prompt]))[begin : begin + count]
        meta: dict[str, Any] = {"finish_reason": self.finish}
        if body.get("return_logprob"):
            if self.algorithm is not None:
                raise Refusal("logprobs are not supported")
            tables = [self._table(prompt, position, token) for position, token in new]
            meta["output_token_logprobs"] = [
                [table[token], ord(token), None] for table, (_, token) in zip(tables, new, strict=True)
            ]
            meta["output_top_logprobs"] = [
                [
                    [value, ord(token), None]
                    for token, value in sorted(table.items(), key=lambda pair: -pair[1])[
                        : body["top_logprobs_num"]
                    ]
                ]
                for table in tables
            ]
            asked = body.get("token_ids_logprob") or []
            meta["output_token_ids_logprobs"] = [
                [[table.get(chr(token), -9.0), token, None] for token in asked] for table in tables
            ]
        return {"output_ids": [ord(token) for _, token in new], "meta_info": meta}

    def _table(self, prompt: str, position: int, token: str) -> Mapping[str, float]:
        return self.logprobs.get((prompt, position), {token: -0.1, "~": -3.0})


@contextmanager
def serve(script: Script) -> Iterator[str]:
    """The base URL of a server that follows `script`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: Any) -> None:
            try:
                status, answer = 200, script.answer(self.path, body)
            except Refusal as error:
                status, answer = 400, {"error": {"message": str(error)}}
            encoded = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _ids(text: str) -> list[int]:
    return [ord(character) for character in text]
