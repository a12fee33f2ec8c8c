"""What this version does not serve is refused by name: options at startup, request fields with HTTP 400."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.checkpoints import EOS_ID, make_drafter
from e2e.conftest import Launch
from e2e.serving import Server
from sglang_ddtree.demo.server import cpu_environment
from unit.host import sglang_trees

# -- startup: SGLang's own argument handling, up to where a model would be loaded

RESOLVE = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
for arguments in json.load(open(sys.argv[1])):
    try:
        record = prepare_server_args(arguments)
        record.resolve_once()
        answer = {"resolved": record.resolved_dict()["speculative_algorithm"]}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("ANSWER", json.dumps(answer))
"""

OPTIONS: dict[str, list[str]] = {
    "--speculative-num-draft-tokens 16: DDTREE takes 33": ["--speculative-num-draft-tokens", "16"],
    "--speculative-num-steps 3: DDTREE takes 7": ["--speculative-num-steps", "3"],
    "--speculative-eagle-topk 4: DDTREE takes 2": ["--speculative-eagle-topk", "4"],
    "--speculative-dflash-block-size 4: DDTREE takes 8": ["--speculative-dflash-block-size", "4"],
    "--speculative-draft-window-size 128": ["--speculative-draft-window-size", "128"],
    "--speculative-accept-threshold-single 0.9": ["--speculative-accept-threshold-single", "0.9"],
    "--speculative-accept-threshold-acc 0.9": ["--speculative-accept-threshold-acc", "0.9"],
    "--speculative-use-rejection-sampling: ": ["--speculative-use-rejection-sampling"],
    "--tokenizer-worker-num 2": ["--tokenizer-worker-num", "2"],
    "--pipeline-parallel-size 2": ["--pp-size", "2"],
    "--enable-lora: ": ["--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj"],
    "--enable-custom-logit-processor: ": ["--enable-custom-logit-processor"],
    "--enable-return-hidden-states: ": ["--enable-return-hidden-states"],
    "--enable-hierarchical-cache: ": ["--enable-hierarchical-cache"],
    "--dtype bfloat16 (given or the target's own): on the CPU platform": ["--dtype", "bfloat16"],
    "--disaggregation-mode decode": ["--disaggregation-mode", "decode"],
    "--disaggregation-mode prefill": ["--disaggregation-mode", "prefill"],
}
# Values that say what DDTREE does anyway.
CONSISTENT = [
    [],
    ["--speculative-num-draft-tokens", "33", "--speculative-num-steps", "7"],
    ["--speculative-eagle-topk", "2", "--speculative-dflash-block-size", "8"],
    ["--enable-mixed-chunk", "--chunked-prefill-size", "64", "--page-size", "16"],
    ["--grammar-backend", "none"],
]


@pytest.fixture(scope="module")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[list[str]]], list[dict[str, str]]]:
    """Answers of SGLang's argument handling to several command lines, from one process."""

    def run(command_lines: list[list[str]]) -> list[dict[str, str]]:
        file = tmp_path_factory.mktemp("cases") / "cases.json"
        file.write_text(json.dumps(command_lines))
        command = [sys.executable, "-c", RESOLVE, str(file)]
        done = subprocess.run(
            command, env=cpu_environment(1), capture_output=True, text=True, timeout=600, check=False
        )
        answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        assert len(answers) == len(command_lines), done.stderr
        return [json.loads(line.removeprefix("ANSWER ")) for line in answers]

    return run


def arguments(target: Path, drafter: Path | None, *more: str, budget: int | None = 32) -> list[str]:
    words = ["--model-path", str(target), "--speculative-algorithm", "DDTREE", "--dtype", "float32"]
    if drafter is not None:
        words += ["--speculative-draft-model-path", str(drafter)]
    if budget is not None:
        words += ["--speculative-ddtree-budget", str(budget)]
    return [*words, *more]


