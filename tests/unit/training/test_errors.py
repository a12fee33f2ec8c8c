"""What cannot be trained is said before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafter_training import command
from drafter_training.data import Answers
from drafter_training.model import drafter_config, start
from drafter_training.target import read_target

from unit.training.conftest import VOCABULARY


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: Any, **__: Any) -> None:
        raise AssertionError("loads the target")

    monkeypatch.setattr("drafter_training.target.load_target", loads)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Answers.of([([5, 6], [7, 8, 9])] * 4).save(tmp_path / "answers", VOCABULARY, {})
    return tmp_path / "answers"


def error_of(words: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main([str(word) for word in words]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"train_drafter.py {words[0]}: error: ")
    return printed.err


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--block-size", 1], "--block-size must be from 2 to 64, got 1"),
        (["--block-size", 65], "--block-size must be from 2 to 64, got 65"),
        (["--target-layers", "1,3"], "--target-layers [3]: a target of 4 layers has 0..2 to read"),
        (["--target-layers", "2,1"], "--target-layers [2, 1] must ascend"),
        (["--mask-token", 200], "--mask-token 200 is outside the vocabulary of 200 tokens"),
        (["--layers", 0], "--layers must be at least 1"),
        (["--steps", 0], "--steps must be at least 1"),
        (["--learning-rate", 0], "--learning-rate must be above 0"),
        (["--minutes", 0], "--minutes must be above 0"),
        (["--data", "nowhere"], "--data nowhere: no such file"),
        (["--model", "./nowhere"], "./nowhere: no such file or folder"),
    ],
)
def test_bad_choices_of_train(
    words: list[object],
    message: str,
    target_folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["train", "--model", target_folder, "--data", data, "--out", tmp_path / "out", *words]
    assert message in error_of(given, capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "has hidden_size = None"),
        ({"num_hidden_layers": 0}, "has num_hidden_layers = 0"),
        ({"text_config": {"hidden_size": 4}}, "has a text_config"),
        ({"final_logit_softcapping": 30.0}, "transforms its logits"),
        ({"num_hidden_layers": 1}, "it has one layer"),
    ],
)
def test_targets_of_another_kind(
    changes: dict[str, object],
    message: str,
    target_folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = json.loads((target_folder / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = ["train", "--model", tmp_path, "--data", data, "--out", tmp_path / "out"]
    assert message in error_of(given, capsys)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_files_that_are_no_answers(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[object] = ["train", "--model", target_folder, "--out", tmp_path / "out", "--data"]
    (tmp_path / "text").write_text("no tensors")
    assert "text: " in error_of([*given, tmp_path / "text"], capsys)
    assert "not a file of `generate`" in error_of([*given, target_folder / "model.safetensors"], capsys)
    Answers.of([([5], [6, 7])]).save(tmp_path / "other", 300, {})
    assert "a vocabulary of 300 tokens, the target has 200" in error_of([*given, tmp_path / "other"], capsys)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_no_result_is_overwritten(
    target_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model: list[object] = ["--model", target_folder, "--out", tmp_path]
    assert "exists; remove it" in error_of(["train", *model, "--data", data], capsys)
    assert "exists; remove it" in error_of(["export", *model, "--trained", tmp_path], capsys)
    assert "exists; remove it" in error_of(["generate", *model, "--prompts", "chat"], capsys)
    assert "exists; remove it" in error_of(["prompts", *model], capsys)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_prompts_that_cannot_be_read(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_text('{"text": "Hello"}\n')
    given: list[object] = ["generate", "--model", target_folder, "--out", tmp_path / "out", "--prompts"]
    assert "--prompts nowhere: " in error_of([*given, "nowhere"], capsys)
    assert "rows, line 1: no text in it" in error_of([*given, tmp_path / "rows"], capsys)
    assert "same greedy answer" in error_of([*given, "chat", "--repeat", 2], capsys)
    several = ["chat", "--temperature", 0, 0.7, 0, 1, "--repeat", 3]
    assert "same greedy answer" in error_of([*given, *several], capsys)
    assert "must not be below 0" in error_of([*given, "chat", "--temperature", -1], capsys)
    given[given.index("--model") + 1] = "nowhere"
    assert "--model nowhere: no such folder" in error_of([*given, "chat"], capsys)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_drafters_that_cannot_be_measured_or_exported(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model: list[object] = ["--model", target_folder]
    assert "no such folder" in error_of(["measure", *model, "--draft", tmp_path / "gone"], capsys)
    assert "--budget must be from 1 to 1024" in error_of(
        ["measure", *model, "--draft", tmp_path, "--budget", 4, 2000], capsys
    )
    config = drafter_config(
        read_target(str(target_folder)), block_size=4, layers=1, layer_ids=None, mask_token=9
    )
    start(config | {"num_target_layers": 9}, tmp_path / "other", seed=0)
    assert "trained for a target of 9 layers" in error_of(
        ["export", *model, "--trained", tmp_path / "other", "--out", tmp_path / "out"], capsys
    )
    assert not (tmp_path / "out").exists()


def test_the_mask_token_is_one_that_the_data_does_not_hold() -> None:
    answers = Answers.of([([0, 5], [199, 197])])
    assert answers.unused_token(VOCABULARY) == 198
    whole = Answers(torch.arange(4, dtype=torch.int32), torch.tensor([4]), torch.tensor([1]))
    with pytest.raises(ValueError, match="holds every token"):
        whole.unused_token(4)
