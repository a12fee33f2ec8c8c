"""Accept lengths in `meta_info`: SGLang's own code of both processes, with its hooks, on stand-ins for requests."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_ddtree.host import accept_lengths

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")

ASKED = {accept_lengths.FIELD: True}
STRIDE = 16


class Request:
    """What SGLang's processors read and write of a request in a verify step."""

    def __init__(self, custom_params: Any) -> None:
        self.sampling_params = SimpleNamespace(custom_params=custom_params)
        self.customized_info: dict[str, list] | None = None
        self.kv = SimpleNamespace(kv_committed_len=0)
        self.output_ids: list[int] = []
        self.is_retracted, self.grammar = False, None
        self.spec_verify_ct = self.spec_num_correct_drafts = 0
        self.update_spec_correct_drafts_histogram = lambda drafts: None
        self.end: int | None = None
        # The other process.
        self.sent = 0
        self.answers: list[dict[str, Any]] = []
        self.state: Any = None
        accept_lengths.begin(self)

    def finished(self) -> bool:
        return self.end is not None

    def visible(self) -> list[int]:
        return self.output_ids[: self.end]


def verify_step(requests: list[Request], lengths: list[int]) -> None:
    """SGLang's result of a step, resolved by SGLang and appended as its decode loop does."""
    import torch
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor

    result = SimpleNamespace(
        next_token_ids=torch.arange(STRIDE * len(requests)),
        accept_lens=torch.tensor(lengths),
        speculative_output_stride=STRIDE,
        num_non_draft_tokens_per_req=1,
        block_accept_lens=None,
        cap_lens=None,
    )
    nothing = lambda *args, **kwargs: None  # noqa: E731
    processor = SimpleNamespace(
        metrics_reporter=SimpleNamespace(snapshot_spec_decode_metrics=nothing),
        model_worker=SimpleNamespace(on_verify_complete_cpu=nothing),
        advance_grammar_fsm=nothing,
    )
    # A grammar's tokens come from elsewhere; DDTREE refuses grammars.
    emitted = SchedulerBatchResultProcessor._resolve_spec_v2_tokens(
        processor, result, SimpleNamespace(reqs=requests)
    )
    for request, tokens in zip(requests, emitted, strict=True):
        if not (request.is_retracted or request.finished()):
            request.output_ids += tokens


def send(requests: list[Request]) -> None:
    """One message to the tokenizer manager, cut by tokens as `_GenerationStreamAccumulator.accept` does."""
    from sglang.srt.managers.tokenizer_manager import ReqState, TokenizerManager

    key = accept_lengths.STEPS
    if not any(request.customized_info for request in requests):
        info = {}
    else:
        info = {
            key: [
                request.customized_info[key][request.sent : len(request.visible())]
                if request.customized_info
                else [None] * (len(request.visible()) - request.sent)
                for request in requests
            ]
        }
    manager = SimpleNamespace(_accumulate_request_meta_info=TokenizerManager._accumulate_request_meta_info)
    for index, request in enumerate(requests):
        if request.state is None:
            params = {"custom_params": request.sampling_params.custom_params}
            request.state = ReqState([], False, None, SimpleNamespace(sampling_params=params), None)
        answer: dict[str, Any] = {}
        reason = {"type": "stop"} if request.finished() else None
        if info:
            TokenizerManager.update_request_meta_info(manager, answer, request.state, info, index, reason)
        request.answers.append(answer)
        request.sent = len(request.visible())


@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_those_of_the_steps_whatever_happens_between(seed: int) -> None:
    draw = random.Random(seed)
    asking, other = Request(ASKED), Request(None)
    expected: list[int] = []
    prefills = 0
    for _ in range(draw.randrange(1, 30)):
        if prefills == 0 or draw.random() < 0.2:
            # A prefill emits one token; so does the one behind a retraction.
            for request in (asking, other):
                request.output_ids.append(0)
                request.is_retracted = False
            prefills += 1
        else:
            lengths = [draw.randrange(1, STRIDE + 1) for _ in range(2)]
            asking.is_retracted = draw.random() < 0.2
            verify_step([asking, other], lengths)
            if asking.is_retracted:
                asking.is_retracted = False
            else:
                expected.append(lengths[0])
        if draw.random() < 0.5:
            send([asking, other])
    # A stop inside the last step.
    last = [draw.randrange(1, STRIDE + 1) for _ in range(2)]
    verify_step([asking, other], last)
    kept = draw.randrange(1, last[0] + 1)
    asking.end, other.end = len(asking.output_ids) - last[0] + kept, len(other.output_ids)
    send([asking, other])

    assert asking.answers[-1] == {accept_lengths.FIELD: [*expected, kept]}
    assert sum(asking.answers[-1][accept_lengths.FIELD]) == len(asking.visible()) - prefills
    # Earlier events, and a request beside it that did not ask, have nothing, and nothing comes back later.
    assert all(answer == {} for answer in asking.answers[:-1] + other.answers)
    assert asking.state.customized_info_reported_keys == set()
    assert other.state.customized_info_accumulated == {}


def test_steps_behind_the_end_are_not_counted() -> None:
    # Under overlap SGLang runs one more step of a finished request.
    request = Request(ASKED)
    request.output_ids = [0]
    verify_step([request], [5])
    request.end = 6
    verify_step([request], [7])
    send([request])
    assert request.answers == [{accept_lengths.FIELD: [5]}]


def test_an_answer_of_the_prefill_alone_has_no_steps() -> None:
    request = Request(ASKED)
    request.output_ids, request.end = [0], 1
    send([request])
    assert request.answers == [{accept_lengths.FIELD: []}]


@pytest.mark.parametrize("custom_params", [None, {}, {"a": 1}, {accept_lengths.FIELD: False}, "text"])
def test_nothing_is_collected_for_those_who_do_not_ask(custom_params: Any) -> None:
    request = Request(custom_params)
    request.output_ids = [0]
    verify_step([request], [5])
    request.end = 6
    send([request])
    assert request.customized_info is None
    assert request.answers == [{}]


def test_customized_info_of_others_is_kept() -> None:
    request = Request(None)
    request.customized_info = {"theirs": [1]}
    verify_step([request], [2])
    assert request.customized_info == {"theirs": [1]}
    request.sampling_params.custom_params = ASKED
    accept_lengths.begin(request)
    assert request.customized_info == {"theirs": [1], accept_lengths.STEPS: []}


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [([], []), ([0], []), ([0, 1], [1]), ([0, 1, 1, 2, 0, 3, 3, 3], [2, 1, 3]), ([1, 0, 1], [1, 1])],
)
def test_runs_of_a_step_are_its_length(steps: list[int], lengths: list[int]) -> None:
    assert accept_lengths.accept_lengths(steps) == lengths
