"""The command and the step that it draws, against an implementation written from the paper for the tests alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from e2e import checkpoints
from e2e.hf import GreedyOracle
from e2e.oracle import Drafter as OracleDrafter
from e2e.oracle import greedy_steps
from sglang_ddtree import cli
from sglang_ddtree.sketch.drafter import Drafter
from sglang_ddtree.sketch.drawing import TEXT_NODES
from sglang_ddtree.sketch.models import Step, draw_step
from sglang_ddtree.tree.capacity import MAX_NODES
from sglang_ddtree.usage import BUDGET

CAP = 16


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return checkpoints.make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def oracle(target: Path) -> GreedyOracle:
    return GreedyOracle(target)


def paths(step: Step) -> list[tuple[int, ...]]:
    """Token paths of the nodes, from the root's children on."""
    found: list[tuple[int, ...]] = [()]
    for node in step.nodes:
        found.append((*found[node.parent], node.token))
    return found[1:]


@pytest.mark.parametrize("rope", ["rope_theta", "rope_parameters"])
@pytest.mark.parametrize("budget", [1, 16, 64])
def test_the_first_step_is_the_oracle_s(oracle: GreedyOracle, tmp_path: Path, budget: int, rope: str) -> None:
    folder = checkpoints.make_drafter(tmp_path / "drafter", block_size=8, rope=rope)
    drafter = Drafter(folder).float().eval()
    for prompt in ([5, 9, 21, 4, 7], [30] * 3, list(range(20, 60))):
        text = oracle.generate(prompt, 24)
        expected, *_ = greedy_steps(oracle.model, OracleDrafter(folder), prompt, text, budget=budget, cap=CAP)
        found = draw_step(oracle.model, drafter, prompt, budget)
        assert found.root == text[0]
        assert list(found.text) == text[1:8]
        assert paths(found) == expected.paths
        assert [node.score for node in found.nodes] == pytest.approx(expected.scores, abs=1e-4)
        assert len(found.accepted()) + 1 == expected.accept_len


def test_the_command_draws_text_and_svg(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = checkpoints.make_drafter(tmp_path / "drafter")
    words = ["tree", "--prompt", "Hello!", "--model", str(target), "--draft", str(drafter), "--budget", "9"]
    assert cli.main([*words, "--svg", str(tmp_path / "tree.svg")]) == 0
    out = capsys.readouterr().out
    assert sum("─ " in line for line in out.splitlines()) == 9
    assert "of 9 nodes" in out
    assert (tmp_path / "tree.svg").read_text().count("<line") == 9


def test_the_largest_tree_that_a_server_builds_is_drawn(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert BUDGET.high == MAX_NODES
    drafter = checkpoints.make_drafter(tmp_path / "drafter")
    words = ["tree", "--prompt", "Hello!", "--model", str(target), "--draft", str(drafter)]
    words += ["--budget", str(MAX_NODES), "--svg", str(tmp_path / "tree.svg")]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert f"of {MAX_NODES} nodes" in out.splitlines()[-1]
    assert TEXT_NODES < len(out.splitlines()) < MAX_NODES
    assert (tmp_path / "tree.svg").read_text().count("<line") == MAX_NODES


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({}, ["--budget", "0"], "--budget must be a whole number from 1 to 1024, got 0"),
        ({}, ["--budget", "1025"], "--budget must be a whole number from 1 to 1024, got 1025"),
        ({}, ["--draft", "nowhere"], "--draft nowhere: no such folder"),
        ({}, ["--model", "nowhere"], "--model nowhere: no such folder"),
        ({"hidden_size": 48}, [], "cannot be used by DDTREE"),
        ({"is_causal": True}, [], "only drafters with full attention"),
    ],
)
def test_what_cannot_be_drawn_is_exit_code_2(
    target: Path,
    tmp_path: Path,
    changes: dict[str, object],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafter = checkpoints.make_drafter(tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | changes))
    given = ["tree", "--prompt", "Hello!", "--model", str(target), "--draft", str(drafter)]
    assert cli.main([*given, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "sglang-ddtree tree: error: " in printed.err
    assert message in printed.err
