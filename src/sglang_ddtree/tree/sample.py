"""Sample the target at every node, each in its own context."""

from __future__ import annotations

import torch

from .sample_limits import Limits
from .seeded_noise import seeded_gumbel

_MAX_CELLS = 1 << 26
# Probabilities handled at once: 256 MiB in float32.


def sample_target(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    width: int,
    *,
    greedy: bool = False,
    need_top_k: bool,
    need_top_p: bool,
    need_min_p: bool,
    max_top_k: int | None = None,
    generator: torch.Generator | None = None,
    noise: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per node: what the target would say there in plain decoding.

    Temperature first. Then three filters, each reading the full distribution after temperature, as in
    SGLang's pytorch sampling backend: top-k keeps the k most probable tokens, top-p those before which at
    most top_p of the mass lies, min-p those with at least min_p times the greatest probability. A token must
    pass all three; the rest is renormalised. A request with top_k 1 is greedy (SGLang's form of temperature
    0) and gets exactly the argmax, the smaller token id among equal logits. Equal probabilities go by token
    id too, smallest first, except that on a CPU `max_top_k` leaves open which of them it cuts off.

    The draw is an exponential race, argmax(p / E) with E ~ Exp(1), which needs no host round trip. On CUDA
    it is two Triton kernels and the draw of their seed; with `seeds` it stays in torch everywhere, for the
    float64 noise that equals SGLang's.

    Args:
        logits: [B * W, V], any floating dtype; read only. Row b * W + i is slot i of request b.
        temperatures: float, B elements, positive.
        top_ks: integer [B]; any value above V keeps all.
        top_ps: float [B].
        min_ps: float [B].
        width: W.
        greedy: every request is greedy; the sampling tensors are not read.
        need_top_k: some request has a top_k below V. False says that no request is greedy either.
        need_top_p: some request has a top_p below 1.
        need_min_p: some request has a min_p above 0.
        max_top_k: a bound on `top_ks` known on the host; spares unseeded batches the full sort.
        generator: source of unseeded noise, the device's default without it.
        noise: float32 [B * W, V]: Exp(1) draws by token id, instead of the generator.
        seeds: int64 [B]. The draw of slot i is then a pure function of its distribution, the request's seed
            and `positions[b, i]`, whatever else is in the batch; noise goes by token id, not by rank.
        positions: int64 [B, W], required with `seeds`: prefix length + depth.

    Returns:
        int64 [B * W].

    Raises:
        ValueError: shapes that do not fit, or seeds without positions.
    """
    if logits.dim() != 2 or logits.shape[0] % width:
        raise ValueError(f"logits must be [batch * {width}, vocabulary], got {list(logits.shape)}")
    if greedy:
        return logits.argmax(dim=-1)
    batch = logits.shape[0] // width
    if temperatures.numel() != batch:
        raise ValueError(f"temperatures has {temperatures.numel()} elements for {batch} requests")
    if seeds is not None and positions is None:
        raise ValueError("seeds need positions")

    def per_request(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(batch).contiguous()

    limits = Limits(
        per_request(temperatures),
        per_request(top_ks),
        per_request(top_ps),
        per_request(min_ps),
        need_top_k,
        need_top_p,
        need_min_p,
        max_top_k,
    )
    if seeds is None:
        if logits.is_cuda:
            from .sample_triton import sample_triton

            return sample_triton(logits, limits, width, generator=generator, noise=noise)
        return sample_torch(logits, limits, width, generator=generator, noise=noise)
    return sample_torch(logits, limits, width, seeds=seeds, positions=positions)


def sample_torch(
    logits: torch.Tensor,
    limits: Limits,
    width: int,
    *,
    generator: torch.Generator | None = None,
    noise: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """The plain twin of the Triton kernels; arguments as in `sample_target`."""
    batch = logits.shape[0] // width

    def draw(first: int, last: int) -> torch.Tensor:
        rows = slice(first * width, last * width)

        def per_row(values: torch.Tensor) -> torch.Tensor:
            return values.reshape(batch)[first:last, None].expand(-1, width).reshape(-1, 1)

        probs = torch.softmax(logits[rows].float() / per_row(limits.temperatures), dim=-1)
        probs, columns = _filter(
            probs,
            per_row(limits.top_ks) if limits.need_top_k else None,
            per_row(limits.top_ps) if limits.need_top_p else None,
            per_row(limits.min_ps) if limits.need_min_p else None,
            # Which of several equal tokens passes may depend on the bound, hence on the batch.
            limits.max_top_k if seeds is None else None,
        )
        if seeds is not None and positions is not None:
            tokens = torch.arange(logits.shape[1], device=logits.device) if columns is None else columns
            gumbel = seeded_gumbel(
                per_row(seeds).squeeze(1).long(), positions[first:last].reshape(-1).long(), tokens
            )
            winner = (gumbel + probs.log()).argmax(dim=-1, keepdim=True)
        else:
            winner = _race(probs, columns, None if noise is None else noise[rows], generator)
        sampled = winner if columns is None else columns.gather(1, winner)
        if limits.need_top_k:
            # The sort may order equal logits unlike argmax, and greedy text must not depend on the batch.
            sampled = torch.where(
                per_row(limits.top_ks) <= 1, logits[rows].argmax(dim=-1, keepdim=True), sampled
            )
        return sampled.squeeze(1)

    # Requests in portions: the temporaries of a large batch would not fit beside the KV cache.
    portion = max(1, _MAX_CELLS // (width * logits.shape[1]))
    pieces = [draw(first, min(first + portion, batch)) for first in range(0, batch, portion)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _filter(
    probs: torch.Tensor,
    top_ks: torch.Tensor | None,
    top_ps: torch.Tensor | None,
    min_ps: torch.Tensor | None,
    max_top_k: int | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Zero what a filter rejects: (probabilities [N, C], token of every column [N, C]).

    Without tokens the columns are the vocabulary in order. The limits are [N, 1], None where no request has
    one. Every filter reads the unfiltered probabilities.
    """
    columns: torch.Tensor | None = None
    keep: list[torch.Tensor] = []
    if top_ks is not None or top_ps is not None:
        if top_ks is not None and max_top_k is not None and max_top_k < probs.shape[1]:
            probs, columns = torch.topk(probs, max_top_k, dim=1, sorted=True)
        else:
            probs, columns = torch.sort(probs, dim=1, descending=True, stable=True)
    if top_ks is not None:
        keep.append(torch.arange(probs.shape[1], device=probs.device) < top_ks)
    if top_ps is not None:
        # Rounding takes the sum past 1: a request without top-p must not lose its tail to that.
        keep.append((torch.cumsum(probs, dim=1) - probs <= top_ps) | (top_ps >= 1))
    if min_ps is not None:
        keep.append(probs >= probs.amax(dim=1, keepdim=True) * min_ps)
    for passed in keep:
        probs = probs * passed
    return probs, columns


def _race(
    probs: torch.Tensor,
    columns: torch.Tensor | None,
    noise: torch.Tensor | None,
    generator: torch.Generator | None,
) -> torch.Tensor:
    if noise is None:
        noise = torch.empty_like(probs).exponential_(generator=generator)
    elif columns is not None:
        noise = noise.gather(1, columns)
    # A draw of exactly 0 would let a filtered token win as 0 / 0.
    return (probs / noise.clamp(min=torch.finfo(probs.dtype).tiny)).argmax(dim=-1, keepdim=True)
