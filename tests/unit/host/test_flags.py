"""The options on SGLang's own surfaces."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree.config import OPTIONS, DDTreeConfig
from sglang_ddtree.host.flags import ddtree_config, set_options

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

DDTREE = ["--model-path", "some/model", "--speculative-algorithm", "DDTREE"]


def parse(*arguments: str) -> Any:
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args([*DDTREE, *arguments])


def engine_arguments(**keywords: Any) -> Any:
    """What `sglang.Engine(**keywords)` makes of its keywords."""
    from sglang.srt.entrypoints.engine import Engine

    return Engine.server_args_class(model_path="some/model", **keywords)


def test_help_shows_every_flag_with_default_and_range() -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    text = " ".join(parser.format_help().split())
    assert "--speculative-ddtree-budget auto|N" in text
    assert "Default: auto on CUDA, 32 on a CPU, on hybrid targets and without CUDA graphs, range" in text
    assert "Default: 16, range: 1..64." in text
    assert "--speculative-ddtree-allow-hybrid-unsafe" in text


def test_command_line_reaches_another_process() -> None:
    record = parse("--speculative-ddtree-budget", "8", "--speculative-ddtree-topk-cap=4")
    there = pickle.loads(pickle.dumps(record))
    assert ddtree_config(there) == DDTreeConfig(budget=8, topk_cap=4)


def test_the_budget_may_follow_the_load() -> None:
    assert ddtree_config(parse("--speculative-ddtree-budget", "auto")).budget == "auto"


def test_unset_flags_are_the_defaults() -> None:
    assert ddtree_config(parse()) == DDTreeConfig()


def test_yaml_file_sets_the_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "speculative-ddtree-budget: 7\n"
        "speculative-ddtree-topk-cap: 3\n"
        "speculative-ddtree-allow-hybrid-unsafe: true\n"
    )
    record = parse("--config", str(file), "--speculative-ddtree-topk-cap", "5")
    assert ddtree_config(record) == DDTreeConfig(budget=7, topk_cap=5, allow_hybrid_unsafe=True)


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ("speculative-algorithm: DDTREE\n", []),
        ("speculative-ddtree-budget: 7\n", []),
        ("port: 31999\n", ["--speculative-algorithm", "DDTREE"]),
        (None, ["--speculative-algorithm", "DDTREE"]),
    ],
)
def test_yaml_file_that_sglang_does_not_read_is_refused(
    tmp_path: Path, content: str | None, arguments: list[str]
) -> None:
    from sglang.srt.server_args import prepare_server_args

    file = tmp_path / "server.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=rf"^--config={file}: .* Write --config {file}$"):
        prepare_server_args(["--model-path", "some/model", f"--config={file}", *arguments])


def test_yaml_file_of_another_server_is_left_to_sglang(tmp_path: Path) -> None:
    from sglang.srt.server_args import prepare_server_args

    file = tmp_path / "server.yaml"
    file.write_text("speculative-algorithm: DFLASH\n")
    for path in (file, tmp_path, tmp_path / "absent"):
        record = prepare_server_args(["--model-path", "some/model", f"--config={path}"])
        assert record.speculative_algorithm is None


def test_engine_takes_the_keywords() -> None:
    record = engine_arguments(speculative_algorithm="DDTREE", speculative_ddtree_budget=9, port=31999)
    assert ddtree_config(record) == DDTreeConfig(budget=9)
    assert record.port == 31999
    assert engine_arguments().speculative_algorithm is None


def test_server_info_shows_the_options_of_a_ddtree_server_only() -> None:
    shown = parse("--speculative-ddtree-budget", "8").resolved_dict()
    assert {name: shown[name] for name in shown if "ddtree" in name} == {
        "speculative_ddtree_budget": 8,
        "speculative_ddtree_topk_cap": 16,
        "speculative_ddtree_allow_hybrid_unsafe": False,
    }
    assert not [name for name in engine_arguments().resolved_dict() if "ddtree" in name]


@pytest.mark.parametrize("algorithm", [None, "DFLASH", "EAGLE"])
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.field)
def test_flag_with_another_algorithm_is_refused_by_name(algorithm: str | None, option: Any) -> None:
    value = True if option.is_switch else option.low
    with pytest.raises(ValueError, match=f"{option.flag} {value}: only --speculative-algorithm DDTREE"):
        engine_arguments(speculative_algorithm=algorithm, **{option.attribute: value})


def test_command_line_refuses_a_flag_with_another_algorithm() -> None:
    from sglang.srt.server_args import prepare_server_args

    with pytest.raises(ValueError, match="--speculative-ddtree-budget 8: only"):
        prepare_server_args(["--model-path", "some/model", "--speculative-ddtree-budget", "8"])


def test_command_line_refuses_a_value_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--speculative-ddtree-budget", "0")
    expected = "argument --speculative-ddtree-budget: must be auto or a whole number from 1 to 1024, got '0'"
    assert expected in capsys.readouterr().err


def test_engine_refuses_a_value_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"topk-cap must be a whole number from 1 to 64, got 65"):
        engine_arguments(speculative_algorithm="DDTREE", speculative_ddtree_topk_cap=65)


def test_algorithm_name_is_taken_in_any_case() -> None:
    record = engine_arguments(speculative_algorithm="ddtree", speculative_ddtree_budget=9)
    set_options(record, budget=10)
    assert ddtree_config(record).budget == 10
