"""Check and time the tree kernels on a CUDA device.

    python tests/gpu/check_tree_kernels.py [--quick]

Needs torch with CUDA and Triton, nothing else. Every Triton kernel against its plain torch twin; the chain
captured in a CUDA graph and replayed with new inputs; the chain under torch's sync debug mode; the sampler
against the CPU; times. Prints one JSON object as its last line; exit code 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import device_time  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402

from sglang_ddtree.tree import (  # noqa: E402
    Acceptance,
    DraftCandidates,
    DraftTree,
    TreeTopology,
    build_tree,
    draft_candidates,
    flat_mask_numel,
    lay_out,
    sample_target,
    settle_path,
    verify_width,
    write_tree_mask,
)
from sglang_ddtree.tree.sample import sample_torch  # noqa: E402
from sglang_ddtree.tree.sample_limits import Limits  # noqa: E402
from unit.tree import triton_twins  # noqa: E402
from unit.tree.distributions import (  # noqa: E402
    COMBINATIONS,
    LOGITS,
    VOCAB,
    assert_follows,
    distribution,
    p_value,
    parameters_of,
)
from unit.tree.tree_cases import likely_targets, random_candidates  # noqa: E402

DEPTHS, TOPK = 15, 16
PREFIX = 4096
TWIN_CASES = {
    "build": (1000, 256),
    "build_limits": (0, 0),
    "build_ties": (300, 60),
    "topology": (40, 256),
    "settle": (60, 256),
    "window": (60, 256),
    "mask": (40, 96),
    "candidates": (60, 0),
    "sample": (400, 0),
    "sample_noise": (60, 0),
}


@dataclass
class Step:
    """The static inputs and outputs of one step's tree work at a fixed batch size and budget."""

    candidates: DraftCandidates
    roots: torch.Tensor
    prefix_lens: torch.Tensor
    targets: torch.Tensor
    mask_buffer: torch.Tensor
    slots: torch.Tensor
    budget: int

    @classmethod
    def make(cls, batch: int, budget: int, seed: int) -> Step:
        generator = torch.Generator().manual_seed(seed)
        candidates = random_candidates(generator, batch, DEPTHS, TOPK)
        roots = torch.randint(200, (batch,), generator=generator)
        prefix_lens = torch.randint(1, PREFIX, (batch,), generator=generator)
        tree = build_tree(candidates, roots, budget, builder="torch")
        numel = flat_mask_numel(batch, tree.width, PREFIX)
        return cls(
            triton_twins.candidates_to(candidates, "cuda"),
            roots.cuda(),
            prefix_lens.cuda(),
            likely_targets(generator, tree, vocab=200).cuda(),
            torch.zeros(numel, dtype=torch.bool, device="cuda"),
            torch.arange(max(tree.width, DEPTHS + 1)).repeat(batch, 1).cuda(),
            budget,
        )

    def build(self) -> DraftTree:
        return build_tree(self.candidates, self.roots, self.budget)

    def write_mask(self, topology: TreeTopology) -> None:
        write_tree_mask(self.mask_buffer, topology.ancestor_mask, self.prefix_lens, max_prefix_len=PREFIX)

    def run(self) -> tuple[DraftTree, TreeTopology, Acceptance]:
        tree = self.build()
        tree, topology = lay_out(tree, self.prefix_lens)
        self.write_mask(topology)
        return tree, topology, self.accept(tree, topology)

    def accept(self, tree: DraftTree, topology: TreeTopology) -> Acceptance:
        return settle_path(tree, topology.ancestor_mask, self.targets, self.prefix_lens, self.slots)[0]

    def copy_from(self, other: Step) -> None:
        for mine, theirs in (
            (self.candidates.logprobs, other.candidates.logprobs),
            (self.candidates.token_ids, other.candidates.token_ids),
            (self.roots, other.roots),
            (self.prefix_lens, other.prefix_lens),
            (self.targets, other.targets),
        ):
            mine.copy_(theirs)

    def on_cpu(self) -> Step:
        return Step(
            triton_twins.candidates_to(self.candidates, "cpu"),
            self.roots.cpu(),
            self.prefix_lens.cpu(),
            self.targets.cpu(),
            torch.zeros(self.mask_buffer.shape, dtype=torch.bool),
            self.slots.cpu(),
            self.budget,
        )


