"""From prompts to a checkpoint that the server's check takes, by the commands of scripts/train_drafter.py."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from drafter_training import command, training
from drafter_training.data import Answers
from drafter_training.target import context_features, load_target
from safetensors.torch import load_file, safe_open

from e2e.hf import GreedyOracle
from e2e.oracle import Drafter as OracleDrafter
from e2e.oracle import greedy_steps
from sglang_ddtree.demo import runner
from sglang_ddtree.host.drafter import check_drafter
from unit.training.conftest import END, SCRIPTS, VOCABULARY

DEMO_DRAFTER = Path(runner.__file__).parent / "drafter"
BLOCK = 8


def run(*words: object) -> None:
    assert command.main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def work(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one run: prompts.jsonl, answers, the trained and the exported drafter."""
    folder = tmp_path_factory.mktemp("work")
    choose = random.Random(0)
    prompts = [" ".join(f"w{choose.randrange(190)}" for _ in range(choose.randint(2, 9))) for _ in range(60)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    common = ["--model", target_folder, "--device", "cpu"]
    run(
        *("generate", *common, "--prompts", folder / "prompts.jsonl", "--out", folder / "answers"),
        *("--new-tokens", 48, "--max-length", 64, "--batch-size", 32, "--temperature", 0, 0, 0.5),
    )
    run(
        *("train", *common, "--data", folder / "answers", "--out", folder / "trained", "--block-size", BLOCK),
        *("--layers", 2, "--target-layers", "0,2", "--steps", 120, "--learning-rate", 5e-3),
        *("--tokens-per-step", 512, "--blocks-per-step", 64, "--log-every", 10),
    )
    run("export", "--model", target_folder, "--trained", folder / "trained", "--out", folder / "drafter")
    return folder


def test_the_exported_drafter_passes_the_server_s_check(work: Path, target_folder: Path) -> None:
    report = check_drafter(str(work / "drafter"), str(target_folder))
    assert (report.block_size, report.num_layers, report.target_layer_ids) == (BLOCK, 2, (0, 2))
    assert report.tensors == 3 + 2 * 11


def test_it_has_the_form_of_the_shipped_one(work: Path) -> None:
    def form(folder: Path) -> tuple[set[str], set[str], object, set[str]]:
        with safe_open(folder / "model.safetensors", "pt") as opened:
            metadata, names = opened.metadata(), list(opened.keys())
            dtypes = {opened.get_slice(name).get_dtype() for name in names}
        config = json.loads((folder / "config.json").read_text())
        first = {name for name in names if not name.startswith("layers.") or name.startswith("layers.0.")}
        return set(config), first, metadata, dtypes

    assert form(work / "drafter") == form(DEMO_DRAFTER)


def test_the_loss_falls_and_drafts_get_right(work: Path) -> None:
    lines = [json.loads(line) for line in (work / "trained" / "train_log.jsonl").read_text().splitlines()]
    *reports, last = lines
    assert reports[-1]["loss"] < 0.7 * reports[0]["loss"]
    assert reports[-1]["chain"] > reports[0]["chain"] + 0.5
    assert 0 < last["held_out"]["loss"] < reports[0]["loss"]


def test_the_same_seed_gives_the_same_drafter(work: Path, target_folder: Path, tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(
            *("train", "--model", target_folder, "--device", "cpu", "--data", work / "answers", "--out"),
            *(tmp_path / name, "--layers", 1, "--steps", 3, "--tokens-per-step", 256, "--seed", seed),
        )
        weights.append(load_file(tmp_path / name / "model.safetensors")["fc.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_compiled_steps_train_the_same_drafter(
    work: Path, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(training, "_compiled", functools.cache(training._compiled.__wrapped__))
    weights = []
    for choice in ("no", "yes"):
        assert not graphs
        run(
            *("train", "--model", target_folder, "--device", "cpu", "--data", work / "answers", "--compile"),
            *(choice, "--out", tmp_path / choice, "--layers", 1, "--steps", 6, "--tokens-per-step", 256),
        )
        weights.append(load_file(tmp_path / choice / "model.safetensors"))
    # The drafter, the loss and one set for all layers of the target, twice where a size of one is met.
    assert 3 <= len(graphs) <= 16
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-3, atol=1e-4)


def test_answers_are_the_target_s_own_greedy_texts(work: Path, target_folder: Path) -> None:
    oracle = GreedyOracle(target_folder)
    answers = Answers.load([work / "answers"], VOCABULARY)
    sequences = answers.tokens.split(answers.lengths.tolist())
    greedy = 0
    for tokens, begin in zip(sequences, answers.prompt_lengths.tolist(), strict=True):
        prompt, text = tokens[:begin].tolist(), tokens[begin:].tolist()
        assert prompt[0] == 3
        assert prompt[-2:] == [END, 4]
        assert END not in text[:-1]
        assert text[-1] == END or len(text) == 48 or len(tokens) == 64
        greedy += oracle.chooses(prompt, text)
    assert len(sequences) == 60
    assert 40 <= greedy < 60  # the others are sampled


def test_measured_steps_are_the_oracle_s(work: Path, target_folder: Path) -> None:
    run(
        *(
            "measure",
            "--model",
            target_folder,
            "--device",
            "cpu",
            "--draft",
            work / "drafter",
            "--budget",
            4,
            12,
        ),
        *(
            "--prompts",
            work / "prompts.jsonl",
            "--limit",
            6,
            "--new-tokens",
            40,
            "--out",
            work / "steps.json",
        ),
    )
    found = json.loads((work / "steps.json").read_text())
    oracle, drafter = GreedyOracle(target_folder), OracleDrafter(work / "drafter")
    prompts = [
        [3, *(int(word[1:]) + 5 for word in json.loads(line)["prompt"].split()), END, 4]
        for line in (work / "prompts.jsonl").read_text().splitlines()[:6]
    ]
    for number, prompt in enumerate(prompts, 1):
        text = oracle.generate(prompt, 40 + BLOCK, stop=END)
        for name, budget, cap in (("chain", 1 * BLOCK, 1), ("tree 4", 4, 64), ("tree 12", 12, 64)):
            steps = [
                step.accept_len
                for step in greedy_steps(oracle.model, drafter, prompt, text, budget=budget, cap=cap)
            ]
            mine = found[name]["steps"][str(number)]
            assert sum(mine) >= min(39, len(text) - 1)
            assert mine[: len(steps)] == steps[: len(mine)]
    assert found["chain"]["mean"] > 1.3
    assert found["chain"]["tokens"] == sum(map(sum, found["chain"]["steps"].values()))


def test_states_of_padded_batches_are_those_of_single_sequences(target_folder: Path) -> None:
    target = load_target(str(target_folder), torch.device("cpu"), torch.float32)
    tokens = torch.randint(3, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(0))
    tokens[0, 12:] = 0
    together = context_features(target, tokens, [0, 2])
    assert together.shape == (2, 20, 64)
    alone = context_features(target, tokens[:1, :12], [0, 2])
    torch.testing.assert_close(together[:1, :12], alone, atol=1e-5, rtol=1e-5)
    layers: list[torch.Tensor] = []
    for layer in (0, 2):
        target.model.layers[layer].register_forward_hook(lambda _, __, output: layers.append(output))
    context_features(target, tokens, [0, 2])
    torch.testing.assert_close(together, torch.cat([_first(output) for output in layers], dim=-1))


def _first(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def test_the_target_makes_up_messages(target_folder: Path, tmp_path: Path) -> None:
    run(
        *("prompts", "--model", target_folder, "--device", "cpu", "--out", tmp_path / "made.jsonl"),
        *("--count", 5, "--batch-size", 32, "--temperature", 2.0, "--new-tokens", 100),
    )
    texts = [json.loads(line)["prompt"] for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    assert 1 <= len(set(texts)) == len(texts) <= 5
    assert not any("</s>" in text for text in texts)


def test_every_second_message_goes_on_from_a_beginning(target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "beginnings").write_text("w7 w8\n\nw9 w10\n")
    run(
        *("prompts", "--model", target_folder, "--device", "cpu", "--out", tmp_path / "made.jsonl"),
        *("--count", 400, "--batch-size", 64, "--temperature", 2.0, "--new-tokens", 40),
        *("--beginnings", tmp_path / "beginnings"),
    )
    texts = [json.loads(line)["prompt"] for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    begun = [sum(text.startswith(f"{words} w") for text in texts) for words in ("w7 w8", "w9 w10")]
    # Every turn ends in time with the same chance, a quarter of the turns have each beginning.
    assert len(texts) > 40
    assert all(0.1 < count / len(texts) < 0.4 for count in begun)


def test_weights_travel_in_pieces(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(2_500_000)
    (tmp_path / "weights").write_bytes(content)
    run("split", tmp_path / "weights", "--out", tmp_path / "pieces", "--megabytes", 1)
    sizes = [file.stat().st_size for file in sorted((tmp_path / "pieces").glob("weights.*"))]
    assert sizes == [1_000_000, 1_000_000, 500_000]
    run("join", tmp_path / "pieces", "--out", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == content
    (tmp_path / "pieces" / "weights.001").write_bytes(bytes(1_000_000))
    assert command.main(["join", str(tmp_path / "pieces"), "--out", str(tmp_path / "wrong")]) == 2
    assert not (tmp_path / "wrong").exists()


def test_the_script_runs_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "train_drafter.py", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "measure" in done.stdout
