"""The Triton kernels under Triton's interpreter; `tests/gpu/check_tree_kernels.py` runs them compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("triton_twins.py")
CASES = {
    "build": 100,
    "build_limits": 5,
    "build_ties": 50,
    "topology": 30,
    "settle": 30,
    "window": 30,
    "mask": 8,
    "candidates": 25,
    "sample": 40,
    "sample_noise": 8,
}


@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_its_torch_twin(name: str) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, sys.path)]),
    }
    run = subprocess.run(
        [sys.executable, str(SCRIPT), name], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) == CASES[name]
