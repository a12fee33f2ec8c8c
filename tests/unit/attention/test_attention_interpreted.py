"""The attention kernels under Triton's interpreter; `tests/gpu/check_attention.py` runs them compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("attention_twins.py")


@pytest.mark.parametrize("name", ["attention", "pointers"])
def test_kernel_equals_its_torch_twin(name: str) -> None:
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, sys.path)]),
    }
    run = subprocess.run(
        [sys.executable, str(SCRIPT), name, "40"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) == 40
