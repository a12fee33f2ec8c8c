"""The systemd template: read as systemd reads it, its commands as SGLang and the tools read them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_ddtree import cli
from unit.deploy.server_flags import FOLDER, draining_signal, parse_server_flags

UNIT = FOLDER / "sglang-ddtree@.service"
OWN = "/opt/sglang-ddtree/bin/sglang-ddtree"

Sections = dict[str, dict[str, list[str]]]


def read_unit(text: str) -> Sections:
    """Section -> key -> values in order: a key may come several times, a line may go on behind a backslash."""
    joined = re.sub(r"\\\n", " ", text)
    sections: Sections = {}
    keys: dict[str, list[str]] = {}
    for line in joined.splitlines():
        if not line.strip() or line[0] in "#;":
            continue
        if line.startswith("["):
            keys = sections[line.strip("[] ")] = defaultdict(list)
        else:
            key, equals, value = line.partition("=")
            assert equals, line
            keys[key].append(value.strip())
    return sections


def read_environment() -> dict[str, str]:
    lines = (FOLDER / "sglang-ddtree.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    return read_unit(UNIT.read_text())["Service"]


def words(command: str) -> list[str]:
    """A command line as systemd gives it to the program: ``$X`` alone is split, ``${X}`` is not."""
    environment = read_environment()
    found: list[str] = []
    for word in shlex.split(command.lstrip("-")):
        if word.startswith("$") and not word.startswith("${"):
            found += environment[word[1:]].split()
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], word))
    return found


@pytest.mark.usefixtures("sglang_with_plugins")
def test_the_server_s_flags_are_its_own(service: dict[str, list[str]]) -> None:
    (command,) = service["ExecStart"]
    program, module, name, *flags = words(command)
    assert (program, module, name) == ("/opt/sglang-ddtree/bin/python", "-m", "sglang.launch_server")
    found, environment = parse_server_flags(flags), read_environment()
    assert found.speculative_algorithm == "DDTREE"
    assert found.model_path == environment["MODEL"]
    assert found.speculative_draft_model_path == environment["DRAFT"]
    assert (found.host, found.port) == (environment["HOST"], int(environment["PORT"]))
    assert found.enable_metrics is True
    with pytest.raises(SystemExit):
        parse_server_flags([*flags, "--no-such-flag"])


def test_the_tools_are_called_with_flags_that_they_know(
    service: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def note(name: str) -> None:
        monkeypatch.setattr(cli, f"_{name}", lambda arguments: ran.append(arguments.command) or 0)

    note("doctor")
    note("smoke")
    own = [command for key in ("ExecStartPre", "ExecStartPost") for command in service[key] if OWN in command]
    for command in own:
        program, *arguments = words(command)
        assert program == OWN
        assert cli.main(arguments) == 0
    assert ran == ["doctor", "smoke"]
    # The smoke test reports; a server that it finds fault with goes on.
    assert [command.startswith("-") for command in own] == [False, True]


def test_every_setting_is_used_and_none_is_missing() -> None:
    used = set(re.findall(r"\$\{?(\w+)\}?", UNIT.read_text()))
    environment = set(read_environment())
    assert used - environment == {"MAINPID"}
    assert environment - used == {"CUDA_VISIBLE_DEVICES"}


def test_it_stops_with_the_signal_that_sglang_drains_on(service: dict[str, list[str]]) -> None:
    assert service["KillSignal"] == [draining_signal()]
    # The signal goes to the main process alone.
    assert service["KillMode"] == ["mixed"]
    # SGLang looks every 5 s whether requests are left, then gives its schedulers 15 s.
    assert int(service["TimeoutStopSec"][0]) > 20


def test_it_restarts_after_a_failure_and_not_for_ever(service: dict[str, list[str]]) -> None:
    assert service["Restart"] == ["on-failure"]
    unit = read_unit(UNIT.read_text())["Unit"]
    attempts, interval = int(unit["StartLimitBurst"][0]), int(unit["StartLimitIntervalSec"][0])
    assert attempts * int(service["RestartSec"][0]) < interval


def shell(service: dict[str, list[str]], pid: int, port: int) -> Sequence[str]:
    (command,) = (one for one in service["ExecStartPost"] if one.startswith("/bin/sh"))
    return [
        word.replace("${MAINPID}", str(pid)).replace("${PORT}", str(port)) for word in shlex.split(command)
    ]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_waiting_for_the_server_ends_with_the_server(service: dict[str, list[str]]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(shell(service, gone.pid, 9), timeout=30, capture_output=True)
    assert done.returncode == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_it(tmp_path: Path) -> None:
    # Programs that exist, so that only what the template itself says can be wrong.
    text = re.sub(r"/opt/sglang-ddtree/bin/\S+", "/bin/true", UNIT.read_text())
    copy = tmp_path / "sglang-ddtree@test.service"

    def complaints(text: str) -> list[str]:
        copy.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
        return [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]

    assert complaints(text) == []
    assert complaints(text.replace("KillMode=mixed", "KillMod=mixed")) != []
