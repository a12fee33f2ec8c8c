"""Which checkpoints may draft: plain DFlash ones that fit the target; others are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from e2e.checkpoints import HIDDEN, LAYERS, VOCABULARY, make_drafter
from sglang_ddtree.host.checkpoint import CheckpointError, read_config
from sglang_ddtree.host.drafter import DrafterError, check_drafter, rope_theta

TARGET = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
DFLASH = {"mask_token_id": 3, "target_layer_ids": [1, 2]}


@pytest.fixture
def drafter(tmp_path: Path) -> Callable[..., str]:
    """Makes a drafter with changed config entries, where None removes one, and returns its path."""

    def make(**changes: Any) -> str:
        folder = make_drafter(tmp_path / "drafter", block_size=8)
        config = json.loads((folder / "config.json").read_text()) | changes
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return make


def edit_tensors(path: str, **changes: torch.Tensor | None) -> None:
    file = Path(path) / "model.safetensors"
    tensors = load_file(file) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def test_plain_drafter_passes_and_is_described(drafter: Callable[..., str]) -> None:
    report = check_drafter(drafter(), TARGET)
    assert (report.block_size, report.mask_token_id, report.target_layer_ids) == (8, 3, (1, 2))
    assert (report.num_layers, report.hidden_size, report.vocab_size) == (2, HIDDEN, VOCABULARY)
    assert report.tensors == 25


def test_shipped_drafter_fits_its_target() -> None:
    from sglang_ddtree.demo import DRAFTER

    report = check_drafter(str(DRAFTER), {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30})
    assert report.block_size == 16


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_heads(drafter: Callable[..., str], ranks: int) -> None:
    # Four heads over two KV heads: on four ranks two of them hold the same one.
    assert check_drafter(drafter(), TARGET, ranks=ranks).tensors == 25


@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads", "message"),
    [
        (3, 4, 2, "num_attention_heads is 4, and --tensor-parallel-size 3 does not divide it"),
        (8, 4, 2, "num_attention_heads is 4, and --tensor-parallel-size 8 does not divide it"),
        (
            4,
            12,
            6,
            "num_key_value_heads is 6: --tensor-parallel-size must divide it or be a multiple of it, got 4",
        ),
        (
            4,
            12,
            3,
            "num_key_value_heads is 3: --tensor-parallel-size must divide it or be a multiple of it, got 4",
        ),
    ],
)
def test_heads_that_the_ranks_cannot_share_are_refused(
    drafter: Callable[..., str], ranks: int, heads: int, kv_heads: int, message: str
) -> None:
    path = drafter(num_attention_heads=heads, num_key_value_heads=kv_heads)
    with pytest.raises(DrafterError, match=message):
        check_drafter(path, TARGET, weights=False, ranks=ranks)
    check_drafter(path, TARGET, weights=False)


def test_a_width_that_the_ranks_cannot_share_is_refused(drafter: Callable[..., str]) -> None:
    path = drafter(intermediate_size=258)
    with pytest.raises(DrafterError, match="intermediate_size is 258, and --tensor-parallel-size 4 does not"):
        check_drafter(path, TARGET, weights=False, ranks=4)
    check_drafter(path, TARGET, weights=False, ranks=2)


def test_options_at_the_top_level_count_too(drafter: Callable[..., str]) -> None:
    path = drafter(dflash_config=None, mask_token_id=3, target_layer_ids=[0, 3])
    assert check_drafter(path, TARGET).target_layer_ids == (0, 3)


def test_target_is_read_from_its_folder_and_from_its_text_config(
    drafter: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": TARGET}))
    assert check_drafter(drafter(), str(tmp_path)).hidden_size == HIDDEN


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({"rope_theta": 5000.0}, 5000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, 5000.0),
        ({"rope_parameters": {"rope_theta": 7000.0}, "rope_theta": 5000.0}, 7000.0),
        ({}, None),
    ],
)
def test_rope_base_is_read_from_both_shapes(config: dict[str, Any], theta: float | None) -> None:
    assert rope_theta(config) == theta


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("DFlash2DraftModel", "a DFlash2 drafter (candidate selector)"),
        ("MiniMaxDFlash2DraftModel", "a DFlash2 drafter (candidate selector)"),
        ("LiLiCorrDraftModel", "a LiLiCorr drafter"),
        ("Qwen3DSparkModel", "a DSpark drafter"),
        ("DFlashLagunaForCausalLM", "a Laguna drafter"),
        ("MuseGlimmerAssistantModel", "a Muse drafter"),
        ("LlamaForCausalLMEagle3", "an EAGLE head"),
        ("Qwen3NextForCausalLMMTP", "an MTP head"),
        ("Qwen3ForCausalLM", "no DFlash drafter"),
    ],
)
def test_other_family_by_its_architecture(
    drafter: Callable[..., str], architecture: str, family: str
) -> None:
    with pytest.raises(DrafterError) as caught:
        check_drafter(drafter(architectures=[architecture]), TARGET)
    assert family in str(caught.value)
    assert f"['{architecture}']" in str(caught.value)
    assert "architectures: ['DFlashDraftModel']" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dflash_config": DFLASH | {"selector_rank": 8, "selector_top_k": 4}}, "selector_rank = 8"),
        (
            {"dflash_config": DFLASH | {"projector_type": "domino"}},
            "a Domino drafter, projector_type = 'domino'",
        ),
        ({"dflash_config": DFLASH | {"lilicorr_hidden_size": 64}}, "a LiLiCorr drafter"),
        ({"markov_rank": 16}, "a DSpark drafter, markov_rank = 16"),
        ({"has_embed_tokens": True}, "a Nemotron drafter"),
        ({"dflash_config": DFLASH | {"sample_from_anchor": False}}, "another query layout"),
        ({"dflash_config": DFLASH | {"conv_kernel_size": 3, "conv_group_size": 8}}, "grouped convolutions"),
        ({"dflash_config": DFLASH | {"attention_sink_bias": True}}, "attention sinks"),
        ({"dflash_config": DFLASH | {"final_logit_softcapping": 30.0}}, "transformed logits"),
        ({"dflash_config": DFLASH | {"output_multiplier": 0.5}}, "transformed logits"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window layers"),
    ],
)
def test_other_family_by_its_options(
    drafter: Callable[..., str], changes: dict[str, Any], found: str
) -> None:
    with pytest.raises(DrafterError) as caught:
        check_drafter(drafter(**changes), TARGET)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "block_size is None, it must be a whole number from 2"),
        ({"block_size": 1}, "block_size is 1, it must be a whole number from 2"),
        ({"block_size": 65}, "block_size is 65, it must be a whole number from 2"),
        ({"head_dim": "x"}, "head_dim is 'x', it must be a whole number from 1, or absent"),
        ({"num_key_value_heads": [1]}, "num_key_value_heads is [1], it must be a whole number from 1"),
        ({"dflash_config": [1]}, "dflash_config is [1], it must be a mapping"),
        ({"architectures": [1]}, "architectures is [1], it must be a list of names"),
        ({"architectures": "DFlashDraftModel"}, "architectures is 'DFlashDraftModel', it must be a list"),
        ({"layer_types": 5}, "layer_types is 5, it must be a list of names"),
        ({"rope_parameters": "x"}, "rope_parameters is 'x', it must be a mapping"),
        ({"rope_theta": "abc"}, "rope_theta is 'abc', it must be a number above 0"),
        ({"rope_parameters": {"rope_theta": [1]}}, "rope_theta is [1], it must be a number above 0"),
        ({"dflash_config": DFLASH | {"target_layer_ids": [2, 1]}}, "[2, 1], it must be ascending"),
        ({"dflash_config": DFLASH | {"target_layer_ids": [1, 1]}}, "[1, 1], it must be ascending"),
        ({"dflash_config": {"target_layer_ids": [1, 2]}}, "mask_token_id is missing"),
        (
            {"dflash_config": DFLASH | {"mask_token_id": 512}},
            "mask_token_id is 512, outside the vocabulary of 512",
        ),
        ({"dflash_config": DFLASH | {"mask_token_id": -1}}, "mask_token_id is -1, outside the vocabulary"),
        ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids is None, it must list the target layers"),
        (
            {"dflash_config": DFLASH | {"target_layer_ids": [1, 4]}},
            "the target layers [4], the target has 0..3",
        ),
        (
            {"dflash_config": DFLASH | {"target_layer_ids": [-1]}},
            "the target layers [-1], the target has 0..3",
        ),
        ({"num_target_layers": 36}, "trained for a target of 36 layers, this one has 4"),
        ({"vocab_size": 1000}, "its vocabulary size is 1000, the target's is 512"),
        ({"hidden_size": 64}, "its hidden size is 64, the target's is 128"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None, it must be a whole number from 1"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5000.0}}},
            "rope_parameters is given per layer type, ['full_attention']",
        ),
    ],
)
def test_config_that_does_not_fit(drafter: Callable[..., str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DrafterError) as caught:
        check_drafter(drafter(**changes), TARGET)
    assert message in str(caught.value)


def test_every_problem_is_listed_at_once(drafter: Callable[..., str]) -> None:
    with pytest.raises(DrafterError) as caught:
        check_drafter(drafter(vocab_size=1000, block_size=1, num_target_layers=36), TARGET)
    assert all(part in str(caught.value) for part in ("block_size is 1", "vocabulary size", "36 layers"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc__weight": None}, "fc.weight missing from its weights"),
        ({"fc__weight": torch.zeros(HIDDEN, HIDDEN)}, "fc.weight [128, 128], must be [128, 256]"),
        ({"layers__1__mlp__up_proj__weight": None}, "layers.1.mlp.up_proj.weight missing"),
        (
            {"candidate_selector__table": torch.zeros(1)},
            "candidate_selector.table (DFlash2's candidate selector)",
        ),
        ({"prefix_gru__weight": torch.zeros(1)}, "prefix_gru.weight (Domino's projector)"),
        ({"lilicorr__head": torch.zeros(1)}, "lilicorr.head (LiLiCorr's head)"),
        ({"markov_head__weight": torch.zeros(1)}, "markov_head.weight (DSpark's Markov head)"),
        ({"d2t": torch.zeros(1)}, "d2t (EAGLE's reduced vocabulary)"),
        (
            {"something__else": torch.zeros(1)},
            "tensors that a plain DFlash drafter does not have: something.else",
        ),
    ],
)
def test_weights_that_do_not_fit(
    drafter: Callable[..., str], changes: dict[str, torch.Tensor | None], message: str
) -> None:
    path = drafter()
    edit_tensors(path, **changes)
    with pytest.raises(DrafterError) as caught:
        check_drafter(path, TARGET)
    assert message in str(caught.value)
    assert check_drafter(path, TARGET, weights=False).tensors is None


def test_copies_of_borrowed_tensors_are_ignored(drafter: Callable[..., str]) -> None:
    path = drafter()
    edit_tensors(path, embed_tokens__weight=torch.zeros(VOCABULARY, HIDDEN))
    assert check_drafter(path, TARGET).tensors == 26


def test_names_below_model_are_the_same_tensors(drafter: Callable[..., str]) -> None:
    path = drafter()
    file = Path(path) / "model.safetensors"
    save_file({f"model.{name}": value for name, value in load_file(file).items()}, file)
    assert check_drafter(path, TARGET).tensors == 25


def test_folder_without_weights_is_refused(drafter: Callable[..., str]) -> None:
    path = drafter()
    (Path(path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no weights: no \*\.safetensors file"):
        check_drafter(path, TARGET)
    assert check_drafter(path, TARGET, weights=False).block_size == 8


def test_cut_off_weights_are_refused(drafter: Callable[..., str]) -> None:
    path = drafter()
    file = Path(path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is no whole safetensors file: ends after"):
        check_drafter(path, TARGET)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"[]",
        (10).to_bytes(8, "little") + b'{"a": [1]}',
        (26).to_bytes(8, "little") + b'{"a": {"data_offsets": []}}',
    ],
)
def test_garbage_for_weights_is_refused(drafter: Callable[..., str], content: bytes) -> None:
    path = drafter()
    (Path(path) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is no whole safetensors file"):
        check_drafter(path, TARGET)


def test_file_for_a_folder_is_refused(drafter: Callable[..., str]) -> None:
    path = drafter()
    with pytest.raises(CheckpointError, match=rf"is a file; .* Give its folder, {path}\."):
        check_drafter(f"{path}/model.safetensors", TARGET)


def test_gguf_file_is_read_with_the_config_beside_it(drafter: Callable[..., str]) -> None:
    file = Path(drafter()) / "model.blob"
    file.write_bytes(b"GGUF")
    assert check_drafter(str(file), TARGET).tensors is None


@pytest.mark.parametrize("content", ["[]", "null", "[1, 2]", '"text"', "5"])
def test_config_that_is_no_mapping_is_refused(drafter: Callable[..., str], content: str) -> None:
    path = drafter()
    (Path(path) / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"The config\.json of .* holds .*, it must be a mapping"):
        check_drafter(path, TARGET)


def test_missing_config_and_missing_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"No readable config\.json"):
        check_drafter(str(tmp_path), TARGET)
    with pytest.raises(DrafterError, match="set --speculative-draft-model-path"):
        check_drafter(None, TARGET)


@pytest.mark.usefixtures("sglang_with_plugins")
def test_options_are_read_as_sglang_reads_them(drafter: Callable[..., str]) -> None:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    path = drafter()
    theirs = parse_dflash_draft_config(draft_hf_config=read_config(path))
    ours = check_drafter(path, TARGET)
    assert (theirs.block_size, theirs.mask_token_id) == (ours.block_size, ours.mask_token_id)
    assert theirs.target_layer_ids == list(ours.target_layer_ids)


@pytest.mark.usefixtures("sglang_with_plugins")
@pytest.mark.parametrize(
    "shape",
    [
        {"rope_theta": 5000.0, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"rope_parameters": {"rope_theta": 5000.0}},
        {"rope_parameters": {"rope_theta": 5000.0}, "rope_theta": 7000.0},
    ],
    ids=["rope_theta", "rope_parameters", "rope_parameters without type", "both"],
)
def test_both_shapes_of_rope_give_sglang_the_same_rotation(
    drafter: Callable[..., str], shape: dict[str, Any]
) -> None:
    from sglang.srt.layers.rotary_embedding import get_rope
    from sglang.srt.utils.hf_transformers_utils import get_config, get_rope_config

    path = drafter(**{"rope_theta": None} | shape)
    theta, scaling = get_rope_config(get_config(path, trust_remote_code=False))
    assert check_drafter(path, TARGET).rope_theta == theta == 5000.0
    rotation = get_rope(32, rotary_dim=32, max_position=64, base=theta, rope_scaling=scaling)
    frequencies = 5000.0 ** -(torch.arange(0, 32, 2) / 32)
    angles = torch.arange(64)[:, None] * frequencies
    torch.testing.assert_close(rotation.cos_sin_cache, torch.cat([angles.cos(), angles.sin()], dim=-1))


@pytest.mark.usefixtures("sglang_with_plugins")
def test_malformed_config_is_named_before_sglang_reads_it(drafter: Callable[..., str]) -> None:
    from sglang.srt.arg_groups.speculative_hook import handle_speculative_decoding
    from sglang.srt.server_args import ServerArgs

    path = drafter(architectures=[1], rope_parameters="x")
    record = ServerArgs(
        model_path="some/model", speculative_algorithm="ddtree", speculative_draft_model_path=path
    )
    with pytest.raises(DrafterError) as caught:
        handle_speculative_decoding(record)
    assert str(caught.value).startswith(
        f"The drafter {path} cannot be used by DDTREE: rope_parameters is 'x'"
    )
    assert "architectures is [1]" in str(caught.value)
