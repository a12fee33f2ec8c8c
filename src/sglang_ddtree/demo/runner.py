"""Serve the demo pair with DDTREE on the CPU, stream its answers, compare it with plain decoding and DFLASH.

This shows that the answers are the same and how many target forwards they take. It says nothing about speed:
on a CPU a wider forward costs more, on a GPU hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from sglang_ddtree import config
from sglang_ddtree.demo import DRAFTER, target
from sglang_ddtree.demo.figures import LABELS, Figures, as_json, figures, table
from sglang_ddtree.demo.server import ServerFailed, ServerProcess, cpu_environment, flags

PROMPTS = (
    "I just moved to a new city and don't know anyone. How can I make friends?",
    "Write a Python function that reverses a string.",
    "There are 12 pencils in a box. How many pencils are in 6 boxes?",
)
NEW_TOKENS = 128
START_TIMEOUT = 600  # seconds
SERVER_OPTIONS = {
    "dtype": "float32",  # in bfloat16 near ties between tokens depend on the batch's shape
    "max_running_requests": 4,
    "max_total_tokens": 16384,
    "skip_server_warmup": True,
    "log_level": "info",
}
BUDGET = next(option for option in config.OPTIONS if option.field == "budget")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    # A shell that starts this in the background has it ignore Ctrl-C's signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if args.serve:
            _serve(args.budget, args.prompt)
        else:
            _compare(args.budget, args.prompt, args.json)
    except (ServerFailed, target.TargetError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--serve", action="store_true", help="leave the DDTREE server up until Ctrl-C, without the comparison"
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=config.FIXED_BUDGET,
        metavar="N",
        help=f"nodes of the draft tree, {BUDGET.low} to {BUDGET.high} (default: %(default)s)",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="a user message instead of the three built-in ones; may be repeated",
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="also write the table's figures to this file"
    )
    args = parser.parse_args(argv)
    if not BUDGET.low <= args.budget <= BUDGET.high:
        parser.error(f"--budget must be a whole number from {BUDGET.low} to {BUDGET.high}, got {args.budget}")
    if args.prompt and not all(text.strip() for text in args.prompt):
        parser.error("--prompt must not be empty")
    if args.json is not None:
        if args.serve:
            parser.error("--json needs the comparison, which --serve leaves out")
        problem = _why_not_writable(args.json)
        if problem:
            parser.error(f"--json {args.json}: {problem}")
    args.prompt = args.prompt or list(PROMPTS)
    return args


def _why_not_writable(path: Path) -> str | None:
    """Found out before minutes of work, not after them."""
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    place = path if path.exists() else path.parent
    return None if os.access(place, os.W_OK) else f"{place} is not writable"


def _compare(budget: int, prompts: list[str], json_path: Path | None) -> None:
    checkpoint = target.prepare()
    texts = _chat_texts(checkpoint, prompts)
    answers = {}
    with _server("ddtree", checkpoint, budget) as server:
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


def _serve(budget: int, prompts: list[str]) -> None:
    with _server("ddtree", target.prepare(), budget) as server:
        _stream_answers(server, prompts)
        question = {"role": "user", "content": "What is a tree?"}
        body = json.dumps({"model": "default", "messages": [question], "temperature": 0, "max_tokens": 64})
        print(f"\nDDTREE serves at {server.base_url} until Ctrl-C (log: {server.log_path}). Try:\n")
        print(f"curl {server.base_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n")
        sys.stdout.flush()
        status = server.process.wait()
        raise ServerFailed(f"the server ended with status {status}", server.log())


@contextmanager
def _server(name: str, checkpoint: Path, budget: int) -> Iterator[ServerProcess]:
    """A running server that decodes the way `name` says: "plain", "dflash" or "ddtree"."""
    speculation: dict[str, Any] = {}
    if name != "plain":
        speculation = {"speculative_algorithm": name.upper(), "speculative_draft_model_path": DRAFTER}
    if name == "ddtree":
        speculation["speculative_ddtree_budget"] = budget
    arguments = ["--model-path", str(checkpoint), *flags({**SERVER_OPTIONS, **speculation})]
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
