"""The whole measurement against servers that are not there."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.bench import command, plots, server, svg
from sglang_ddtree.bench.arms import Arm, parse_arm
from sglang_ddtree.bench.command import bench
from sglang_ddtree.bench.flow import ArmFailed, Plan
from sglang_ddtree.bench.page import page
from sglang_ddtree.bench.progress import Progress
from sglang_ddtree.bench.prompt_sets import Prompt
from sglang_ddtree.bench.report import Report, succeeded
from sglang_ddtree.bench.server import last_error
from sglang_ddtree.bench.table import table
from sglang_ddtree.bench.timeline import Timeline
from sglang_ddtree.client import RequestFailed
from sglang_ddtree.cpu.platform import NO_GPU
from sglang_ddtree.demo.server import ServerFailed, ServerProcess
from unit.bench.fakes import ABOUT, INFO, FakeServer, FakeServers

PROMPTS = [Prompt(str(number), "mine", "text") for number in range(6)]
IDS = [[number, 1, 2] for number in range(6)]


def run(
    servers: FakeServers,
    folder: Path,
    *,
    concurrency: tuple[int, ...] = (1, 3),
    temperature: tuple[float, ...] = (0.0,),
    runs: int = 5,
    keep_going: bool = False,
) -> Report:
    arms = [parse_arm(name) for name in servers.servers]
    plan = Plan(arms, concurrency, temperature, runs, 8)
    return bench(plan, PROMPTS, IDS, servers, dict(ABOUT), folder, keep_going)


def three_arms(info: Mapping[str, Any] = INFO) -> FakeServers:
    return FakeServers(
        {"AR": FakeServer(info, 1), "DFLASH": FakeServer(info, 2), "DDTREE 16": FakeServer(info, 4)}
    )


def test_every_arm_is_measured_with_warm_up_flush_and_concurrency(tmp_path: Path) -> None:
    servers = three_arms()
    run(servers, tmp_path, concurrency=(3,), runs=2)
    assert servers.started == ["AR", "DFLASH", "DDTREE 16"]
    for one in servers.servers.values():
        assert isinstance(one, FakeServer)
        assert one.flushes == 1 + 2
        assert one.requests == [(0.0, 8)] * (3 + 2 * 6)
        assert 1 < one.most_at_a_time <= 3


def test_figures_speedups_and_identity_by_hand(tmp_path: Path) -> None:
    found = run(three_arms(), tmp_path)
    assert succeeded(found)
    # Fake time: all six requests run from 0 to 0.5 + 0.5 x steps, with 4, 2 and 1 steps.
    plain, chain, tree = (arm["cells"][0] for arm in found["arms"])
    assert plain["figures"]["total_tokens_per_s"]["median"] == pytest.approx(30 / 2.5)
    assert tree["figures"]["total_tokens_per_s"]["values"] == [pytest.approx(30.0)] * 5
    assert [one["figures"]["verify_steps"]["median"] for one in (plain, chain, tree)] == [24, 12, 6]
    assert [one["figures"]["acceptance_length"]["median"] for one in (plain, chain, tree)] == [1, 2, 4]
    assert {one["figures"]["ms_per_step"]["median"] for one in (plain, chain, tree)} == {500.0}
    assert tree["speedup"] == {"AR": pytest.approx(2.5), "DFLASH": pytest.approx(1.5)}
    assert plain["identity"] is None
    assert (tree["identity"]["identical"], tree["identity"]["compared"]) == (6, 6)
    assert json.loads((tmp_path / "bench.json").read_text()) == found


def test_acceptance_by_depth_is_in_report_table_and_page(tmp_path: Path) -> None:
    # A step of DFLASH keeps 1 draft, one of DDTREE 16 keeps 3.
    found = run(three_arms(), tmp_path, concurrency=(3,))
    plain, chain, tree = (arm["cells"][0]["acceptance_by_depth"] for arm in found["arms"])
    assert plain == []
    assert [one["values"] for one in chain] == [[1.0] * 5]
    assert [one["median"] for one in tree] == [1.0] * 3
    lines = [line.split() for line in table(found).splitlines()]
    header = lines.index(["arm", "T", "C", "d=1", "d=2", "d=3"])
    assert lines[header + 2 : header + 4] == [
        ["DFLASH", "0", "3", "1.00", "-", "-"],
        ["DDTREE", "16", "0", "3", "1.00", "1.00", "1.00"],
    ]
    text = page(found)
    assert "<th>d=3</th>" in text
    assert "Acceptance by depth, temperature 0, concurrency 3" in text


def test_the_budget_auto_stands_beside_the_numbers_in_the_plots(tmp_path: Path) -> None:
    servers = FakeServers(
        {"AR": FakeServer(INFO, 1), "DDTREE auto": FakeServer(INFO, 2), "DDTREE 16": FakeServer(INFO, 4)}
    )
    found = run(servers, tmp_path, concurrency=(1,))
    assert [arm["budget"] for arm in found["arms"]] == [None, "auto", 16]
    picture = next(one for one in plots.plots(found) if "Speed-up against AR" in one)
    space = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(picture)
    ticks = [text.text for text in root.iter(f"{space}text") if text.get("class") == "tick"]
    assert ticks.index("16") + 1 == ticks.index("auto")
    dots = [dot.find(f"{space}title") for dot in root.iter(f"{space}circle")]
    # 30 tokens in 2.5, 1.5 and 1 s.
    assert [dot.text.partition(" (")[0] for dot in dots if dot is not None and dot.text] == [
        "DDTREE, C 1, T 0: 2.5",
        "DDTREE auto, C 1, T 0: 1.667",
    ]
    lines = [line.get("points") or "" for line in root.iter(f"{space}polyline")]
    assert [len(line.split()) for line in lines] == [1, 1]  # no line joins a budget with auto


def test_a_failing_arm_ends_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    servers = FakeServers(
        {"AR": FakeServer(INFO, 1), "DFLASH": "status 1: no such file", "DDTREE 16": FakeServer(INFO, 4)}
    )
    found = run(servers, tmp_path)
    assert not succeeded(found)
    assert [len(arm["cells"]) for arm in found["arms"]] == [2, 0, 2]
    text = table(found)
    assert "DFLASH: FAILED: status 1: no such file" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("DFLASH ")] == ["failed"]
    assert "DFLASH failed: status 1: no such file" in page(found)
    assert found["arms"][2]["cells"][0]["speedup"] == {"AR": pytest.approx(2.5), "DFLASH": None}


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (FakeServer(INFO, 4), 0),
        ("error: --speculative-ddtree-budget must be a whole number", 1),
        (FakeServer({**INFO, "page_size": 4}, 4), 1),
    ],
)
def test_the_command_ends_with_1_when_an_arm_failed(
    last: FakeServer | str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arms: dict[str, FakeServer | str] = {"AR": FakeServer(INFO, 1), "DDTREE auto": last}
    monkeypatch.setattr(command, "encode", lambda *_: (IDS, True))
    monkeypatch.setattr(server, "Servers", lambda *_: FakeServers(arms))
    (tmp_path / "p.jsonl").write_text('{"prompt": "Hello"}\n' * len(IDS))
    words = ["bench", "--model", "some/m", "--draft", "some/d", "--arm", "AR", "--arm", "DDTREE auto"]
    words += ["--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path), "--temperature", "0"]
    assert cli.main(words) == code
    out = capsys.readouterr().out
    assert ("DDTREE auto: FAILED: " in out) == (code == 1)
    assert len([line for line in out.splitlines() if line.startswith("AR ")]) == 1


GONE = "the server ended with status 1: ModuleNotFoundError: No module named 'gone'"
NOT_TRIED = "not tried: AR and DFLASH did not start, with the same reason"


def test_after_two_servers_that_fail_to_start_alike_no_other_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = FakeServers({"AR": GONE, "DFLASH": GONE, "DDTREE 16": FakeServer(INFO, 4), "DDTREE 32": GONE})
    found = run(servers, tmp_path)
    assert servers.started == ["AR", "DFLASH"]
    assert [arm["failure"] for arm in found["arms"]] == [GONE, GONE, NOT_TRIED, NOT_TRIED]
    assert not succeeded(found)
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    assert f"DDTREE 32: FAILED: {NOT_TRIED}" in table(found)
    said = capsys.readouterr().err
    assert "Stopping: the servers of AR and DFLASH did not start, with the same reason." in said
    assert "Not tried: DDTREE 16, DDTREE 32; --keep-going tries them." in said


@pytest.mark.parametrize(
    ("arms", "keep_going"),
    [
        ({"AR": GONE, "DFLASH": GONE, "DDTREE 16": GONE}, True),
        ({"AR": GONE, "DFLASH": "another reason", "DDTREE 16": FakeServer(INFO, 4)}, False),
        # One that has started shows that the others may.
        ({"AR": FakeServer(INFO, 1), "DFLASH": GONE, "DDTREE 16": GONE, "DDTREE 32": GONE}, False),
    ],
)
def test_otherwise_every_arm_is_tried(
    tmp_path: Path, arms: dict[str, FakeServer | str], keep_going: bool
) -> None:
    servers = FakeServers(arms)
    found = run(servers, tmp_path, runs=1, keep_going=keep_going)
    assert servers.started == list(arms)
    assert [arm["failure"] for arm in found["arms"]] == [
        one if isinstance(one, str) else None for one in arms.values()
    ]


def test_servers_that_started_and_failed_alike_do_not_stop_the_others(tmp_path: Path) -> None:
    servers = three_arms()
    for one in servers.servers.values():
        assert isinstance(one, FakeServer)
        one.fails_at = 1
    found = run(servers, tmp_path)
    assert servers.started == ["AR", "DFLASH", "DDTREE 16"]
    assert {arm["failure"] for arm in found["arms"]} == {"/generate: status 500: boom"}


@pytest.mark.parametrize(("words", "tried"), [([], 2), (["--keep-going"], 4)])
def test_the_command_ends_with_1_after_two_servers_whose_logs_say_the_same(
    words: list[str],
    tried: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[Path] = []

    class Dead(ServerProcess):
        def __init__(self, arguments: Sequence[str], *, log_path: Path, **_: Any) -> None:
            started.append(log_path)

        def wait_until_ready(self, timeout: float, on_wait: Any = None) -> None:
            # What differs between two starts: the time in a line of the log, and the path of the log.
            log = f"[2026-01-02 03:04:0{len(started)}] Error: no kernel for this GPU\n"
            raise ServerFailed("the server ended with status 1", log)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(command, "encode", lambda *_: (IDS, True))
    monkeypatch.setattr(server, "ServerProcess", Dead)
    arms = ["AR", "DFLASH", "DDTREE 16", "DDTREE auto"]
    given = ["bench", "--model", "some/m", "--draft", "some/d", "--set", "math", "--limit", "6"]
    given += ["--out", str(tmp_path)]
    assert cli.main([*given, *(word for arm in arms for word in ("--arm", arm)), *words]) == 1
    assert len(started) == tried
    out = capsys.readouterr().out
    reason = "the server ended with status 1: [2026-01-02 03:04:01] Error: no kernel for this GPU"
    assert f"AR: FAILED: {reason} (log: {started[0]})" in out
    assert out.count(NOT_TRIED) == len(arms) - tried


def test_a_request_that_fails_ends_the_arm_but_keeps_its_finished_cells(tmp_path: Path) -> None:
    servers = three_arms()
    broken = servers.servers["DFLASH"]
    assert isinstance(broken, FakeServer)
    broken.fails_at = 1 + 5 * 6 + 3 + 4  # in the first run of the second cell
    found = run(servers, tmp_path)
    assert [len(arm["cells"]) for arm in found["arms"]] == [2, 1, 2]
    assert "boom" in found["arms"][1]["failure"]


def test_an_arm_with_other_flags_is_not_measured(tmp_path: Path) -> None:
    servers = FakeServers({"AR": FakeServer(INFO, 1), "DDTREE 16": FakeServer({**INFO, "page_size": 64}, 4)})
    found = run(servers, tmp_path)
    assert found["arms"][1]["cells"] == []
    assert "page_size is 1 in AR and 64 in DDTREE 16" in table(found)
    assert not succeeded(found)


@pytest.mark.parametrize(("dtype", "is_error"), [("bfloat16", False), ("auto", False), ("float32", True)])
def test_other_greedy_texts_are_an_error_in_float32_alone(tmp_path: Path, dtype: str, is_error: bool) -> None:
    info = {**INFO, "dtype": dtype}
    servers = FakeServers({"AR": FakeServer(info, 1), "DDTREE 16": FakeServer(info, 4, ids=(5, 6, 0, 8, 9))})
    found = run(servers, tmp_path, temperature=(0.0, 1.0))
    assert succeeded(found) is not is_error
    greedy, _, sampled, _ = found["arms"][1]["cells"]
    assert (greedy["identity"]["identical"], greedy["identity"]["earliest_difference"]) == (0, 2)
    assert sampled["identity"] is None
    assert "6 of 6 greedy texts differ from AR's, the earliest at token 2" in table(found)


NOT_COMPARED = "note: Greedy texts were not compared with plain decoding's, since no arm AR was measured."


@pytest.mark.parametrize(
    ("plain", "temperature", "is_told"),
    [
        (None, (0.0, 1.0), True),
        ("out of memory", (0.0,), True),
        (FakeServer(INFO, 1), (0.0,), False),
        (None, (1.0,), False),
    ],
)
def test_greedy_texts_that_nothing_was_compared_with_are_told(
    tmp_path: Path, plain: FakeServer | str | None, temperature: tuple[float, ...], is_told: bool
) -> None:
    arms = {} if plain is None else {"AR": plain}
    found = run(FakeServers({**arms, "DFLASH": FakeServer(INFO, 2)}), tmp_path, temperature=temperature)
    assert (NOT_COMPARED in table(found)) is is_told
    assert NOT_COMPARED not in table(run(FakeServers({"DFLASH": "out of memory"}), tmp_path))


def test_repeating_texts_cpu_and_few_runs_are_told(tmp_path: Path) -> None:
    info = {**INFO, "device": "cpu"}
    stuck = [1, *[7] * 33]
    servers = FakeServers({"AR": FakeServer(info, 1, ids=stuck)})
    found = run(servers, tmp_path, concurrency=(1,), runs=1)
    assert found["arms"][0]["cells"][0]["repetition"] == {"answers": 6, "longest": 33, "flagged": 6}
    for text in (table(found), page(found)):
        assert "6 of 6 texts repeat one token more than 32 times in a row (longest: 33)" in text
        assert "Run on the CPU" in text
        assert "Only 1 run per figure" in text


def test_table_says_how_each_arm_ran(tmp_path: Path) -> None:
    eager = {**INFO, "disable_cuda_graph": True}
    text = table(run(three_arms(eager), tmp_path))
    assert all(line.endswith("eager") for line in text.splitlines()[2:8])
    assert "note: Run eager, CUDA graphs disabled" in text


@pytest.mark.parametrize(("temperature", "told"), [((0.0, 1.0), True), ((0.0,), False)])
def test_an_arm_that_decodes_greedily_at_every_temperature_is_told(
    tmp_path: Path, temperature: tuple[float, ...], told: bool
) -> None:
    servers = three_arms()
    chain = servers.servers["DFLASH"]
    assert isinstance(chain, FakeServer)
    chain.logged = (
        "DFLASH non-greedy verification is unavailable on this build/device; "
        "falling back to greedy argmax verification."
    )
    text = table(run(servers, tmp_path, temperature=temperature))
    assert ("note: DFLASH: The server verified greedily above temperature 0" in text) is told


def test_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    class Interrupted(FakeServer):
        def flush(self) -> None:
            raise KeyboardInterrupt

    servers = FakeServers({"AR": Interrupted(INFO, 1)})
    with pytest.raises(KeyboardInterrupt):
        run(servers, tmp_path)
    assert servers.running == 0


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises, also where the tests themselves were started in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_does_not_wait_for_requests_in_flight(tmp_path: Path) -> None:
    ended = threading.Event()

    class Slow(FakeServer):
        def generate(self, input_ids: Sequence[int], temperature: float, max_new_tokens: int) -> Timeline:
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(30), "the server was not ended while a request was in flight"
            raise RequestFailed("connection reset")

    class Ending(FakeServers):
        @contextmanager
        def start(self, arm: Arm) -> Iterator[FakeServer]:
            try:
                yield Slow(INFO, 1)
            finally:
                ended.set()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(Ending({"AR": FakeServer(INFO, 1)}), tmp_path, concurrency=(1,))
    assert time.monotonic() - began < 20


def test_a_server_that_does_not_start_gives_its_last_error_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    class Dead(ServerProcess):
        def __init__(self, arguments: Sequence[str], **_: Any) -> None:
            assert list(arguments) == ["--model-path", "m", "--page-size", "16", "--enable-metrics"]

        def wait_until_ready(self, timeout: float, on_wait: Any = None) -> None:
            raise ServerFailed("the server ended with status 1", "starting\nValueError: no such model\n")

        def stop(self) -> None:
            stopped.append(self)

    monkeypatch.setattr(server, "ServerProcess", Dead)
    servers = server.Servers("m", None, ["--page-size", "16"], tmp_path, 1.0)
    reason = "the server ended with status 1: ValueError: no such model .log: .*ar.log"
    with pytest.raises(ArmFailed, match=reason), servers.start(Arm("AR")):
        pytest.fail("started")
    assert len(stopped) == 1


@pytest.mark.parametrize("name", ["AR", "DFLASH", "DDTREE 16"])
@pytest.mark.parametrize(
    ("error", "platform", "has_gpu", "is_told"),
    [
        ("ModuleNotFoundError: No module named 'torchvision'", None, False, True),
        ("ModuleNotFoundError: No module named 'torchvision'", None, True, False),
        ("ModuleNotFoundError: No module named 'torchvision'", "ddtree_cpu", False, False),
        ("ValueError: no such model", None, False, False),
        # What the plugin says already.
        (f"RuntimeError: {NO_GPU} (ModuleNotFoundError: No module named 'torchvision')", None, False, True),
    ],
)
def test_a_server_that_lacks_a_module_without_a_gpu_names_the_cpu_platform(
    name: str,
    error: str,
    platform: str | None,
    has_gpu: bool,
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dead(ServerProcess):
        def __init__(self, arguments: Sequence[str], **_: Any) -> None:
            pass

        def wait_until_ready(self, timeout: float, on_wait: Any = None) -> None:
            raise ServerFailed("the server ended with status 1", f"starting\n{error}\n")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(server, "ServerProcess", Dead)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    if platform is not None:
        monkeypatch.setenv("SGLANG_PLATFORM", platform)
    servers = server.Servers("m", "d", [], tmp_path, 1.0)
    with pytest.raises(ArmFailed) as caught, servers.start(parse_arm(name)):
        pytest.fail("started")
    assert caught.value.reason.count("on a CPU set SGLANG_PLATFORM=ddtree_cpu (") == is_told
    assert error.partition(": ")[2] in caught.value.reason


class Page(HTMLParser):
    """Counts what is open, keeps the texts of table cells and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_is_well_formed_self_contained_and_holds_the_numbers(tmp_path: Path) -> None:
    run(three_arms(), tmp_path, temperature=(0.0, 1.0))
    text = (tmp_path / "bench.html").read_text()
    parser = Page()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.addresses == []
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    row = parser.cells[2 * 15 : 3 * 15]
    assert row[:7] == ["DDTREE 16", "0", "1", "30.0", "30.0-30.0", "2.50", "1.50"]
    assert "target &lt;M&gt;" in text
    assert "<M>" not in text
    assert "prefers-color-scheme: dark" in text
    pictures = ["<svg" + part.partition("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]
    # Two speed-ups, acceptance, and acceptance by depth, throughput and ms per step at each temperature.
    assert len(pictures) == 9
    assert [ET.fromstring(one).get("aria-label") for one in pictures][:3] == [
        "Speed-up against AR",
        "Speed-up against DFLASH",
        "Acceptance",
    ]


def test_a_report_without_figures_still_has_a_table_and_a_page(tmp_path: Path) -> None:
    found = run(FakeServers({"AR": "out of memory"}), tmp_path)
    assert "AR: FAILED: out of memory" in table(found)
    assert "<svg" not in page(found)


@pytest.mark.parametrize(
    ("highest", "step"), [(1.0, 0.2), (3.0, 1.0), (7.5, 2.0), (480.0, 100.0), (0.0, 1.0)]
)
def test_axis_steps_are_round(highest: float, step: float) -> None:
    assert svg.nice_step(highest) == pytest.approx(step)


def test_bars_are_as_high_as_their_values() -> None:
    one = svg.Series("a & b", {0: svg.Point(2.0, 1.0, 3.0), 1: svg.Point(4.0, 4.0, 4.0)}, colour=9)
    picture = ET.fromstring(svg.bar_plot("t", "x", "y", ["p", "q"], [one]))
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in picture.iter(f"{space}rect") if bar.find(f"{space}title") is not None]
    low, high = (float(bar.get("height", "")) for bar in bars)
    assert high == pytest.approx(2 * low, rel=0.01)
    assert {bar.get("class") for bar in bars} == {"bar c1"}
    assert len([line for line in picture.iter(f"{space}line") if line.get("class") == "whisker"]) == 1


def test_names_too_wide_for_their_place_stand_in_two_lines() -> None:
    names = [f"DDTREE {number}" for number in range(10)]
    one = svg.Series("a", {tick: svg.Point(1.0, 1.0, 1.0) for tick in range(10)}, colour=0)
    picture = ET.fromstring(svg.bar_plot("t", "x", "y", names, [one]))
    places: dict[str, set[str | None]] = {}
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        if text.get("class") == "tick" and text.get("text-anchor") == "middle":
            places.setdefault(str(text.get("y")), set()).add(text.text)
    upper, lower = (places[y] for y in sorted(places, key=float))
    assert (upper, lower) == ({"DDTREE"}, set("0123456789"))
    assert ">DDTREE 1<" in svg.bar_plot("t", "x", "y", names[:2], [svg.Series("a", {0: one.points[0]}, 0)])


def test_lines_tell_the_share_done_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(40, plain=True) as progress:
        progress.say("start")
        progress.advance(10)
        progress.leave_out(20)
        progress.say("on")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "[0/40 requests] start"
    assert second.startswith("[10/20 requests, about 0:0")


def test_the_reason_is_the_log_s_last_error() -> None:
    assert last_error("loading\nValueError: no such drafter\nKilled\n") == "ValueError: no such drafter"
    assert last_error("loading\n\n") == "loading"
    assert last_error("") == "its log is empty"
    assert last_error("File x\n    assert y\nAssertionError\nKilled\n") == "AssertionError"
    assert (
        last_error("launch_server.py: error: no such flag\nbye\n") == "launch_server.py: error: no such flag"
    )


# Logged by SGLang 0.5.23 where a module was missing in the scheduler's process.
DIED = """\
Traceback (most recent call last):
  File "/sglang/srt/managers/scheduler.py", line 1, in <module>
ModuleNotFoundError: No module named 'gone'
[2026-01-02 03:04:05] kill_process_tree called: parent_pid=7, include_parent=False, pid=7
Traceback (most recent call last):
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), ...
"""


def test_the_reason_is_the_scheduler_s_own_error_where_it_told_one() -> None:
    assert last_error(DIED) == "ModuleNotFoundError: No module named 'gone'"
    assert last_error(DIED.partition("\n[")[2]).startswith("RuntimeError: Rank 0 scheduler died")
    above = (
        "ValueError: too large\nRuntimeError: Initialization failed. Please see the error messages above.\n"
    )
    assert last_error(above) == "ValueError: too large"
