from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USE = """
from sglang_ddtree.cpu import absent_torchvision
absent_torchvision.install()
absent_torchvision.install()
import sys
import torchvision.transforms.v2.functional as tvf
from torchvision.transforms import InterpolationMode
class Transform(InterpolationMode.Anything): pass
def resize(mode: InterpolationMode | None = InterpolationMode.BICUBIC): pass
print(sum(type(finder).__name__ == "_AbsentFinder" for finder in sys.meta_path))
try:
    tvf.resize(1)
except ImportError as error:
    print(error)
"""


def test_names_can_be_taken_but_not_called() -> None:
    shown = subprocess.run([sys.executable, "-c", USE], text=True, capture_output=True, check=True).stdout
    finders, error = shown.splitlines()
    assert finders == "1"
    assert error.startswith("torchvision.transforms.v2.functional.resize was called")


def test_a_real_torchvision_wins(tmp_path: Path) -> None:
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text("real = True\n")
    code = (
        "from sglang_ddtree.cpu import absent_torchvision; absent_torchvision.install();"
        "import torchvision; print(torchvision.real, absent_torchvision.is_installed())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        text=True,
        capture_output=True,
        check=True,
    )
    assert result.stdout.split() == ["True", "False"]