def check_twins(quick: bool) -> dict[str, Any]:
    done: dict[str, Any] = {}
    for name, compare in triton_twins.COMPARISONS.items():
        cases, max_budget = TWIN_CASES[name]
        start = time.perf_counter()
        count = compare("cuda", max(1, cases // 10) if quick else cases, max_budget)
        done[name] = {"cases": count, "seconds": round(time.perf_counter() - start, 1)}
    return done


def check_graph() -> dict[str, Any]:
    """Capture once, replay with new inputs: each replay equals the torch twins on the CPU."""
    replays = 0
    for batch, budget in ((1, 64), (3, 33), (8, 16)):
        step = Step.make(batch, budget, 0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = step.run()
        for seed in range(1, 6):
            step.copy_from(Step.make(batch, budget, seed))
            step.mask_buffer.zero_()
            graph.replay()
            torch.cuda.synchronize()
            twin = step.on_cpu()
            for left, right in zip(got, twin.run(), strict=True):
                triton_twins.assert_equal_fields(left, right, f"graph B={batch} budget={budget} seed={seed}")
            assert torch.equal(step.mask_buffer.cpu(), twin.mask_buffer), (batch, budget, seed)
            replays += 1
    return {"replays": replays}


def check_no_sync() -> dict[str, Any]:
    """Nothing in a step waits for the device, whatever the sampling parameters."""
    batch, budget, vocab = 2, 32, 5000
    step = Step.make(batch, budget, 1)
    width = verify_width(budget, DEPTHS, TOPK)
    logits = torch.randn(batch * width, vocab, device="cuda")
    draft_logits = torch.randn(batch, DEPTHS, vocab, device="cuda").bfloat16()
    ones = torch.ones(batch, device="cuda")
    top_ks = torch.tensor([1, 20], dtype=torch.int32, device="cuda")
    seeds = torch.tensor([1, 2], device="cuda")

    def everything() -> None:
        draft_candidates(draft_logits, TOPK)
        _, topology, _ = step.run()
        for top_k, others in ((False, False), (True, False), (False, True), (True, True)):
            for bound in (None, 20):
                for seeded in (False, True):
                    sample_target(
                        logits,
                        ones,
                        top_ks,
                        ones * 0.9,
                        ones * 0.1,
                        width,
                        greedy=False,
                        need_top_k=top_k,
                        need_top_p=others,
                        need_min_p=others,
                        max_top_k=bound,
                        seeds=seeds if seeded else None,
                        positions=topology.positions if seeded else None,
                    )

    everything()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            everything()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"runs": 3}


def check_sampler() -> dict[str, Any]:
    """The kernels on CUDA against torch on the CPU under the same noise, and against exact distributions."""
    return {"same_noise": _same_noise(), "own_noise": _own_noise()}


def _same_noise() -> dict[str, Any]:
    """The same noise gives the same tokens, but for rounding at near ties."""
    generator = torch.Generator().manual_seed(9)
    batch, width, vocab = 4, 64, 8000
    logits = torch.randn(batch * width, vocab, generator=generator) * 3
    noise = torch.empty(batch * width, vocab).exponential_(generator=generator)
    moved_logits, moved_noise = logits.cuda(), noise.cuda()
    parameters = (
        torch.tensor([[1.0], [0.7], [1.3], [1.0]]),
        torch.tensor([1 << 30, 50, 1, 200], dtype=torch.int32),
        torch.tensor([0.9, 0.95, 1.0, 0.8]),
        torch.tensor([0.0, 0.02, 0.0, 0.1]),
    )
    found: dict[str, Any] = {}
    for top_k, top_p, min_p, bound in (
        (False, False, False, None),
        (True, False, False, None),
        (True, True, True, 50),
        (False, True, False, None),
        (False, False, True, None),
        (True, True, True, None),
    ):
        flags = {"need_top_k": top_k, "need_top_p": top_p, "need_min_p": min_p, "max_top_k": bound}
        temperatures, top_ks, *others = parameters
        limits = (temperatures, top_ks if bound is None else top_ks.clamp(max=bound), *others)
        expected = sample_target(logits, *limits, width, noise=noise, **flags)
        moved = [tensor.cuda() for tensor in limits]
        got = sample_target(moved_logits, *moved, width, noise=moved_noise, **flags).cpu()
        differing = int((got != expected).sum())
        assert differing <= 2, f"{flags}: {differing} of {got.numel()} sampled tokens differ"
        if top_k:
            assert torch.equal(got.view(batch, width)[2], logits.argmax(dim=-1).view(batch, width)[2]), flags
        found[" ".join(name for name, value in flags.items() if value) or "temperature"] = differing
    return {"tokens_each": got.numel(), "differing": found}


def _own_noise() -> dict[str, Any]:
    """Draws with the noise of the kernels, of 12 tokens spread over a vocabulary of several parts."""
    width, vocab = 40_000, 9000
    places = torch.arange(VOCAB, device="cuda") * 700 + 123
    back = torch.full((vocab,), VOCAB, device="cuda")
    back[places] = torch.arange(VOCAB, device="cuda")
    logits = torch.full((width, vocab), float("-inf"), device="cuda")
    logits[:, places] = torch.tensor(LOGITS, device="cuda")
    source = torch.Generator("cuda").manual_seed(14)
    done = 0
    for request in COMBINATIONS:
        limits = [tensor.cuda() for tensor in parameters_of([request])]
        need = {
            "need_top_k": request.top_k < VOCAB,
            "need_top_p": request.top_p < 1,
            "need_min_p": request.min_p > 0,
        }
        for bound in (None, request.top_k) if need["need_top_k"] else (None,):
            drawn = sample_target(logits, *limits, width, max_top_k=bound, generator=source, **need)
            assert_follows(back[drawn].cpu(), request, (request, bound), least=1e-4)
            done += 1
    # A batch in which every request has filters of its own.
    rows = 4000
    limits = [tensor.cuda() for tensor in parameters_of(COMBINATIONS)]
    flags = {"need_top_k": True, "need_top_p": True, "need_min_p": True}
    mixed = logits[: len(COMBINATIONS) * rows]
    drawn = sample_target(mixed, *limits, rows, generator=source, **flags).view(-1, rows)
    for tokens, request in zip(drawn, COMBINATIONS, strict=True):
        counts = torch.bincount(back[tokens], minlength=VOCAB).tolist()
        assert p_value(counts, distribution(LOGITS, request)) > 1e-4, (request, counts)
    return {"distributions": done + len(COMBINATIONS), "draws_each": width}


def microseconds(function: Callable[[], Any], *, repeat: int = 20, rounds: int = 15) -> float:
    return round(device_time.microseconds(function, repeat=repeat, rounds=rounds), 2)


def host_microseconds(function: Callable[[], Any]) -> float:
    """Host time to launch one call eagerly."""
    for _ in range(5):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        function()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return round(elapsed * 1e6 / 50, 1)


def measure(quick: bool) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for batch in (1, 8):
        for budget in (16, 64) if quick else (16, 32, 64, 128, 256):
            step = Step.make(batch, budget, 0)
            tree, topology, _ = step.run()

            def topology_of(tree: DraftTree = tree, step: Step = step) -> TreeTopology:
                return lay_out(tree, step.prefix_lens)[1]

            def accept(
                tree: DraftTree = tree, topology: TreeTopology = topology, step: Step = step
            ) -> Acceptance:
                return step.accept(tree, topology)

            table[f"batch {batch} budget {budget}"] = {
                "build_us": microseconds(step.build),
                "topology_us": microseconds(topology_of),
                "mask_us": microseconds(lambda step=step, topology=topology: step.write_mask(topology)),
                "accept_us": microseconds(accept),
                "all_us": microseconds(step.run),
                "all_eager_host_us": host_microseconds(step.run),
            }
    return table


def measure_vocabulary(quick: bool) -> dict[str, Any]:
    """Candidates and sampling over a vocabulary of 151,936 (Qwen3), budget 64."""
    table: dict[str, Any] = {}
    vocab, budget = 151_936, 64
    width = verify_width(budget, DEPTHS, TOPK)
    for batch in (1,) if quick else (1, 8):
        draft_logits = torch.randn(batch, DEPTHS, vocab, device="cuda").bfloat16()
        logits = torch.randn(batch * width, vocab, device="cuda").bfloat16()
        ones = torch.ones(batch, device="cuda")
        top_ks = torch.full((batch,), 20, dtype=torch.int32, device="cuda")

        def sample(
            greedy: bool,
            top_k: bool,
            top_p: bool,
            bound: int | None = None,
            logits: torch.Tensor = logits,
            ones: torch.Tensor = ones,
            top_ks: torch.Tensor = top_ks,
        ) -> torch.Tensor:
            return sample_target(
                logits,
                ones,
                top_ks,
                ones * 0.95,
                ones * 0.0,
                width,
                greedy=greedy,
                need_top_k=top_k,
                need_top_p=top_p,
                need_min_p=False,
                max_top_k=bound,
            )

        def sample_in_torch(
            top_p: bool,
            logits: torch.Tensor = logits,
            ones: torch.Tensor = ones,
            top_ks: torch.Tensor = top_ks,
        ) -> torch.Tensor:
            limits = Limits(ones, top_ks, ones * 0.95, ones * 0.0, False, top_p, False)
            return sample_torch(logits, limits, width)

        table[f"batch {batch}"] = {
            "candidates_us": microseconds(lambda x=draft_logits: draft_candidates(x, TOPK), repeat=4),
            "greedy_us": microseconds(lambda s=sample: s(True, False, False), repeat=2),
            "temperature_us": microseconds(lambda s=sample: s(False, False, False), repeat=2),
            "temperature_in_torch_us": microseconds(lambda s=sample_in_torch: s(False), repeat=2),
            "top_k_bound_us": microseconds(lambda s=sample: s(False, True, True, 20), repeat=2),
            "top_p_us": microseconds(lambda s=sample: s(False, False, True), repeat=2),
            "top_p_peaked_us": microseconds(
                lambda s=sample, peaked=logits * 4: s(False, False, True, logits=peaked), repeat=2
            ),
            "top_p_in_torch_us": microseconds(lambda s=sample_in_torch: s(True), repeat=2),
            "temperature_host_us": host_microseconds(lambda s=sample: s(False, False, False)),
            "top_p_host_us": host_microseconds(lambda s=sample: s(False, False, True)),
        }
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases, fewer times")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 1
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "failed": [],
    }
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "twins": lambda: check_twins(quick),
        "graph": check_graph,
        "no_sync": check_no_sync,
        "sampler": check_sampler,
        "times": lambda: measure(quick),
        "vocabulary_times": lambda: measure_vocabulary(quick),
    }
    for name, part in parts.items():
        try:
            report[name] = part()
        except Exception:
            traceback.print_exc()
            report["failed"].append(name)
        print(name, json.dumps(report.get(name, "failed")), file=sys.stderr, flush=True)
    print(json.dumps(report))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
