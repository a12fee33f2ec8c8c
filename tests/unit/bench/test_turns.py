"""Arms in turns: who runs when, what a failure leaves, and ratios of runs that follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_ddtree.bench.arms import parse_arm
from sglang_ddtree.bench.command import bench
from sglang_ddtree.bench.flow import Plan
from sglang_ddtree.bench.prompt_sets import Prompt
from sglang_ddtree.bench.report import Report, succeeded
from sglang_ddtree.bench.timeline import Timeline
from sglang_ddtree.client import RequestFailed
from unit.bench.fakes import ABOUT, INFO, FakeServer, FakeServers

PROMPTS = [Prompt(str(number), "mine", "text") for number in range(4)]
IDS = [[number, 1, 2] for number in range(4)]


class Watched(FakeServer):
    """Writes down when it was let run, and takes `pace` times as long in the runs of a round."""

    turns: list[str]

    def __init__(self, name: str, turns: list[str], per_step: int, paces: Sequence[float] = ()) -> None:
        super().__init__(INFO, per_step)
        self.name, self.turns, self.paces = name, turns, paces

    def resume(self) -> None:
        super().resume()
        self.turns.append(self.name)

    def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline:
        found = super().generate(input_ids, temperature, max_new_tokens)
        # The first turn is the admission.
        pace = self.paces[self.turns.count(self.name) - 2] if self.paces else 1.0
        return Timeline(**{**vars(found), "first": pace * found.first, "last": pace * found.last})


def run(servers: FakeServers, folder: Path, runs: int = 3, concurrency: tuple[int, ...] = (2,)) -> Report:
    arms = [parse_arm(name) for name in servers.servers]
    plan = Plan(arms, concurrency, (0.0,), runs, 8, in_turns=True)
    return bench(plan, PROMPTS, IDS, servers, dict(ABOUT), folder)


@pytest.fixture(autouse=True)
def no_stagger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_ddtree.bench.turns.time.sleep", lambda seconds: None)


def test_runs_follow_each_other_arm_by_arm_and_nobody_runs_out_of_turn(tmp_path: Path) -> None:
    turns: list[str] = []
    servers = FakeServers(
        {name: Watched(name, turns, number) for name, number in (("AR", 1), ("DFLASH", 2), ("DDTREE 16", 4))}
    )
    found = run(servers, tmp_path, concurrency=(1, 2))
    names = ["AR", "DFLASH", "DDTREE 16"]
    assert turns == names + names * 3 * 2
    assert servers.running == 0
    assert succeeded(found)
    for arm in found["arms"]:
        assert [cell["concurrency"] for cell in arm["cells"]] == [1, 2]
        assert [len(cell["figures"]["total_tokens_per_s"]["values"]) for cell in arm["cells"]] == [3, 3]
        assert arm["startup_s"] is None
    for server in servers.servers.values():
        assert isinstance(server, FakeServer)
        assert server.is_paused
        # A warm-up of one request and of two, in each of three turns, and four prompts in each run.
        assert len(server.requests) == 3 * (1 + 4) + 3 * (2 + 4)
    assert found["settings"]["in_turns"] is True
    assert any("in turns" in note for note in found["notes"])


def test_every_run_has_its_line_of_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = FakeServers({"AR": FakeServer(INFO, 1), "DFLASH": FakeServer(INFO, 2)})
    run(servers, tmp_path, runs=3)
    said = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in said if "concurrency" in line] == [
        f"{name}: concurrency 2, temperature 0{later}"
        for later in ("", ", run 2 of 3", ", run 3 of 3")
        for name in ("AR", "DFLASH")
    ]


def test_the_speed_up_is_the_median_of_run_over_run(tmp_path: Path) -> None:
    """The machine is slow in another run each; the medians would say 4 and 3."""
    turns: list[str] = []
    servers = FakeServers(
        {
            "AR": Watched("AR", turns, 1, [1.0, 4.0, 2.0]),
            "DDTREE 16": Watched("DDTREE 16", turns, 4, [1.0, 1.0, 2.0]),
        }
    )
    found = run(servers, tmp_path)
    # 2.5 s against 1 s where both have the same pace, four times that in the second run.
    assert found["arms"][1]["cells"][0]["speedup"]["AR"] == pytest.approx(2.5)
    plain, tree = (arm["cells"][0]["figures"]["total_tokens_per_s"]["median"] for arm in found["arms"])
    assert tree / plain == pytest.approx(5.0)


def test_an_arm_that_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    broken = FakeServer(INFO, 2)
    broken.fails_at = 9
    servers = FakeServers(
        {
            "AR": FakeServer(INFO, 1),
            "DFLASH": broken,
            "DDTREE 16": "the server ended with status 1: ValueError: no such model",
            "DDTREE 32": FakeServer({**INFO, "page_size": 64}, 4),
            "DDTREE 64": FakeServer(INFO, 4),
        }
    )
    found = run(servers, tmp_path, concurrency=(1, 2))
    failures = {arm["name"]: arm["failure"] for arm in found["arms"]}
    assert failures["AR"] is failures["DDTREE 64"] is None
    assert failures["DFLASH"] == "/generate: status 500: boom (log: x)"
    assert failures["DDTREE 16"] == "the server ended with status 1: ValueError: no such model"
    assert "not comparable" in failures["DDTREE 32"]
    assert [len(arm["cells"]) for arm in found["arms"]] == [2, 0, 0, 0, 2]
    assert servers.running == 0


def test_all_servers_end_where_something_else_goes_wrong(tmp_path: Path) -> None:
    class Interrupted(FakeServer):
        def flush(self) -> None:
            raise KeyboardInterrupt

    servers = FakeServers({"AR": FakeServer(INFO, 1), "DFLASH": Interrupted(INFO, 2)})
    with pytest.raises(KeyboardInterrupt):
        run(servers, tmp_path)
    assert servers.running == 0


def test_a_server_that_is_gone_in_its_turn_is_told(tmp_path: Path) -> None:
    class Gone(FakeServer):
        def info(self) -> dict:  # type: ignore[type-arg]
            raise RequestFailed("connection refused")

    found = run(FakeServers({"AR": Gone(INFO, 1), "DFLASH": FakeServer(INFO, 2)}), tmp_path)
    assert found["arms"][0]["failure"] == "connection refused (log: x)"
    assert len(found["arms"][1]["cells"]) == 1
