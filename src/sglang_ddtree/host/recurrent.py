"""Targets with recurrent layers: their families, and what a tree costs on the one that is served."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..recurrent import GDNShape, record_bytes_per_node

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

    from ..step.plan import StepPlan

GDN = "Gated DeltaNet (GDN)"
_CHECKPOINT = 64  # tokens: no grid of checkpoints is finer


def recurrent_family(model_config: Any) -> str | None:
    """The family of a target's recurrent layers in words; None for a target without any.

    `GDN` is the one whose state follows the accepted node exactly: Qwen3-Next, Qwen3.5 and Qwen3.6.
    """
    from sglang.srt.configs.hybrid_arch import (
        hybrid_gdn_config,
        hybrid_kda_config,
        hybrid_lightning_config,
        mamba2_config,
        mambaish_config,
    )
    from sglang.srt.configs.qwen3_5 import Qwen3_5MoeTextConfig, Qwen3_5TextConfig
    from sglang.srt.configs.qwen3_next import Qwen3NextConfig

    config = mambaish_config(model_config)
    if config is None:
        return None
    # The exact types: relatives of them add states of their own.
    if type(config) in (Qwen3NextConfig, Qwen3_5TextConfig, Qwen3_5MoeTextConfig):
        return GDN
    name = type(config).__name__
    if hybrid_gdn_config(model_config) is not None:
        return f"variant of GDN ({name})"
    if hybrid_kda_config(model_config) is not None:
        return f"Kimi Delta Attention ({name})"
    if hybrid_lightning_config(model_config) is not None:
        return f"Lightning attention ({name})"
    if name.startswith(("Lfm2", "Zaya", "Inkling")):
        return f"short convolution ({name})"
    if mamba2_config(model_config) is not None:
        return f"Mamba ({name})"
    return f"linear attention ({name})"


def is_tuned_at_startup(model_config: Any) -> bool:
    """Whether SGLang may run a GDN target on all requests at once to tune its MoE or quantised products."""
    from sglang.srt.configs.hybrid_arch import hybrid_gdn_config
    from sglang.srt.configs.qwen3_5 import Qwen3_5TextConfig

    # The one family without experts.
    has_experts = type(hybrid_gdn_config(model_config)) is not Qwen3_5TextConfig
    return has_experts or getattr(model_config, "quantization", None) is not None


def follows_accepted_node(model_config: Any) -> bool:
    return recurrent_family(model_config) == GDN


@dataclass(frozen=True)
class RecurrentPlan:
    """What verifying a tree records on the GDN layers of a target, in bytes.

    Attributes:
        budget: as the user knows it, a number or "auto".
        batches: verify width -> the most requests that run it; None where all can.
        node_bytes: a node of one request, all layers: the inputs from which its state can be computed.
        slot_bytes: one committed state of one request, all layers.
    """

    shape: GDNShape
    layers: int
    budget: int | str
    batches: Mapping[int, int | None]
    activation_dtype: torch.dtype
    conv_dtype: torch.dtype
    node_bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, model_config: Any, plan: StepPlan, batches: Mapping[int, int | None]) -> RecurrentPlan:
        from sglang.srt.configs.hybrid_arch import hybrid_gdn_config
        from sglang.srt.runtime_context import linear_attn_tp_size

        config = hybrid_gdn_config(model_config)
        params = config.mamba2_cache_params
        shape = gdn_shape(config, linear_attn_tp_size())
        layers = len(params.layers)
        return cls(
            shape=shape,
            layers=layers,
            budget="auto" if plan.follows_load else plan.verify_width - 1,
            batches=batches,
            activation_dtype=model_config.dtype,
            conv_dtype=params.dtype.conv,
            node_bytes=layers * record_bytes_per_node(shape, model_config.dtype, params.dtype.conv),
            slot_bytes=int(params.mamba_cache_per_req),
        )

    def nodes(self, requests: int) -> int:
        """The most that one step of up to `requests` requests verifies."""
        return max(
            width * (requests if most is None else min(requests, most))
            for width, most in self.batches.items()
        )

    def record_bytes(self, requests: int) -> int:
        return self.node_bytes * self.nodes(requests)

    def check_fit(self, memory: StateMemory, requests: int) -> None:
        """Raise `ValueError` with the numbers unless states and records of `requests` requests fit."""
        nodes = self.nodes(requests)
        needed = memory.needed(self, requests, nodes)
        if needed <= memory.available:
            return
        fewer = memory.most_requests(self)
        width = memory.widest(self, requests)
        fixes = [
            f"--speculative-ddtree-budget {width - 1} at {requests} running requests"
            if width >= 2
            else f"no budget fits {requests} running requests",
            f"--max-running-requests {fewer} at budget {self.budget}"
            if fewer >= 1
            else f"not one request fits at budget {self.budget}",
        ]
        raise ValueError(
            f"DDTREE cannot start: the recurrent layers need {_gib(needed)} for {requests} running requests "
            f"({_mib(self.node_bytes)} a node x {nodes} nodes, and states of {_mib(self.slot_bytes)}), "
            f"{_gib(memory.available)} are there for them. What would fit: {'; '.join(fixes)}. "
            "--mem-fraction-static and --mamba-full-memory-ratio give them more."
        )

    def describe(self, requests: int) -> str:
        return (
            f"{_mib(self.node_bytes)} a node x {self.nodes(requests)} nodes of {requests} requests = "
            f"{_gib(self.record_bytes(requests))}"
        )


@dataclass(frozen=True)
class StateMemory:
    """The memory that SGLang has for recurrent states, as `_handle_max_mamba_cache` shares it out.

    Attributes:
        available: bytes.
        slots_per_request: states that SGLang keeps for each running request.
        fixed_slots: states whatever the number of requests.
        record_share: how much of the record these bytes pay; KV pays the rest.
    """

    available: int
    slots_per_request: int
    fixed_slots: int
    record_share: float

    @classmethod
    def sized_by_ratio(cls, rest: float, ratio: float, slots_per_request: int) -> StateMemory:
        """SGLang fills its part of `rest` bytes, ratio / (1 + ratio), with states; one of them is padding."""
        share = ratio / (1 + ratio)
        return cls(int(rest * share), slots_per_request, 1, share)

    def needed(self, plan: RecurrentPlan, requests: int, nodes: int) -> float:
        states = plan.slot_bytes * (self.slots_per_request * requests + self.fixed_slots)
        return states + self.record_share * plan.node_bytes * nodes

    def most_requests(self, plan: RecurrentPlan) -> int:
        def fits(requests: int) -> bool:
            return self.needed(plan, requests, plan.nodes(requests)) <= self.available

        least, beyond = 0, 1
        while fits(beyond):
            least, beyond = beyond, 2 * beyond
        while beyond - least > 1:
            middle = (least + beyond) // 2
            least, beyond = (middle, beyond) if fits(middle) else (least, middle)
        return least

    def widest(self, plan: RecurrentPlan, requests: int) -> int:
        """Of the widths that all requests could run."""
        states = self.needed(plan, requests, 0)
        return int((self.available - states) // (self.record_share * plan.node_bytes * requests))


def recurrent_plan(server_args: ServerArgs, model_config: Any) -> RecurrentPlan:
    """The plan of a GDN target in the process that decodes."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.runtime_context import get_exec

    from .budget import has_graphs, plan_in_worker

    plan = plan_in_worker(server_args, model_config)
    batches: dict[int, int | None] = dict.fromkeys(plan.widths)
    if plan.follows_load and has_graphs(resolved_view(server_args)):
        # A batch beyond a width's graphs never runs it, and one beyond all graphs runs the narrowest.
        sizes = sorted(get_exec().graph.cuda_graph_config.decode.bs)
        for width in plan.widths:
            if width > plan.block_size and width != plan.widths[0]:
                batches[width] = max(plan.sizes_of(width, sizes))
    return RecurrentPlan.of(model_config, plan, batches)


