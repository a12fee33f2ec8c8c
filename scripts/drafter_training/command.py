"""The command line of scripts/train_drafter.py: every check that needs no model comes before any model is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_ddtree.bench.prompt_sets import BUILT_IN, Prompt, PromptError
from sglang_ddtree.bench.tokens import TokenizerError
from sglang_ddtree.client import RequestFailed
from sglang_ddtree.host.checkpoint import CheckpointError
from sglang_ddtree.usage import UsageError, require_checkpoint

from .progress import TrainingError

if TYPE_CHECKING:
    from .answerers import Answerer

EVAL_PROMPTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "eval_prompts.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 where it cannot do what it was asked for."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (
        TrainingError,
        CheckpointError,
        PromptError,
        TokenizerError,
        UsageError,
        RequestFailed,
        OSError,
    ) as error:
        print(f"train_drafter.py {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_drafter.py", description="Train a DFlash drafter for a dense causal LM on one GPU."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, about: str) -> Any:
        found = commands.add_parser(
            name, help=about, description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        found.set_defaults(run=run)
        return found.add_argument

    add = command("prompts", _prompts, "let the target make up user messages")
    _add_model(add)
    add("--out", required=True, type=Path, metavar="FILE", help="JSONL of prompts")
    add("--count", type=int, default=10000, metavar="N", help="messages")
    add("--temperature", type=float, default=0.9, metavar="T", help="above 0")
    add("--new-tokens", type=int, default=150, metavar="N", help="most tokens of a message")
    add(
        "--beginnings",
        type=Path,
        metavar="FILE",
        help="beginnings of messages, one a line; every second message goes on from one of them",
    )
    add("--batch-size", type=int, default=1024, metavar="N", help="messages at once")
    _add_base_url(add)
    _add_minutes(add)

    add = command("generate", _generate, "let the target answer prompts")
    _add_model(add)
    add("--out", required=True, type=Path, metavar="FILE", help="the answers' tokens, a safetensors file")
    add(
        "--prompts",
        required=True,
        nargs="+",
        metavar="SOURCE",
        help=f"JSONL files, or built-in sets: {', '.join(BUILT_IN)}",
    )
    add(
        "--temperature",
        type=float,
        nargs="+",
        default=[0.0],
        metavar="T",
        help="0 is greedy; the prompts take several in turn",
    )
    add("--repeat", type=int, default=1, metavar="N", help="answers per prompt, each at the next temperature")
    add("--new-tokens", type=int, default=384, metavar="N", help="most tokens of an answer")
    add("--max-length", type=int, default=512, metavar="N", help="most tokens of prompt and answer")
    add("--batch-size", type=int, default=1024, metavar="N", help="answers at once")
    _add_base_url(add)
    _add_minutes(add)

    add = command("train", _train, "train a drafter on answers")
    _add_model(add)
    add("--data", required=True, nargs="+", type=Path, metavar="FILE", help="files of `generate`")
    add("--out", required=True, type=Path, metavar="DIR", help="the drafter in float32, and train_log.jsonl")
    add("--block-size", type=int, default=16, metavar="N", help="the known token and the drafted ones")
    add("--layers", type=int, default=4, metavar="N", help="layers of the drafter")
    add(
        "--target-layers",
        type=_whole_numbers,
        metavar="N,N,...",
        help="layers of the target whose states it reads; five evenly spread ones without it",
    )
    add("--mask-token", type=int, metavar="ID", help="by default the highest token that the data never holds")
    add("--steps", type=int, default=6000, metavar="N", help="optimiser steps")
    add("--learning-rate", type=float, default=1e-3, metavar="RATE", help="the highest")
    add("--decay", type=float, default=6.0, metavar="SLOTS", help="of the slots' weights with their distance")
    add("--tokens-per-step", type=int, default=49152, metavar="N", help="padded tokens of a step's sequences")
    add("--blocks-per-step", type=int, default=4096, metavar="N", help="blocks drafted in them")
    add("--log-every", type=int, default=50, metavar="N", help="steps between two lines")
    add(
        "--compile",
        choices=("auto", "yes", "no"),
        default="auto",
        help="fuse kernels with torch.compile; auto does on a GPU",
    )
    _add_minutes(add)

    add = command("export", _export, "write the checkpoint that SGLang loads")
    add("--trained", required=True, type=Path, metavar="DIR", help="the folder of `train`")
    add("--model", required=True, metavar="TARGET", help="the target, a folder or a hub id")
    add("--out", required=True, type=Path, metavar="DIR", help="the drafter in bfloat16")

    add = command("measure", _measure, "acceptance length of greedy decoding, with plain torch")
    _add_model(add)
    add("--draft", required=True, type=Path, metavar="DIR", help="the folder of `export` or of `train`")
    add(
        "--prompts",
        nargs="+",
        default=[str(EVAL_PROMPTS)],
        metavar="SOURCE",
        help="JSONL files or built-in sets",
    )
    add("--limit", type=int, metavar="N", help="only the first prompts")
    add("--budget", type=int, nargs="+", default=[64], metavar="N", help="nodes of the trees")
    add("--topk-cap", type=int, default=64, metavar="N", help="most candidates per depth")
    add("--new-tokens", type=int, default=128, metavar="N", help="tokens per prompt")
    add("--batch-size", type=int, default=16, metavar="N", help="texts generated at once")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of both models")
    add("--out", type=Path, metavar="FILE", help="JSON with the steps of every prompt")

    add = command("split", _split, "cut a file into pieces")
    add("file", type=Path, metavar="FILE")
    add("--out", required=True, type=Path, metavar="DIR", help="the pieces and pieces.json")
    add("--megabytes", type=int, default=16, metavar="N", help="most million bytes of a piece")

    add = command("join", _join, "put the pieces of a file together again")
    add("folder", type=Path, metavar="DIR", help="with pieces.json")
    add("--out", required=True, type=Path, metavar="FILE", help="the file")
    return parser


def _add_model(add: Any) -> None:
    add("--model", required=True, metavar="TARGET", help="the target, a folder or a hub id")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same seed on the same machine gives the same result",
    )
    add(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto is the GPU where there is one"
    )


def _add_base_url(add: Any) -> None:
    add(
        "--base-url",
        metavar="URL",
        help="a running SGLang server of the target, which then answers instead of transformers: faster, but "
        "--seed does not reach its sampling",
    )


def _add_minutes(add: Any) -> None:
    add(
        "--minutes",
        type=float,
        metavar="N",
        help="end after this time with what is done; how much that is depends on the machine",
    )


def _prompts(arguments: argparse.Namespace) -> None:
    _at_least(arguments, count=1, new_tokens=1, batch_size=1)
    if arguments.temperature <= 0:
        raise TrainingError(
            f"--temperature must be above 0, got {arguments.temperature}: greedy messages are all one."
        )
    _free_file(arguments.out)
    from .generate import make_up_prompts, read_beginnings

    beginnings = read_beginnings(arguments.beginnings) if arguments.beginnings else []
    answerer = _answerer(arguments)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise TokenizerError(f"--model {arguments.model}: its tokenizer does not load: {error}") from error
    options = {name: getattr(arguments, name) for name in ("temperature", "new_tokens", "minutes")}
    texts = make_up_prompts(answerer, tokenizer, arguments.count, beginnings=beginnings, **options)
    arguments.out.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    print(f"Wrote {len(texts)} prompts to {arguments.out}.")


def _generate(arguments: argparse.Namespace) -> None:
    from .data import Answers, read_prompts
    from .generate import SHORTEST_ANSWER, Plan, answer_all
    from .target import read_target

    _at_least(arguments, new_tokens=SHORTEST_ANSWER, max_length=SHORTEST_ANSWER, batch_size=1, repeat=1)
    if min(arguments.temperature) < 0:
        raise TrainingError(f"--temperature must not be below 0, got {min(arguments.temperature)}.")
    # Each prompt takes this many temperatures in a row, from any of them on.
    cycle = arguments.temperature * (arguments.repeat + 1)
    if any(
        cycle[begin : begin + arguments.repeat].count(0) > 1 for begin in range(len(arguments.temperature))
    ):
        raise TrainingError(
            f"--repeat {arguments.repeat} takes temperature 0 more than once, which gives the same greedy answer: "
            "name more temperatures or repeat less."
        )
    _free_file(arguments.out)
    prompts = read_prompts(arguments.prompts)
    measured = [name for name in arguments.prompts if name in BUILT_IN]
    if measured:
        print(
            f"Note: `sglang-ddtree bench` measures with {', '.join(measured)}: do not use it on this drafter."
        )
    ids = _encode(arguments.model, prompts)
    plan = Plan(
        arguments.temperature,
        arguments.repeat,
        arguments.new_tokens,
        arguments.max_length,
        arguments.minutes,
    )
    answers = Answers.of(answer_all(_answerer(arguments), ids, plan, arguments.seed))
    made = {key: value for key, value in vars(arguments).items() if key not in ("run", "out", "command")}
    answers.save(arguments.out, read_target(arguments.model)["vocab_size"], made)
    print(
        f"Wrote {len(answers)} answers, {len(answers.tokens)} tokens with their prompts, to {arguments.out}."
    )


def _train(arguments: argparse.Namespace) -> None:
    from .data import Answers
    from .export import require_free, write_checkpoint
    from .model import check_choices, drafter_config, start
    from .target import read_target
    from .training import Settings, train

    _at_least(arguments, steps=1, tokens_per_step=1, blocks_per_step=1, log_every=1)
    for name in ("learning_rate", "decay"):
        if getattr(arguments, name) <= 0:
            raise TrainingError(
                f"--{name.replace('_', '-')} must be above 0, got {getattr(arguments, name)}."
            )
    require_free(arguments.out)
    config = read_target(arguments.model)
    choices = {
        "block_size": arguments.block_size,
        "layers": arguments.layers,
        "layer_ids": arguments.target_layers,
    }
    check_choices(config, **choices, mask_token=arguments.mask_token)
    answers = Answers.load(arguments.data, config["vocab_size"])
    mask_token = arguments.mask_token
    if mask_token is None:
        mask_token = answers.unused_token(config["vocab_size"])
    made = drafter_config(config, **choices, mask_token=mask_token)
    target = _load(arguments)
    drafter = start(made, arguments.out, arguments.seed).to(target.device)
    print(f"Mask token {mask_token}, target layers {made['dflash_config']['target_layer_ids']}.")
    names = (
        "steps",
        "minutes",
        "learning_rate",
        "decay",
        "tokens_per_step",
        "blocks_per_step",
        "seed",
        "log_every",
    )
    compiled = arguments.compile == "yes" or (arguments.compile == "auto" and target.device.type == "cuda")
    settings = Settings(**{name: getattr(arguments, name) for name in names}, compiled=compiled)
    train(drafter, target, answers, settings, arguments.out / "train_log.jsonl")
    write_checkpoint(arguments.out, made, drafter.state_dict())
    print(f"Wrote the drafter in float32 to {arguments.out}; `export` makes the checkpoint for SGLang.")


def _export(arguments: argparse.Namespace) -> None:
    from .export import export
    from .target import read_target

    read_target(arguments.model)
    report = export(arguments.trained, arguments.model, arguments.out)
    print(
        f"Wrote {report.tensors} tensors to {arguments.out}. They fit the target; check it as a server does with"
    )
    print(f"    sglang-ddtree doctor --draft {arguments.out} --model {arguments.model}")


def _measure(arguments: argparse.Namespace) -> None:
    from sglang_ddtree.host.drafter import check_drafter
    from sglang_ddtree.tree.capacity import MAX_NODES, MAX_TOPK

    from .data import read_prompts

    _at_least(arguments, new_tokens=2, batch_size=1)
    for name, values, most in (
        ("--budget", arguments.budget, MAX_NODES),
        ("--topk-cap", [arguments.topk_cap], MAX_TOPK),
    ):
        if min(values) < 1 or max(values) > most:
            raise TrainingError(f"{name} must be from 1 to {most}, got {', '.join(map(str, values))}.")
    if not arguments.draft.is_dir():
        raise TrainingError(f"--draft {arguments.draft}: no such folder.")
    if arguments.out is not None:
        _free_file(arguments.out)
    report = check_drafter(str(arguments.draft), arguments.model)
    prompts = read_prompts(arguments.prompts)[: arguments.limit]
    ids = _encode(arguments.model, prompts)
    import torch

    dtype = getattr(torch, arguments.dtype)
    target = _load(arguments, dtype)
    if report.target_layer_ids[-1] > target.config.num_hidden_layers - 2:
        raise TrainingError(
            "--draft: it reads the target's last layer, whose states transformers normalises."
        )
    from sglang_ddtree.sketch.drafter import Drafter

    from .measure import measure

    drafter = Drafter(arguments.draft).to(target.device, dtype).eval()
    found = measure(
        target,
        drafter,
        ids,
        budgets=arguments.budget,
        topk_cap=arguments.topk_cap,
        new_tokens=arguments.new_tokens,
        batch_size=arguments.batch_size,
    )
    print(f"Committed tokens per forward of the target, greedy, {arguments.dtype}, {len(ids)} prompts:")
    for one in found:
        print(f"    {one.name:10} {one.mean:.3f}   ({one.tokens} tokens, {one.forwards} forwards)")
    if arguments.out is not None:
        content = {
            one.name: {
                "mean": one.mean,
                "tokens": one.tokens,
                "forwards": one.forwards,
                "steps": {prompt.name: steps for prompt, steps in zip(prompts, one.steps, strict=True)},
            }
            for one in found
        }
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
        print(f"Wrote {arguments.out}.")


def _split(arguments: argparse.Namespace) -> None:
    from .pieces import split

    for file in split(arguments.file, arguments.out, arguments.megabytes):
        print(f"Wrote {file}, {file.stat().st_size} bytes.")


def _join(arguments: argparse.Namespace) -> None:
    from .pieces import join

    _free_file(arguments.out)
    print(f"Wrote {join(arguments.folder, arguments.out)}.")


def _answerer(arguments: argparse.Namespace) -> Answerer:
    from .answerers import Local, Remote
    from .target import read_target

    if arguments.base_url is None:
        return Local(_load(arguments), arguments.batch_size, arguments.seed)
    if arguments.device != "auto":
        raise TrainingError(
            f"--device {arguments.device}: with --base-url the server computes, not this process."
        )
    return Remote(arguments.base_url, arguments.batch_size, read_target(arguments.model)["vocab_size"])


def _load(arguments: argparse.Namespace, dtype: Any = None) -> Any:
    import torch

    from .target import load_target, pick_device, read_target

    read_target(arguments.model)
    device = pick_device(arguments.device)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    print(f"Loading {arguments.model} on {device} ...", flush=True)
    return load_target(arguments.model, device, dtype)


def _encode(model: str, prompts: list[Prompt]) -> list[list[int]]:
    from sglang_ddtree.bench.tokens import encode

    require_checkpoint("--model", model)
    return encode(model, prompts, trust_remote_code=False)[0]


def _at_least(arguments: argparse.Namespace, **least: int) -> None:
    for name, number in least.items():
        if getattr(arguments, name) < number:
            flag = name.replace("_", "-")
            raise TrainingError(f"--{flag} must be at least {number}, got {getattr(arguments, name)}.")
    minutes = getattr(arguments, "minutes", None)
    if minutes is not None and minutes <= 0:
        raise TrainingError(f"--minutes must be above 0, got {minutes}.")


def _free_file(file: Path) -> None:
    if file.exists():
        raise TrainingError(f"--out {file} exists; remove it or choose another.")
    file.parent.mkdir(parents=True, exist_ok=True)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,8,14") from None
