from __future__ import annotations

from pathlib import Path

import pytest

from sglang_ddtree.demo import runner


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget must be a whole number from 1 to"),
        (["--budget", "100000"], "got 100000"),
        (["--budget", "many"], "invalid int value"),
        (["--prompt", " "], "--prompt must not be empty"),
        (["--json", "."], "is a folder"),
        (["--json", "no/such/folder/figures.json"], "does not exist"),
        (["--serve", "--json", "figures.json"], "--json needs the comparison"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_compare", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(runner, "_serve", lambda *_: pytest.fail("started"))
    with pytest.raises(SystemExit) as stopped:
        runner.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_prompts_replace_the_built_in_ones() -> None:
    assert runner._parse(["--prompt", "a", "--prompt", "b"]).prompt == ["a", "b"]
    assert len(runner._parse([]).prompt) == 3
