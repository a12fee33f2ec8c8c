"""What people do with a server: streams, stop strings, several answers, aborts, and more load than memory."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Launch
from e2e.hf import GreedyOracle
from e2e.prompts import mixed_prompts
from e2e.serving import RETRACTED, Server

NEW_TOKENS = 32
PROMPTS = mixed_prompts(64, longest=60, seed=11)


@pytest.fixture(scope="module")
def server(launch: Launch, tiny_target: Path, tiny_drafter: Path) -> Iterator[Server]:
    with launch(
        tiny_target,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        max_running_requests=64,
        max_total_tokens=20_000,
        enable_mixed_chunk=True,
        chunked_prefill_size=64,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def texts(oracle: GreedyOracle) -> list[list[int]]:
    return [oracle.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


def test_what_runs_is_what_was_asked_for(server: Server) -> None:
    info = server.server_info()
    assert info["speculative_algorithm"] == "DDTREE"
    assert (info["speculative_ddtree_budget"], info["speculative_ddtree_topk_cap"]) == (32, 16)
    assert info["disable_overlap_schedule"] is False
    ready = re.search(r"DDTREE ready\. (.*)", server.log())
    assert ready is not None
    for part in ("block_size=16", "budget=32", "topk=16", "verify_width=33", "memory="):
        assert part in ready[1]


def test_sixty_four_requests_at_once_in_mixed_batches(server: Server, texts: list[list[int]]) -> None:
    # One request of 64 prompts: of 64 requests the first may be done before the last one is sent.
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    answers = server.post("/generate", {"input_ids": PROMPTS, "sampling_params": params})
    assert [answer["output_ids"] for answer in answers] == texts
    peak = max(int(n) for n in re.findall(r"#running-req: (\d+)", server.log()))
    assert peak > 32


def test_a_streamed_answer_equals_a_whole_one(server: Server) -> None:
    payload = {
        "text": "The quick brown fox",
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS},
    }
    events = list(server.stream(payload))
    assert len(events) > 1
    assert events[-1]["text"] == server.post("/generate", payload)["text"]


def test_a_stop_string_ends_the_text_before_itself(server: Server) -> None:
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    whole = server.post("/generate", {"text": "def main():", "sampling_params": params})["text"]
    stop = whole[len(whole) // 2 :][:2]
    stopped = server.post("/generate", {"text": "def main():", "sampling_params": params | {"stop": [stop]}})
    assert stopped["text"] == whole[: whole.index(stop)]
    assert stopped["meta_info"]["finish_reason"]["type"] == "stop"


def test_several_answers_to_one_prompt(server: Server, texts: list[list[int]]) -> None:
    greedy = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, "n": 3}
    answers = server.post("/generate", {"input_ids": PROMPTS[0], "sampling_params": greedy})
    assert [answer["output_ids"] for answer in answers] == [texts[0]] * 3
    warm = {**greedy, "temperature": 1.0, "n": 8}
    sampled = server.post("/generate", {"input_ids": PROMPTS[0], "sampling_params": warm})
    assert len({tuple(answer["output_ids"]) for answer in sampled}) > 4


def test_greedy_requests_stay_greedy_beside_sampled_ones(server: Server, texts: list[list[int]]) -> None:
    payloads = [
        {
            "input_ids": prompt,
            "sampling_params": {
                "temperature": float(index % 2),
                "top_p": 0.9 if index % 4 == 1 else 1.0,
                "min_p": 0.1 if index % 4 == 3 else 0.0,
                "max_new_tokens": NEW_TOKENS,
                "ignore_eos": True,
            },
        }
        for index, prompt in enumerate(PROMPTS[:16])
    ]
    answers = server.generate(payloads)
    assert [answer["output_ids"] for answer in answers[::2]] == texts[:16:2]
    assert {len(answer["output_ids"]) for answer in answers[1::2]} == {NEW_TOKENS}
    assert (
        sum(answer["output_ids"] != text for answer, text in zip(answers[1::2], texts[1:16:2], strict=True))
        > 4
    )


def test_fifty_samples_differ(server: Server) -> None:
    params = {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    answers = server.post("/generate", {"input_ids": [PROMPTS[0]] * 50, "sampling_params": params})
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 40


ASKING = {"custom_params": {"ddtree_accept_lengths": True}}


def test_accept_lengths_on_demand(server: Server, texts: list[list[int]]) -> None:
    greedy = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    payloads = [
        {"input_ids": prompt, "sampling_params": greedy | (ASKING if index % 2 else {})}
        for index, prompt in enumerate(PROMPTS[:24])
    ]
    answers = server.generate(payloads)
    assert [answer["output_ids"] for answer in answers] == texts[:24]
    for answer in answers[::2]:
        assert [key for key in answer["meta_info"] if key.startswith("ddtree_")] == []
    found = []
    for answer in answers[1::2]:
        info = answer["meta_info"]
        lengths = info["ddtree_accept_lengths"]
        assert [key for key in info if key.startswith("ddtree_")] == ["ddtree_accept_lengths"]
        # In a mixed batch a running request gets a token from a prefill.
        assert sum(lengths) <= info["completion_tokens"] - 1 == NEW_TOKENS - 1
        # SGLang counts the same steps without their order, the last one untrimmed.
        assert len(lengths) == info["spec_verify_ct"]
        counted = Counter(dict(enumerate(info["spec_correct_drafts_histogram"])))
        assert (counted - Counter(length - 1 for length in lengths[:-1])).total() == 1
        found += lengths[:-1]
    assert len(set(found)) > 2

    # Alone, all but the first token are a step's; in a stream, too, and only in its last event.
    alone = server.post("/generate", payloads[1])["meta_info"]
    assert sum(alone["ddtree_accept_lengths"]) == NEW_TOKENS - 1
    assert len(alone["ddtree_accept_lengths"]) == alone["spec_verify_ct"]
    *events, last = server.stream(payloads[1])
    assert len(events) > 1
    assert [event for event in events if "ddtree_accept_lengths" in event["meta_info"]] == []
    assert last["meta_info"]["ddtree_accept_lengths"] == alone["ddtree_accept_lengths"]
    assert "ddtree_step_of_token" not in last["meta_info"]


def test_accept_lengths_end_at_a_stop_and_pass_through_chat(server: Server) -> None:
    payload = {"input_ids": PROMPTS[1], "sampling_params": {"temperature": 0, "ignore_eos": True, **ASKING}}
    payload["sampling_params"]["max_new_tokens"] = NEW_TOKENS
    whole = server.post("/generate", payload)["meta_info"]["ddtree_accept_lengths"]
    # Two or more tokens in a step: stop inside the last of these.
    index = max(number for number, length in enumerate(whole[:-1]) if length > 1)
    payload["sampling_params"]["max_new_tokens"] = 1 + sum(whole[: index + 1]) - 1
    cut = server.post("/generate", payload)["meta_info"]["ddtree_accept_lengths"]
    assert cut == [*whole[:index], whole[index] - 1]
    payload["sampling_params"]["max_new_tokens"] = 1
    assert server.post("/generate", payload)["meta_info"]["ddtree_accept_lengths"] == []

    (choice,) = server.chat("Say something.", max_tokens=8, return_meta_info=True, **ASKING)["choices"]
    assert sum(choice["meta_info"]["ddtree_accept_lengths"]) == choice["meta_info"]["completion_tokens"] - 1
    (choice,) = server.chat("Say something.", max_tokens=8, return_meta_info=True)["choices"]
    assert "ddtree_accept_lengths" not in choice["meta_info"]


def test_chat_and_completion_endpoints_answer(server: Server) -> None:
    chat = server.chat("Say something.", max_tokens=8)
    assert chat["usage"]["completion_tokens"] == 8
    body = {"model": "default", "prompt": "The quick", "max_tokens": 8, "temperature": 0}
    assert server.post("/v1/completions", body)["usage"]["completion_tokens"] == 8


def test_two_hundred_requests_with_aborts_and_too_little_memory(
    launch: Launch, tiny_target: Path, tiny_drafter: Path, oracle: GreedyOracle
) -> None:
    prompts = mixed_prompts(40, longest=60, seed=13)
    texts = [oracle.generate(prompt, 96, stop=2) for prompt in prompts]
    choice = random.Random(1)
    with launch(
        tiny_target,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=tiny_drafter,
        speculative_ddtree_budget=16,
        max_running_requests=24,
        # Room for half of what 24 requests hold at their longest.
        max_total_tokens=2048,
        schedule_conservativeness=0.1,
    ) as server:
        assert server.settled_tokens() == 0
        aborted = set(choice.sample(range(200), 40))
        answers = run_with_aborts(server, prompts, aborted)
        for number, answer in enumerate(answers):
            text = texts[number % len(prompts)]
            if answer["meta_info"]["finish_reason"]["type"] == "abort":
                assert number in aborted
                assert answer["output_ids"] == text[: len(answer["output_ids"])]
            else:
                assert answer["output_ids"] == text, number
                # A request that was taken back is prefilled again, which emits a token.
                info = answer["meta_info"]
                prefills = info["completion_tokens"] - sum(info["ddtree_accept_lengths"])
                assert prefills == 1 + info["num_retractions"]
        # One that was aborted while it waited has none.
        assert any(answer["meta_info"].get("num_retractions") for answer in answers)
        assert any(answers[number]["meta_info"]["finish_reason"]["type"] == "abort" for number in aborted)
        assert RETRACTED in server.log()
        server.flush_cache()
        assert server.settled_tokens() == 0
        # SGLang checks its pools whenever it is idle, and ends the server on a leak.
        time.sleep(2)
        assert server.greedy(prompts[:2], len(texts[0])) == [
            oracle.generate(prompt, len(texts[0])) for prompt in prompts[:2]
        ]
        assert "leak" not in server.log().lower()


def run_with_aborts(server: Server, prompts: list[list[int]], aborted: set[int]) -> list[dict[str, Any]]:
    def ask(number: int) -> dict[str, Any]:
        rid = f"load-{number:03d}"  # SGLang aborts by prefix
        # Without ignore_eos: with it the scheduler knows every length ahead and admits only what fits.
        params = {"temperature": 0, "max_new_tokens": 96, **ASKING}
        if number in aborted:
            threading.Timer(0.2 + number % 7 / 10, lambda: server.abort(rid)).start()
        payload = {"rid": rid, "input_ids": prompts[number % len(prompts)], "sampling_params": params}
        return server.post("/generate", payload)

    with ThreadPoolExecutor(48) as pool:
        return list(pool.map(ask, range(200)))


def test_a_stop_lets_running_requests_finish(
    launch: Launch, tiny_target: Path, tiny_drafter: Path, oracle: GreedyOracle
) -> None:
    """What `scripts/deploy/sglang-ddtree@.service` relies on: SIGTERM to the main process alone, status 0."""
    prompts = PROMPTS[:2]
    with launch(
        tiny_target, speculative_algorithm="DDTREE", speculative_draft_model_path=tiny_drafter
    ) as server:
        with ThreadPoolExecutor(1) as pool:
            texts = pool.submit(server.greedy, prompts, 400)
            running = time.monotonic() + 60
            while server.used_tokens() < 2 * 50 and time.monotonic() < running:
                time.sleep(0.05)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{server.base_url}/health", timeout=10)
            assert not texts.done(), "the signal came after the requests"
            assert texts.result() == [oracle.generate(prompt, 400) for prompt in prompts]
        assert server.process.wait(timeout=120) == 0
        ended = time.monotonic() + 60
        while processes_of(server) and time.monotonic() < ended:
            time.sleep(0.2)
        assert not processes_of(server)


def processes_of(server: Server) -> bool:
    try:
        os.killpg(server.process.pid, 0)
    except ProcessLookupError:
        return False
    return True
