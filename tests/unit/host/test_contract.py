"""The table of names: against the installed SGLang, another release, doctored copies; its completeness."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_ddtree
from sglang_ddtree.host import contract, hooks
from sglang_ddtree.host.source_tree import SourceTree, installed_root
from unit.host import sglang_trees

SOURCES = Path(sglang_ddtree.__file__).parent
SERVER_ARGS = "srt/server_args.py"


def test_installed_sglang_meets_the_contract() -> None:
    assert contract.check_contract() == []
    assert contract.found_version() in contract.TESTED_VERSIONS


def test_doctored_names_are_all_named(tmp_path: Path) -> None:
    root = sglang_trees.doctored(
        tmp_path,
        {
            "srt/speculative/dflash_utils.py": (
                "def validate_dflash_request(req",
                "def validate_dflash_request(request",
            ),
            "srt/speculative/dflash_worker_v2.py": ("_noise_embed_scale", "_embedding_scale"),
            "srt/arg_groups/fields/spec.py": ("speculative_eagle_topk:", "speculative_topk:"),
            "srt/sampling/sampling_params.py": ("logit_bias:", "bias_of_logits:"),
        },
    )
    mismatches = contract.check_contract(root)
    assert {mismatch.name for mismatch in mismatches} == {
        "sglang.srt.speculative.dflash_utils.validate_dflash_request",
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._noise_embed_scale",
        "sglang.srt.sampling.sampling_params.SamplingParams.logit_bias",
        "sglang.srt.server_args.ServerArgs.speculative_eagle_topk",
    }
    text = contract.describe(mismatches, root)
    for expected in (
        f"SGLang {contract.found_version()}",
        "validate_dflash_request: expected (req, enable_overlap), found (request, enable_overlap)",
        "_noise_embed_scale: expected a definition, found nothing",
        "Tested with SGLang 0.5.23",
        "pip install sglang==0.5.23",
    ):
        assert expected in text


def test_release_before_does_not_meet_the_contract() -> None:
    root = sglang_trees.release("0.5.22")
    names = {mismatch.name for mismatch in contract.check_contract(root)}
    assert "sglang.srt.speculative.spec_utils.draft_tp_context" in names
    assert "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.draft_parallel_layout" in names
    assert contract.found_version(root) == "0.5.22"


def test_absent_sglang_is_one_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "installed_root", lambda: None)
    (mismatch,) = contract.check_contract()
    assert str(mismatch).startswith("sglang: expected version 0.5.23, found not installed")


PROBE = """
import logging
records = []
class Keep(logging.Handler):
    def emit(self, record): records.append(record)
logging.getLogger("sglang_ddtree").addHandler(Keep())
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import get_spec
from sglang.srt.server_args import prepare_server_args
assert get_spec("DDTREE") is None
assert SpeculativeAlgorithm.from_string("EAGLE").is_eagle()
assert prepare_server_args(["--model-path", "m"]).speculative_algorithm is None
for attempt in (
    lambda: SpeculativeAlgorithm.from_string("ddtree"),
    lambda: prepare_server_args(["--model-path", "m", "--speculative-ddtree-budget", "8"]),
):
    try:
        attempt()
    except RuntimeError as error:
        print("REFUSED", error)
print("ERRORS", len([r for r in records if r.levelname == "ERROR"]))
"""


def test_doctored_sglang_registers_nothing_and_says_why(tmp_path: Path) -> None:
    sglang_trees.doctored(
        tmp_path,
        {"srt/speculative/draft_worker_common.py": ("def make_draft_input_v2(", "def make_draft_input_v3(")},
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "SGLANG_PLATFORM": "ddtree_cpu"}
    # Only the name that our table has is gone; what SGLang itself imports stays.
    alias = tmp_path / "sglang/srt/speculative/draft_worker_common.py"
    alias.write_text(alias.read_text() + "\nglobals()['make_draft_input_v2'] = make_draft_input_v3\n")
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("REFUSED") == 2, done.stdout
    assert done.stdout.count("draft_worker_common.make_draft_input_v2: expected (*, bonus_tokens") == 2
    assert "ERRORS 1" in done.stdout


def imported_names() -> Iterator[tuple[str, str, str]]:
    """(file, module, name) of everything that the package imports from SGLang."""
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang":
                for alias in node.names:
                    yield str(file.relative_to(SOURCES)), str(node.module), alias.name


def test_every_import_from_sglang_has_a_row() -> None:
    tree = SourceTree(installed_root() or Path())
    known = {(row.module, row.name.split(".")[0]) for row in contract.all_rows()}
    modules = {row.module for row in contract.all_rows()}
    missing = [
        f"{file}: {module}.{name}"
        for file, module, name in imported_names()
        if (module, name) not in known and f"{module}.{name}" not in modules
    ]
    assert missing == []
    assert tree.find("sglang.srt.server_args", "ServerArgs") is not None


@pytest.mark.usefixtures("sglang_with_plugins")
def test_every_hook_target_has_a_row() -> None:
    known = {f"{row.module}.{row.name}" for row in contract.all_rows()}
    assert [hook.target for hook in hooks.declared() if hook.target not in known] == []
