"""A patched SGLang serves DDTREE where the package's entry point is left out; a reverted one is the stock SGLang."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from sglang_ddtree import cli
from sglang_ddtree.demo.server import ServerFailed, cpu_environment
from unit.host import sglang_trees
from unit.patch import trees

PROMPTS = mixed_prompts(6, longest=40)
NEW_TOKENS = 24
LEFT_OUT = {"SGLANG_PLUGINS": "some_other_plugin"}


def every_file(root: Path) -> dict[str, tuple[str, int]]:
    """SHA-256 and mode of all files that an import of the package could read as source."""
    found = {}
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_mode,
            )
    return found


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the installed SGLang, patched; taken back afterwards, and every byte compared."""
    root = sglang_trees.linked(tmp_path_factory.mktemp("patched"), trees.FILES)
    before = every_file(root)
    assert cli.main(["patch", "apply", "--target", str(root)]) == 0
    after = every_file(root)
    assert {name for name, state in before.items() if after[name] != state} == set(trees.FILES)
    yield root
    assert cli.main(["patch", "revert", "--target", str(root)]) == 0
    assert every_file(root) == before


def python_path(root: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(root.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }


def test_unpatched_copy_does_not_know_ddtree(
    launch: Launch, tiny_target: Path, tiny_drafter_8: Path, tmp_path: Path
) -> None:
    root = sglang_trees.linked(tmp_path, trees.FILES)
    with (
        pytest.raises(ServerFailed) as caught,
        launch(
            tiny_target,
            environment=LEFT_OUT | python_path(root),
            speculative_algorithm="DDTREE",
            speculative_draft_model_path=tiny_drafter_8,
        ),
    ):
        pass
    assert "Unknown speculative algorithm name: DDTREE" in caught.value.log
    assert str(root) in caught.value.log


def test_patched_copy_serves_plain_greedy_text(
    launch: Launch, tiny_target: Path, tiny_drafter_8: Path, oracle: GreedyOracle, patched: Path
) -> None:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    with launch(
        tiny_target,
        environment=LEFT_OUT | python_path(patched),
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter_8,
        speculative_ddtree_budget=12,
    ) as server:
        info = server.server_info()
        assert (info["speculative_algorithm"], info["speculative_ddtree_budget"]) == ("DDTREE", 12)
        answers = server.generate([{"input_ids": ids, "sampling_params": sampling} for ids in PROMPTS])
        assert str(patched) in server.log()
    assert [answer["output_ids"] for answer in answers] == [
        oracle.generate(ids, NEW_TOKENS) for ids in PROMPTS
    ]
    # Trees were verified and of use.
    assert sum(answer["meta_info"]["spec_verify_ct"] for answer in answers) > 0
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 0


def only_platform_entry_point(folder: Path) -> str:
    """The package as it looks to SGLang where only its folder is on the path, but for the CPU platform's entry point.

    The metadata found first on the path count, whatever is installed behind.
    """
    metadata = folder / "sglang_ddtree-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-ddtree\nVersion: 0\n")
    entry_point = "ddtree_cpu = sglang_ddtree.cpu.platform:activate"
    (metadata / "entry_points.txt").write_text(f"[sglang.srt.platforms]\n{entry_point}\n")
    return str(folder)


def test_doctor_says_that_the_patch_loads_it(patched: Path, tmp_path: Path) -> None:
    environment = cpu_environment() | python_path(patched)
    environment["PYTHONPATH"] += os.pathsep + only_platform_entry_point(tmp_path)
    command = [sys.executable, "-m", "sglang_ddtree.cli", "doctor", "--json"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    report = json.loads(run.stdout)
    rows = {(row["section"], row["name"]): (row["status"], row["detail"]) for row in report["findings"]}
    assert rows["hooks", "loaded by"] == ("ok", "the patch")
    assert rows["patch", "patched"][0] == "ok"
    assert rows["plugin", "entry point"][0] == "note"
    assert (report["would_start"], run.returncode) == (True, 0)


WITHOUT_PACKAGE = """
import sys
sys.modules["sglang_ddtree"] = None  # as if it were not there
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
print(SpeculativeAlgorithm.from_string("DFLASH"), SpeculativeAlgorithm.from_string(None))
for name in ("ddtree", "unheard"):
    try:
        SpeculativeAlgorithm.from_string(name)
    except ValueError as error:
        print(error)
"""


def test_patched_copy_names_the_missing_package_and_serves_the_rest(patched: Path) -> None:
    environment = {**os.environ, **LEFT_OUT, **python_path(patched), "SGLANG_USE_CPU_ENGINE": "1"}
    environment.pop("SGLANG_PLATFORM", None)
    command = [sys.executable, "-c", WITHOUT_PACKAGE]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    known, missing, unheard = run.stdout.splitlines()[-3:]
    assert known == "SpeculativeAlgorithm.DFLASH SpeculativeAlgorithm.NONE"
    assert missing.startswith("This SGLang is patched for sglang-ddtree, but DDTREE was not registered")
    assert unheard == "Unknown speculative algorithm name: unheard"
    assert "Patched to load sglang_ddtree, which failed: ModuleNotFoundError" in run.stderr
