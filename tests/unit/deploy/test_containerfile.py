"""The container file: no build, but each of its commands is read, and what it runs of ours runs here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from sglang_ddtree import __version__
from sglang_ddtree.host.contract import TESTED_VERSIONS
from unit.deploy.server_flags import FOLDER, draining_signal, parse_server_flags


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = (FOLDER / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    found = []
    for line in joined:
        name, _, rest = line.partition(" ")
        found.append((name, rest))
    return found


def values(instructions: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for found, rest in instructions if found == name]


def test_the_image_is_an_argument_whose_default_is_a_tested_sglang(
    instructions: list[tuple[str, str]],
) -> None:
    assert instructions[:2] == [("ARG", values(instructions, "ARG")[0]), ("FROM", "${SGLANG_IMAGE}")]
    name, _, image = values(instructions, "ARG")[0].partition("=")
    assert name == "SGLANG_IMAGE"
    assert image.removeprefix("lmsysorg/sglang:v") in TESTED_VERSIONS


def test_the_wheel_is_this_package_s(instructions: list[tuple[str, str]]) -> None:
    (copy,) = values(instructions, "COPY")
    pattern, target = copy.split()
    assert fnmatch(f"sglang_ddtree-{__version__}-py3-none-any.whl", pattern)
    install, check = values(instructions, "RUN")
    assert f"{target}{pattern}" in install
    # Nothing of the image's torch is replaced.
    assert "--no-deps" in shlex.split(install)
    assert check.startswith("python3 -c ")


def test_the_build_s_check_passes_where_sglang_fits_and_fails_elsewhere(
    instructions: list[tuple[str, str]],
) -> None:
    code = shlex.split(values(instructions, "RUN")[1])[2]
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
    elsewhere = "from sglang_ddtree.host import contract; contract.installed_root = lambda: None; "
    done = subprocess.run(
        [sys.executable, "-c", elsewhere + code], timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "does not fit SGLang not installed" in done.stderr


@pytest.mark.usefixtures("sglang_with_plugins")
def test_the_server_s_flags_are_its_own(instructions: list[tuple[str, str]]) -> None:
    (entry,) = values(instructions, "ENTRYPOINT")
    program, module, name, *flags = json.loads(entry)
    assert (program, module, name) == ("python3", "-m", "sglang.launch_server")
    found = parse_server_flags([*flags, "--model-path", "m"])
    assert (found.speculative_algorithm, found.host) == ("DDTREE", "0.0.0.0")
    assert [str(found.port)] == values(instructions, "EXPOSE")
    (health,) = values(instructions, "HEALTHCHECK")
    command = json.loads(health[health.index("[") :])
    compile(command[2], "HEALTHCHECK", "exec")
    assert f"http://127.0.0.1:{found.port}/health" in command[2]


def test_it_stops_with_the_signal_that_sglang_drains_on(instructions: list[tuple[str, str]]) -> None:
    assert values(instructions, "STOPSIGNAL") == [draining_signal()]