def gdn_shape(config: Any, ranks: int = 1) -> GDNShape:
    """The layers' shape on one of `ranks` ranks, which share the heads."""
    return GDNShape(
        num_k_heads=config.linear_num_key_heads // ranks,
        num_v_heads=config.linear_num_value_heads // ranks,
        head_k_dim=config.linear_key_head_dim,
        head_v_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


def gdn_problems(
    model_config: Any,
    plan: StepPlan,
    track_interval: int | None,
    ssm_dtype: str | None = None,
    ranks: int = 1,
) -> list[str]:
    """Why a GDN target is not served at this plan, one text per reason.

    `track_interval` is None where no checkpoint is taken while decoding; `ssm_dtype` overrides the checkpoint's;
    `ranks` share the heads.
    """
    from sglang.srt.configs.hybrid_arch import hybrid_gdn_config
    from sglang.srt.configs.mamba_utils import mamba2_state_dtype

    from ..recurrent.delta_triton import HEAD_DIMS, MAX_WIDTH

    problems = []
    config = hybrid_gdn_config(model_config)
    shape = gdn_shape(config)
    width = plan.verify_width
    state_dtype = ssm_dtype or str(mamba2_state_dtype(config).temporal).removeprefix("torch.")
    if width > MAX_WIDTH:
        problems.append(
            f"--speculative-ddtree-budget {width - 1}: a target with GDN layers is verified up to "
            f"{MAX_WIDTH} tokens wide. Set it to {MAX_WIDTH - 1} or less"
        )
    for name, size in (
        ("linear_key_head_dim", shape.head_k_dim),
        ("linear_value_head_dim", shape.head_v_dim),
    ):
        if size not in HEAD_DIMS:
            problems.append(f"the target's {name} is {size}, it must be one of {list(HEAD_DIMS)}")
    for name, heads in (
        ("linear_num_key_heads", shape.num_k_heads),
        ("linear_num_value_heads", shape.num_v_heads),
    ):
        if heads % ranks:
            problems.append(
                f"--tensor-parallel-size {ranks}: it must divide the target's {name}, which is {heads}"
            )
    if state_dtype not in ("float32", "bfloat16"):
        problems.append(f"--mamba-ssm-dtype {state_dtype}: it must be float32 or bfloat16")
    if track_interval is not None and width > track_interval:
        problems.append(
            f"--mamba-track-interval {track_interval}: it must be at least the verify width, {width} at "
            f"--speculative-ddtree-budget {width - 1}"
        )
    # With overlap scheduling two steps share a tracking slot: they may not cross two checkpoints.
    elif track_interval is not None and math.lcm(_CHECKPOINT, track_interval) < 2 * plan.output_stride:
        problems.append(
            f"--mamba-track-interval {track_interval}: it must be at least {2 * plan.output_stride}, twice the "
            f"tokens of a step at the drafter's block_size {plan.block_size}"
        )
    return problems


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _mib(size: float) -> str:
    return f"{size / 2**20:.2f} MiB"
