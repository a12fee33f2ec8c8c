"""What `/server_info` must agree on before two arms may be compared, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Field of /server_info, a dot per level -> the flag that sets it for every arm.
FIELDS = {
    "device": "--device",
    "dtype": "--dtype",
    "kv_cache_dtype": "--kv-cache-dtype",
    "page_size": "--page-size",
    "attention_backend": "--attention-backend",
    "prefill_attention_backend": "--prefill-attention-backend",
    "decode_attention_backend": "--decode-attention-backend",
    "sampling_backend": "--sampling-backend",
    "linear_attn_backend": "--linear-attn-backend",
    "linear_attn_prefill_backend": "--linear-attn-prefill-backend",
    "linear_attn_decode_backend": "--linear-attn-decode-backend",
    "mamba_backend": "--mamba-backend",
    "moe_runner_backend": "--moe-runner-backend",
    "disable_overlap_schedule": "--disable-overlap-schedule",
    "disable_radix_cache": "--disable-radix-cache",
    "disable_cuda_graph": "--cuda-graph-backend-decode",
    "disable_decode_cuda_graph": "--disable-decode-cuda-graph",
    "disable_prefill_cuda_graph": "--disable-prefill-cuda-graph",
    "disable_cuda_graph_padding": "--disable-cuda-graph-padding",
    "cuda_graph_config.decode.backend": "--cuda-graph-backend-decode",
    "cuda_graph_config.prefill.backend": "--cuda-graph-backend-prefill",
}
GRAPH_BATCH = "cuda_graph_config.decode.max_bs"


def flags_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """The compared fields of one ``/server_info`` answer; None where it has no such field."""
    return {field: _value(info, field) for field in (*FIELDS, GRAPH_BATCH)}


def differences(
    name: str,
    flags: Mapping[str, Any],
    reference_name: str,
    reference: Mapping[str, Any],
    concurrencies: Sequence[int],
) -> list[str]:
    """Why `name` may not be compared with `reference_name`: field, both values, flag. Empty when it may.

    Both `flags` are `flags_of`'s. The largest batch with a CUDA graph may differ as long as both servers have
    graphs for all `concurrencies`, or neither has.
    """
    found = [
        f"{field} is {reference[field]!r} in {reference_name} and {flags[field]!r} in {name}; "
        f'set it for all arms with --server-arg="{flag}{"" if flag.startswith("--disable") else " ..."}"'
        for field, flag in FIELDS.items()
        if reference[field] != flags[field]
    ]
    for wanted in concurrencies:
        if not is_eager(flags) and _has_graph(reference, wanted) != _has_graph(flags, wanted):
            found.append(
                f"{GRAPH_BATCH} is {reference[GRAPH_BATCH]!r} in {reference_name} and {flags[GRAPH_BATCH]!r} in "
                f"{name}, and --concurrency {wanted} lies between them; set it for all arms with "
                f'--server-arg="--cuda-graph-max-bs-decode {max(concurrencies)}"'
            )
            break
    return found


def is_cpu(flags: Mapping[str, Any]) -> bool:
    return flags["device"] == "cpu" or flags["attention_backend"] == "ddtree_cpu"


def is_eager(flags: Mapping[str, Any]) -> bool:
    """Whether decode steps run without CUDA graphs."""
    return bool(
        is_cpu(flags)
        or flags["disable_cuda_graph"]
        or flags["disable_decode_cuda_graph"]
        or flags["cuda_graph_config.decode.backend"] == "disabled"
    )


def is_float32(flags: Mapping[str, Any]) -> bool:
    """Whether greedy texts must be equal. SGLang's "auto" never chooses float32."""
    return flags["dtype"] in ("float32", "float")


def mode(flags: Mapping[str, Any]) -> str:
    """How the steps ran, in a word or two: "CPU", "eager" or "CUDA graphs"."""
    return "CPU" if is_cpu(flags) else "eager" if is_eager(flags) else "CUDA graphs"


def warnings(flags: Mapping[str, Any], max_running: int | None, concurrencies: Sequence[int]) -> list[str]:
    """What the numbers of this server do not show, in sentences.

    `max_running` is the server's own limit of requests in one batch, None when it is unknown.
    """
    found = []
    if is_cpu(flags):
        found.append("Run on the CPU: acceptance and steps hold, the speeds say nothing about a GPU.")
    elif is_eager(flags):
        found.append(
            "Run eager, CUDA graphs disabled: the launch of every kernel is part of each step's time."
        )
    else:
        beyond = [number for number in concurrencies if not _has_graph(flags, number)]
        if beyond:
            found.append(
                f"Batches above {flags[GRAPH_BATCH]} run eager (concurrency {', '.join(map(str, beyond))}); "
                f'--server-arg="--cuda-graph-max-bs-decode {max(beyond)}" changes that.'
            )
    queued = [number for number in concurrencies if max_running is not None and number > max_running]
    if queued:
        found.append(
            f"The server runs at most {max_running} requests at a time; at concurrency "
            f"{', '.join(map(str, queued))} the others wait, which their time to first token includes."
        )
    return found


def _has_graph(flags: Mapping[str, Any], batch: int) -> bool:
    largest = flags[GRAPH_BATCH]
    return largest is None or batch <= largest


def _value(info: Mapping[str, Any], field: str) -> Any:
    found: Any = info
    for part in field.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
