"""The demo: servers of the pair one after the other, their answers and figures; or the pair's folders."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sglang_ddtree.demo import DRAFTER, target
from sglang_ddtree.demo.arguments import PROMPTS, TO_STDOUT, add_arguments, check
from sglang_ddtree.demo.figures import LABELS, Figures, as_json, figures, table
from sglang_ddtree.demo.server import ServerFailed, ServerProcess, cpu_environment, flags
from sglang_ddtree.usage import UsageError, join_server_args

NEW_TOKENS = 128
START_TIMEOUT = 600  # seconds
ABOUT_THE_ANSWERS = (
    "A model of 135M parameters answers simply and sometimes wrongly. What counts is that the three texts of each "
    "answer, by plain decoding, DFLASH and DDTREE, are identical."
)
SERVER_OPTIONS = {
    "dtype": "float32",  # in bfloat16 near ties between tokens depend on the batch's shape
    "max_running_requests": 4,
    "max_total_tokens": 16384,
    "skip_server_warmup": True,
    "log_level": "info",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo")
    add_arguments(parser)
    return run(parser.parse_args(join_server_args(sys.argv[1:] if argv is None else argv)))


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line asks for; the exit code is that of the command."""
    try:
        words = check(arguments)
    except UsageError as error:
        print(f"sglang-ddtree demo: error: {error}", file=sys.stderr)
        if arguments.paths and arguments.json == TO_STDOUT:
            print(json.dumps({"error": str(error)}, indent=2))
        return 2
    if arguments.paths:
        return _print_paths(as_json_object=arguments.json is not None)
    prompts = arguments.prompt or list(PROMPTS)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    # A shell that starts this in the background has it ignore Ctrl-C's signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _require_openai()
        if arguments.serve:
            _serve(arguments.budget, prompts, words)
        else:
            _compare(arguments.budget, prompts, arguments.json)
    except (ServerFailed, target.TargetError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        _write_error(arguments.json, str(error))
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        _write_error(arguments.json, "stopped before all was measured")
        return 130
    return 0


def _print_paths(*, as_json_object: bool) -> int:
    checkpoint = target.default_path()
    is_there = target.is_prepared(checkpoint)
    note = None if is_there else f"the target is not there yet: {target.HOW_TO_GET}"
    if as_json_object:
        paths = {
            "target": str(checkpoint),
            "target_is_there": is_there,
            "drafter": str(DRAFTER),
            "error": note,
        }
        print(json.dumps(paths, indent=2))
    else:
        print(f"target   {checkpoint}\ndrafter  {DRAFTER}")
        if note is not None:
            print(f"sglang-ddtree demo: {note}", file=sys.stderr)
    return 0 if is_there else 1


def _require_openai() -> None:
    if find_spec("openai") is None:
        raise target.TargetError(f"the package openai is missing: {target.INSTALL_EXTRA}")


def _write_error(path: Path | None, error: str) -> None:
    """Leave no figures of an earlier demo that could be taken for this one's."""
    if path is not None:
        path.write_text(json.dumps({"error": error}, indent=2) + "\n")


def _compare(budget: int, prompts: list[str], json_path: Path | None) -> None:
    checkpoint = target.prepare()
    texts = _chat_texts(checkpoint, prompts)
    answers = {}
    with _server("ddtree", checkpoint, budget) as server:
        print(f"\n{ABOUT_THE_ANSWERS}")
        _stream_answers(server, prompts)
        answers["ddtree"] = _generate(server, texts)
    for name in ("plain", "dflash"):
        with _server(name, checkpoint, budget) as server:
            answers[name] = _generate(server, texts)
    measured: dict[str, Figures] = {name: figures(answers[name], answers["plain"]) for name in LABELS}
    print(f"\n{table(measured)}\n")
    count = "1 prompt" if len(prompts) == 1 else f"{len(prompts)} prompts"
    print(f"Greedy, float32, {count}, up to {NEW_TOKENS} tokens each, tree budget {budget}.")
    if json_path is not None:
        json_path.write_text(json.dumps(as_json(measured), indent=2) + "\n")
        print(f"Figures written to {json_path}.")


def _serve(budget: int, prompts: list[str], server_words: list[str]) -> None:
    with _server("ddtree", target.prepare(), budget, server_words) as server:
        _stream_answers(server, prompts)
        question = {"role": "user", "content": "What is a tree?"}
        body = json.dumps({"model": "default", "messages": [question], "temperature": 0, "max_tokens": 64})
        print(f"\nDDTREE serves at {server.base_url} until Ctrl-C (log: {server.log_path}). Try:\n")
        print(f"curl {server.base_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n")
        sys.stdout.flush()
        status = server.process.wait()
        raise ServerFailed(f"the server ended with status {status}", server.log())


@contextmanager
def _server(
    name: str, checkpoint: Path, budget: int, server_words: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """A running server that decodes the way `name` says: "plain", "dflash" or "ddtree".

    `server_words` stand last on its command line, where they replace the demo's own.
    """
    speculation: dict[str, Any] = {}
    if name != "plain":
        speculation = {"speculative_algorithm": name.upper(), "speculative_draft_model_path": DRAFTER}
    if name == "ddtree":
        speculation["speculative_ddtree_budget"] = budget
    arguments = ["--model-path", str(checkpoint), *flags({**SERVER_OPTIONS, **speculation}), *server_words]
    with (
        tempfile.TemporaryDirectory(prefix="sglang-ddtree-demo-") as folder,
        ServerProcess(
            arguments, log_path=Path(folder) / f"{name}.log", environment=cpu_environment()
        ) as server,
    ):
        _wait(server, f"Starting the {LABELS[name]} server")
        yield server


def _wait(server: ServerProcess, what: str) -> None:
    start = time.monotonic()
    if sys.stderr.isatty():
        server.wait_until_ready(
            START_TIMEOUT,
            lambda waited: print(f"\r{what} ... {waited:.0f} s", end="", file=sys.stderr, flush=True),
        )
        print(f"\r{what} ... ready after {time.monotonic() - start:.0f} s", file=sys.stderr)
    else:
        print(f"{what} ...", file=sys.stderr, flush=True)
        server.wait_until_ready(START_TIMEOUT)


def _stream_answers(server: ServerProcess, prompts: list[str]) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", timeout=600)
    for prompt in prompts:
        print(f"\n> {prompt}\n", flush=True)
        chunks = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=NEW_TOKENS,
            stream=True,
        )
        for chunk in chunks:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print(flush=True)
    print()


def _chat_texts(checkpoint: Path, prompts: list[str]) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]


def _generate(server: ServerProcess, texts: list[str]) -> list[dict[str, Any]]:
    """The same requests for every server, in one batch; ``/generate`` tells token ids and step counts."""
    print("Decoding the same prompts in one batch ...", file=sys.stderr, flush=True)
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS}
    answers: list[dict[str, Any]] = server.post("/generate", {"text": texts, "sampling_params": params})
    return answers


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that the servers' context managers run.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