def test_refused_options_are_named(
    resolve: Callable[[list[list[str]]], list[dict[str, str]]], tiny_target: Path, tiny_drafter_8: Path
) -> None:
    answers = resolve([arguments(tiny_target, tiny_drafter_8, *more) for more in OPTIONS.values()])
    for expected, answer in zip(OPTIONS, answers, strict=True):
        assert "ValueError: DDTREE cannot start: " in answer.get("error", ""), (expected, answer)
        assert expected in answer["error"]


def test_consistent_options_are_taken(
    resolve: Callable[[list[list[str]]], list[dict[str, str]]], tiny_target: Path, tiny_drafter_8: Path
) -> None:
    answers = resolve([arguments(tiny_target, tiny_drafter_8, *more) for more in CONSISTENT])
    assert answers == [{"resolved": "DDTREE"}] * len(CONSISTENT)


def config_only(folder: Path, **config: Any) -> Path:
    """A target of which only the config exists: its weights must not be asked for."""
    folder.mkdir()
    common = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "eos_token_id": EOS_ID,
    }
    (folder / "config.json").write_text(json.dumps(common | config))
    return folder


def test_refused_targets_and_drafters_are_named(
    resolve: Callable[[list[list[str]]], list[dict[str, str]]],
    tiny_target: Path,
    tiny_drafter_8: Path,
    tmp_path: Path,
) -> None:
    sliding = config_only(
        tmp_path / "sliding",
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        use_sliding_window=True,
        sliding_window=64,
        max_window_layers=2,
    )
    mamba = config_only(tmp_path / "mamba", architectures=["FalconH1ForCausalLM"], model_type="falcon_h1")
    domino = make_drafter(tmp_path / "domino", dflash_config={"mask_token_id": 3, "projector_type": "domino"})
    cases = {
        "sliding-window target ['Qwen3ForCausalLM']": arguments(sliding, tiny_drafter_8),
        "hybrid target ['FalconH1ForCausalLM'] with Mamba (FalconH1Config) layers: it is not proven": arguments(
            mamba,
            tiny_drafter_8,
            "--disable-radix-cache",  # with one, SGLang's own checks come first
        ),
        "a Domino drafter, projector_type = 'domino'": arguments(tiny_target, domino),
        "--speculative-draft-model-path is missing": arguments(tiny_target, None),
        "--speculative-ddtree-budget 8: only --speculative-algorithm DDTREE": [
            *("--model-path", str(tiny_target), "--speculative-ddtree-budget", "8"),
        ],
    }
    for expected, answer in zip(cases, resolve(list(cases.values())), strict=True):
        assert expected in answer.get("error", ""), (expected, answer)


def test_limits_of_a_hybrid_target_are_named(
    resolve: Callable[[list[list[str]]], list[dict[str, str]]], hybrid_target: Path, tiny_drafter_8: Path
) -> None:
    cases = {
        "--mamba-track-interval 16: it must be at least the verify width, 17 at --speculative-ddtree-budget 16": [
            *("--speculative-ddtree-budget", "16", "--mamba-track-interval", "16")
        ],
        "--speculative-ddtree-budget 129: a target with GDN layers is verified up to 129 tokens wide": [
            *("--speculative-ddtree-budget", "129")
        ],
        "--linear-attn-verify-backend triton: a step verifies GDN layers with this package's own kernels": [
            *("--linear-attn-verify-backend", "triton")
        ],
        "--linear-attn-decode-backend triton: a step verifies GDN layers with this package's own": [
            *("--linear-attn-decode-backend", "triton")
        ],
        "--enable-int8-mamba-checkpoint: checkpoints of the recurrent state are kept exact": [
            "--enable-int8-mamba-checkpoint"
        ],
    }
    command_lines = [arguments(hybrid_target, tiny_drafter_8, *more, budget=None) for more in cases.values()]
    for expected, answer in zip(cases, resolve(command_lines), strict=True):
        assert expected in answer.get("error", ""), (expected, answer)
    taken = ["--speculative-ddtree-budget", "16", "--mamba-track-interval", "64"]
    assert resolve([arguments(hybrid_target, tiny_drafter_8, *taken, budget=None)]) == [
        {"resolved": "DDTREE"}
    ]


