from __future__ import annotations

import json

import pytest

from sglang_ddtree.bench.figures import (
    METRICS,
    Spread,
    acceptance_by_depth,
    by_depth_over_runs,
    over_runs,
    run_figures,
)
from sglang_ddtree.bench.timeline import Timeline, from_events
from sglang_ddtree.client import RequestFailed
from unit.bench.fakes import event, timeline

DONE = {"finish_reason": {"type": "length", "length": 7}}


def test_a_timeline_reads_first_and_last_event() -> None:
    events = [
        event(10.5, 1, ids=[4]),
        event(11.0, 4, ids=[4, 5, 6, 7]),
        event(
            12.5,
            7,
            ids=[4, 5, 6, 7, 8, 9, 9],
            spec_verify_ct=2,
            spec_num_correct_drafts=4,
            spec_correct_drafts_histogram=[0, 1, 0, 1],
            **DONE,
        ),
    ]
    found = from_events(10.0, events)
    assert found == Timeline(10.0, 10.5, 12.5, 1, 7, 2, 4, (4, 5, 6, 7, 8, 9, 9), (0, 1, 0, 1))
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
        ([event(1.0, 1), (2.0, b'{"meta_info": {"fin')], "broke off within an event"),
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


def test_acceptance_by_depth_counts_steps_that_kept_at_least_so_many() -> None:
    # Ten steps of two requests: 0 drafts kept in 4 of them, 1 in 3, 2 in 1, 3 in 2.
    requests = [
        timeline(steps=6, correct=6, histogram=(3, 1, 1, 1)),
        timeline(steps=4, histogram=(1, 2, 0, 1)),
    ]
    assert acceptance_by_depth(requests) == pytest.approx([0.6, 0.3, 0.2])
    assert acceptance_by_depth([timeline(steps=2, histogram=(2,))]) == []
    assert acceptance_by_depth([timeline()]) == []


def test_a_run_that_kept_no_draft_so_deep_counts_as_zero_there() -> None:
    runs = [[timeline(histogram=(1, 1))], [timeline(histogram=(0, 3, 1))], [timeline(histogram=(1, 3))]]
    assert by_depth_over_runs(runs) == [Spread((0.5, 1.0, 0.75)), Spread((0.0, 0.25, 0.0))]
