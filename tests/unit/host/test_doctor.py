"""The doctor finds what keeps DDTREE from starting, and says so with its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as real_version
from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig

from e2e.checkpoints import make_drafter, make_target
from sglang_ddtree import cli, plugin
from sglang_ddtree.config import OPTIONS
from sglang_ddtree.host import contract, doctor, hooks
from sglang_ddtree.host import drafter as drafter_module
from sglang_ddtree.host.doctor import Finding
from sglang_ddtree.patch import operations
from sglang_ddtree.patch.installation import JOURNAL
from unit.patch import trees


def test_machine_of_the_tests_can_start(
    sglang_with_plugins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", vocabulary=64)
    drafter = make_drafter(tmp_path / "drafter", vocabulary=64)
    assert cli.main(["doctor", "--draft", str(drafter), "--model", str(target)]) == 0
    text = capsys.readouterr().out
    assert text.endswith("DDTREE can start.\n")
    assert "FAIL" not in text
    for section in (
        "versions",
        "contract",
        "plugin",
        "patch",
        "hooks",
        "device",
        "CPU shims",
        "options",
        "drafter",
    ):
        assert f"\n{section}\n" in f"\n{text}"
    for option in OPTIONS:
        assert option.flag in text
    for hook in hooks.declared():
        assert hook.reason in text


def test_json_says_the_same(sglang_with_plugins: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["would_start"] is True
    assert {"section", "name", "status", "detail"} == set(report["findings"][0])


def test_drafter_of_another_target_fails(
    sglang_with_plugins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", vocabulary=64)
    drafter = make_drafter(tmp_path / "drafter", vocabulary=128)
    assert cli.main(["doctor", "--draft", str(drafter), "--model", str(target)]) == 1
    assert "its vocabulary size is 128, the target's is 64" in capsys.readouterr().out


def test_target_that_the_server_refuses_fails(
    sglang_with_plugins: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", vocabulary=64)
    config = json.loads((target / "config.json").read_text())
    sliding = {"layer_types": ["sliding_attention"] * config["num_hidden_layers"]}
    window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
    (target / "config.json").write_text(json.dumps(config | sliding | window))
    drafter = make_drafter(tmp_path / "drafter", vocabulary=64)
    assert cli.main(["doctor", "--draft", str(drafter), "--model", str(target)]) == 1
    assert "sliding-window target ['Qwen3ForCausalLM']" in capsys.readouterr().out


def test_error_of_a_check_becomes_a_row(
    sglang_with_plugins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise TypeError("something unforeseen")

    monkeypatch.setattr(drafter_module, "check_drafter", fail)
    findings = doctor.examine(str(tmp_path), str(tmp_path))
    failed = {finding.section: finding for finding in findings if finding.status == doctor.FAIL}
    assert set(failed) == {"drafter", "target"}
    assert (failed["drafter"].name, failed["drafter"].detail) == ("TypeError", "something unforeseen")


def test_drafter_without_target_fails(sglang_with_plugins: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--draft", "some/drafter"]) == 1
    assert "give --model too" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--draft", "--model"])
def test_folder_that_is_not_there_is_said_before_the_hub_is_asked(
    sglang_with_plugins: None,
    flag: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(path: str, *args: Any, **kwargs: Any) -> Any:
        assert path != "nowhere"
        return real(path, *args, **kwargs)

    target, drafter = make_target(tmp_path / "target", vocabulary=64), tmp_path / "drafter"
    make_drafter(drafter, vocabulary=64)
    real = PretrainedConfig.get_config_dict
    monkeypatch.setattr(PretrainedConfig, "get_config_dict", ask)
    given = {"--draft": str(drafter), "--model": str(target), flag: "nowhere"}
    assert cli.main(["doctor", "--json", *(word for pair in given.items() for word in pair)]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    failed = {one["section"]: one["detail"] for one in findings if one["status"] == "FAIL"}
    message = f"{flag} nowhere: no such folder."
    assert failed == {"drafter": message} | ({"target": message} if flag == "--model" else {})


FIRST = "there is no NVIDIA GPU here: on a CPU set SGLANG_PLATFORM=ddtree_cpu"


def test_machine_without_a_gpu_and_platform_is_told_what_to_do_first(tmp_path: Path) -> None:
    with suppress(PackageNotFoundError):
        pytest.skip(f"torchvision {real_version('torchvision')} is installed: SGLang fails elsewhere")
    target = make_target(tmp_path / "target", vocabulary=64)
    environment = {name: value for name, value in os.environ.items() if name != "SGLANG_PLATFORM"}
    words = [sys.executable, "-m", "sglang_ddtree.cli", "doctor", "--json", "--model", str(target)]
    done = subprocess.run(
        words, env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    failed = {
        one["section"]: one["detail"]
        for one in json.loads(done.stdout)["findings"]
        if one["status"] == "FAIL"
    }
    missing = "No module named 'torchvision'"
    assert failed == {
        "hooks": f"{FIRST} (sglang_ddtree could not register DDTREE: ModuleNotFoundError: {missing})",
        "device": FIRST,
        "target": f"{FIRST} ({missing})",
    }


def test_options_are_told_with_what_runs_where_they_are_not_set() -> None:
    found = {finding.name: finding.detail for finding in doctor._options()}
    assert found["--speculative-ddtree-budget"].startswith("not set: auto on CUDA, 32 on a CPU, ")
    assert "; may be auto or a whole number from 1 to 1024. " in found["--speculative-ddtree-budget"]
    assert "most expected tokens per millisecond" in found["--speculative-ddtree-budget"]
    assert found["--speculative-ddtree-topk-cap"].startswith(
        "not set: 16; may be a whole number from 1 to 64. "
    )
    assert found["--speculative-ddtree-allow-hybrid-unsafe"].startswith(
        "not set: false; may be true or false. "
    )


def test_absent_sglang_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def version(package: str) -> str:
        if package == "sglang":
            raise PackageNotFoundError(package)
        return real_version(package)

    monkeypatch.setattr(contract, "installed_root", lambda: None)
    monkeypatch.setattr(doctor, "version", version)
    assert cli.main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "not installed" in text
    assert "pip install sglang==0.5.23" in text
    assert "DDTREE would not start" in text


def test_vendored_sglang_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", version)
    (finding,) = [finding for finding in doctor._versions() if finding.name == "sglang"]
    assert (finding.status, finding.detail) == (doctor.OK, "0.5.23")


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("SGLANG_PLUGINS", "other", "add ddtree"),
        ("SGLANG_PLATFORM", "other", "SGLang skips this package"),
    ],
)
def test_environment_that_leaves_the_plugin_out_is_said(
    variable: str, value: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    (finding,) = [finding for finding in doctor._plugin() if finding.name == variable]
    assert finding.status == doctor.FAIL
    assert advice in finding.detail


def test_unapplied_hook_fails(sglang_with_plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "unapplied", lambda: list(hooks.declared()[:1]))
    failed = [finding.name for finding in doctor._hooks() if finding.status == doctor.FAIL]
    assert failed == ["after server_args.ServerArgs.add_cli_args"]


@pytest.fixture
def minimal_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed SGLang as the doctor sees it: the files that a patch touches, its own to change."""
    root = trees.minimal(tmp_path)
    monkeypatch.setattr(doctor, "installed_root", lambda: root)
    return root