def launch_and_fail(command_line: list[str], environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "sglang.launch_server", *command_line]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    return done.stderr


def test_server_ends_with_the_reason_before_it_loads_a_model(tiny_target: Path, tiny_drafter_8: Path) -> None:
    refused = arguments(tiny_target, tiny_drafter_8, "--ep-size", "2")
    log = launch_and_fail(refused, cpu_environment(1))
    assert (
        log.rstrip().splitlines()[-1].startswith("ValueError: DDTREE cannot start: --expert-parallel-size 2")
    )
    assert "Load weight begin" not in log


def test_another_sglang_ends_with_the_names_that_differ(tiny_target: Path, tiny_drafter_8: Path) -> None:
    root = sglang_trees.release("0.5.22")
    environment = cpu_environment(1) | {"PYTHONPATH": str(root.parent)}
    for budget in (None, 32):
        log = launch_and_fail(arguments(tiny_target, tiny_drafter_8, budget=budget), environment)
        assert "does not fit SGLang 0.5.22" in log
        assert "spec_utils.draft_tp_context: expected (layout), found (owns_attention)" in log
        assert "pip install sglang==0.5.23" in log
        assert "RuntimeError: sglang_ddtree" in log


# -- requests: one server, which goes on serving


@pytest.fixture(scope="module")
def server(launch: Launch, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("drafters") / "rope_parameters"
    with launch(
        tiny_target,
        speculative_algorithm="DDTREE",
        speculative_draft_model_path=make_drafter(folder, block_size=8, rope="rope_parameters"),
        speculative_ddtree_budget=9,
    ) as running:
        yield running


def refusal_in_stream(event: dict[str, Any]) -> tuple[int, str]:
    """Code and message of the only event of a refused stream, from the scheduler or from before it."""
    if "error" in event:
        return event["error"]["code"], event["error"]["message"]
    reason = event["meta_info"]["finish_reason"]
    return reason["status_code"], reason["message"]


PROMPT = [5, 6, 7, 8]
GENERATE: dict[str, dict[str, Any]] = {
    "json_schema": {"sampling_params": {"json_schema": "{}"}},
    "regex": {"sampling_params": {"regex": "a+"}},
    "ebnf": {"sampling_params": {"ebnf": 'root ::= "a"'}},
    "structural_tag": {"sampling_params": {"structural_tag": '{"structures": [], "triggers": []}'}},
    "return_logprob": {"return_logprob": True, "top_logprobs_num": 2},
    "return_logprob (logprobs, top_logprobs)": {"return_logprob": True, "token_ids_logprob": [5]},
    "frequency_penalty": {"sampling_params": {"frequency_penalty": 0.5}},
    "presence_penalty": {"sampling_params": {"presence_penalty": 0.5}},
    "repetition_penalty": {"sampling_params": {"repetition_penalty": 1.5}},
    "min_new_tokens": {"sampling_params": {"min_new_tokens": 4}},
    "logit_bias": {"sampling_params": {"logit_bias": {"5": 1.0}}},
    "sampling_seed": {"sampling_params": {"sampling_seed": 7}},
    "input_embeds": {"input_ids": None, "input_embeds": [[0.0] * 128] * 4},
    "Beam search is not supported": {"sampling_params": {"beam_width": 2}},
    "custom_params.ddtree_...": {"sampling_params": {"custom_params": {"ddtree_width": 8}}},
    "custom_params: only a JSON object": {"sampling_params": {"custom_params": ["ddtree_accept_lengths"]}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("field", GENERATE)
def test_generate_refuses_the_field_by_name(server: Server, field: str, stream: bool) -> None:
    payload = {"input_ids": PROMPT} | GENERATE[field]
    payload = {name: value for name, value in payload.items() if value is not None}
    if stream:
        # As with SGLang's own refusals the code comes in the stream: the status line has gone out before.
        (event,) = server.stream(payload)
        code, message = refusal_in_stream(event)
        assert (code, field in message) == (400, True), event
    else:
        status, text = server.refusal(payload)
        assert (status, field in text) == (400, True), text
    assert_serves(server)


CHAT: dict[str, dict[str, Any]] = {
    "json_schema (response_format, tool_choice)": {"response_format": {"type": "json_object"}},
    "return_logprob (logprobs, top_logprobs)": {"logprobs": True, "top_logprobs": 2},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "min_new_tokens (min_tokens)": {"min_tokens": 4},
    "logit_bias": {"logit_bias": {"5": 1.0}},
    "sampling_seed (seed)": {"seed": 7},
    "got ddtree_accept_lengths = 'yes'": {"custom_params": {"ddtree_accept_lengths": "yes"}},
}


@pytest.mark.parametrize("field", CHAT)
def test_chat_refuses_the_field_by_name(server: Server, field: str) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    status, text = server.refusal(body | CHAT[field], "/v1/chat/completions")
    assert (status, field in text) == (400, True), text
    assert_serves(server)


def test_completions_refuse_the_field_by_name(server: Server) -> None:
    body = {"model": "default", "prompt": "hello", "max_tokens": 8}
    for more, field in (({"logprobs": 2}, "return_logprob"), ({"seed": 7}, "sampling_seed")):
        status, text = server.refusal(body | more, "/v1/completions")
        assert (status, field in text) == (400, True), text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openai_stream_is_refused_by_name(server: Server, path: str) -> None:
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "hello"}]} if "chat" in path else {"prompt": "hello"}
    )
    body = {"model": "default", "stream": True, "logit_bias": {"5": 1.0}, **prompt}
    request = urllib.request.Request(
        f"{server.base_url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    # The stream may have begun, as SGLang's own refusals may find it: then the code is in its last event.
    try:
        text = urllib.request.urlopen(request, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        text = f"{error.code} {error.read().decode()}"
    assert "DDTREE does not support logit_bias" in text
    assert "400" in text
    assert_serves(server)


def test_one_refused_prompt_refuses_its_batch_and_no_other_request(server: Server) -> None:
    batch = {
        "input_ids": [PROMPT, PROMPT],
        "sampling_params": [{"max_new_tokens": 4}, {"max_new_tokens": 4, "min_new_tokens": 2}],
    }
    status, text = server.refusal(batch)
    assert (status, "min_new_tokens" in text) == (400, True), text
    assert_serves(server)


@pytest.mark.parametrize(
    "payload",
    [
        {"input_ids": []},
        {"input_ids": [1, 10**6]},
        {"input_ids": [1, -1]},
        {"input_ids": PROMPT, "sampling_params": {"temperature": 1.0, "top_k": 10**12}},
    ],
    ids=["empty", "outside the vocabulary", "negative", "top_k"],
)
def test_a_request_at_which_sglang_would_end_is_refused(server: Server, payload: dict) -> None:
    status, text = server.refusal(payload)
    assert status == 400, text
    assert_serves(server)


def test_what_is_served_is_not_refused(server: Server) -> None:
    params = {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "n": 2,
        "max_new_tokens": 6,
        "stop": ["never seen"],
        "stop_regex": "never",
        "ignore_eos": True,
        "no_stop_trim": True,
    }
    answers = server.post("/generate", {"input_ids": PROMPT, "sampling_params": params})
    assert [len(answer["output_ids"]) for answer in answers] == [6, 6]


def test_server_info_and_log_show_what_runs(server: Server) -> None:
    info = server.server_info()
    assert info["speculative_algorithm"] == "DDTREE"
    assert (info["speculative_ddtree_budget"], info["speculative_ddtree_topk_cap"]) == (9, 16)
    assert "budget=9" in server.log()


def assert_serves(server: Server) -> None:
    (ids,) = server.greedy([PROMPT], 4)
    assert len(ids) == 4
