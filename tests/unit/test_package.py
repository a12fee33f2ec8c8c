"""What is in the source distribution, and in the wheel that is built from it: built offline, nothing installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from sglang_ddtree import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = "src/sglang_ddtree"
BASE = f"sglang_ddtree-{__version__}"
DRAFTER = ("demo/drafter/config.json", "demo/drafter/model.safetensors")
LEFT_OUT = (".*", "*.egg-info", "__pycache__", "build", "dist", "site")
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def build(what: str, source: Path, out: Path) -> Path:
    """Run one step of the build backend in `source`, in a process that sees no package index."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out)],
        cwd=source,
        env=os.environ | {"PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of this checkout, with files in it that must stay out."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in (
        "tests/test_decoy.py",
        f"{PACKAGE}/__pycache__/plugin.cpython-311.pyc",
        f"{PACKAGE}/tree/.pytest_cache/decoy.py",
        f"{PACKAGE}/demo/drafter/notes.txt",
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("")
    return build("build_sdist", copy, folder)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution alone, so that this must be complete."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("build_wheel", folder / BASE, folder)


def package_files() -> set[str]:
    """Every file of the package in this checkout, below its folder; `patch/versions` is a link to a folder."""
    found = set()
    for folder, folders, files in os.walk(ROOT / PACKAGE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found |= {(Path(folder) / name).relative_to(ROOT / PACKAGE).as_posix() for name in files}
    return found


def test_the_source_distribution_holds_the_package_and_what_builds_it(sdist: Path) -> None:
    assert sdist.name == f"{BASE}.tar.gz"
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    # A link would point to nothing on another machine.
    assert [member.name for member in members if not (member.isfile() or member.isdir())] == []
    names = {member.name.removeprefix(f"{BASE}/") for member in members if member.isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    written = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"}
    assert names - made - written == {f"{PACKAGE}/{name}" for name in package_files()}
    assert written <= names


def test_the_wheel_holds_the_package_its_metadata_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"{BASE}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in names if name.startswith(f"{BASE}.dist-info/")}
    assert names - metadata == {f"sglang_ddtree/{name}" for name in package_files()}
    assert {name.partition("/")[2] for name in metadata} == {
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "top_level.txt",
        "licenses/LICENSE",
    }


def test_the_wheel_holds_the_drafter_as_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in DRAFTER:
            assert archive.read(f"sglang_ddtree/{name}") == (ROOT / PACKAGE / name).read_bytes()
        assert archive.getinfo(f"sglang_ddtree/{DRAFTER[1]}").file_size > 1_000_000


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"{BASE}.dist-info/METADATA").decode())


def test_the_wheel_asks_for_nothing_that_could_replace_torch(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = metadata.get_all("Requires-Dist") or []
    always = [one for one in needed if "extra ==" not in one]
    assert [re.split(r"[<>=!~ ]", one)[0] for one in always] == ["safetensors"]
    assert not [one for one in needed if re.match(r"(torch|sglang|triton|transformers)\b", one)]


def test_the_wheel_registers_plugin_platform_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{BASE}.dist-info/entry_points.txt").decode()
    for line in (
        "[sglang.srt.plugins]",
        "ddtree = sglang_ddtree.plugin:load",
        "[sglang.srt.platforms]",
        "ddtree_cpu = sglang_ddtree.cpu.platform:activate",
        "sglang-ddtree = sglang_ddtree.cli:main",
    ):
        assert line in text.splitlines()