def only(findings: Iterator[Finding]) -> tuple[str, str, str]:
    (finding,) = findings
    return finding.name, finding.status, finding.detail


def test_patched_interrupted_and_changed_installations_are_told_apart(minimal_sglang: Path) -> None:
    assert only(doctor._patch()) == ("original", doctor.OK, "not patched: the files are SGLang's own")
    operations.apply(minimal_sglang)
    assert only(doctor._patch()) == ("patched", doctor.OK, "patched: SGLang loads sglang_ddtree itself")
    (minimal_sglang / JOURNAL).touch()
    name, status, detail = only(doctor._patch())
    assert (name, status) == ("interrupted", doctor.NOTE)
    assert "`sglang-ddtree patch apply` finishes it" in detail
    (minimal_sglang / trees.FILES[1]).write_text("mine\n")
    name, status, detail = only(doctor._patch())
    assert (name, status) == ("changed", doctor.NOTE)
    assert trees.FILES[1] in detail


@pytest.mark.parametrize("variable", ["SGLANG_PLUGINS", "SGLANG_PLATFORM"])
def test_patched_sglang_starts_without_the_entry_point(
    minimal_sglang: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setenv(variable, "other")
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    assert [finding.status for finding in doctor._plugin()] == [doctor.FAIL, doctor.FAIL]
    operations.apply(minimal_sglang)
    findings = list(doctor._plugin())
    assert [finding.status for finding in findings] == [doctor.NOTE, doctor.NOTE]
    assert all("The patched SGLang loads this package all the same" in finding.detail for finding in findings)


def test_entry_point_and_patch_together_load_once(
    sglang_with_plugins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(plugin, "_callers", list(plugin._callers))
    assert [finding.detail for finding in doctor._hooks() if finding.name == "loaded by"] == [
        "the entry point"
    ]
    before = {target: list(registered) for target, registered in HookRegistry._hooks.items()}
    declared = hooks.declared()
    plugin.load_from_patch()
    HookRegistry.apply_hooks()
    assert HookRegistry._hooks == before
    assert hooks.declared() == declared
    assert hooks.unapplied() == []
    (finding,) = [finding for finding in doctor._hooks() if finding.name == "loaded by"]
    assert finding.detail == "the entry point; the patch called later and changed nothing"
