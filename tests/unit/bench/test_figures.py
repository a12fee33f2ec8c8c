from __future__ import annotations

import json

import pytest

from sglang_ddtree.bench.figures import METRICS, Spread, over_runs, run_figures
from sglang_ddtree.bench.timeline import RequestFailed, Timeline, from_events
from unit.bench.fakes import event, timeline

DONE = {"finish_reason": {"type": "length", "length": 7}}


def test_a_timeline_reads_first_and_last_event() -> None:
    events = [
        event(10.5, 1, ids=[4]),
        event(11.0, 4, ids=[4, 5, 6, 7]),
        event(12.5, 7, ids=[4, 5, 6, 7, 8, 9, 9], spec_verify_ct=2, spec_num_correct_drafts=4, **DONE),
    ]
    found = from_events(10.0, events)
    assert found == Timeline(10.0, 10.5, 12.5, 1, 7, 2, 4, (4, 5, 6, 7, 8, 9, 9))
    assert found.time_to_first_token == 0.5
    assert found.inter_token_latency == pytest.approx(2.0 / 6)
    assert found.tokens_per_second == pytest.approx(7 / 2.5)


def test_an_answer_in_one_event_has_no_inter_token_latency() -> None:
    found = from_events(0.0, [event(2.0, 1, ids=[4], **DONE)])
    assert (found.inter_token_latency, found.decode_steps(True), found.decode_steps(False)) == (None, 0, 0)
    assert "inter_token_latency_ms" not in run_figures([found], speculative=True)
    assert "ms_per_step" not in run_figures([found], speculative=True)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "without an event"),
        ([(0.0, json.dumps({"error": {"message": "too long"}}).encode())], "too long"),
        ([event(1.0, 3)], "after 3 tokens without a reason"),
        ([event(1.0, 3, finish_reason={"type": "abort", "message": "out of memory"})], "out of memory"),
    ],
)
def test_a_stream_that_does_not_end_well_is_refused(events: list[tuple[float, bytes]], message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        from_events(0.0, events)


def test_figures_of_two_overlapping_requests_by_hand() -> None:
    # a: 10 tokens in 0..4, first at 1, 3 steps that kept 6 drafts; b: 4 tokens in 1..5, first at 3, 2 steps, 1 draft.
    a = timeline(sent=0, first=1, last=4, tokens=10, steps=3, correct=6)
    b = timeline(sent=1, first=3, last=5, tokens=4, steps=2, correct=1)
    found = run_figures([a, b], speculative=True)
    assert found == {
        "total_tokens_per_s": pytest.approx(14 / 5),
        "request_tokens_per_s": pytest.approx((10 / 4 + 4 / 4) / 2),
        "time_to_first_token_ms": pytest.approx(1500),
        "inter_token_latency_ms": pytest.approx(1000 * (3 / 9 + 2 / 3) / 2),
        "acceptance_length": pytest.approx(1 + 7 / 5),
        "verify_steps": 5,
        "ms_per_step": pytest.approx(1000 * (3 + 2) / 5),
        "tokens": 14,
    }
    assert set(found) == set(METRICS)


def test_plain_decoding_has_a_step_per_token_after_the_first() -> None:
    found = run_figures([timeline(first=1, last=3, tokens=5), timeline(first=1, last=2, tokens=3)], False)
    assert (found["verify_steps"], found["acceptance_length"]) == (6, 1)
    assert found["ms_per_step"] == pytest.approx(1000 * 3 / 6)


def test_the_spread_is_median_lowest_and_highest_run() -> None:
    runs = [[timeline(last=last, tokens=10)] for last in (5.0, 2.0, 4.0, 10.0, 2.5)]
    speed = over_runs(runs, speculative=False)["total_tokens_per_s"]
    assert speed == Spread((2.0, 5.0, 2.5, 1.0, 4.0))
    assert (speed.median, speed.low, speed.high) == (2.5, 1.0, 5.0)
