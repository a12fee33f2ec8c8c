"""Noise that is a pure function of (seed, position, token), for seeded requests."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF


def seeded_gumbel(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64 [N, C], equal for equal (seed, position, token).

    The 32-bit MurmurHash3 of the 16 bytes (seed as 8, position as 4, token as 4) gives the uniform
    variable, as in SGLang's deterministic sampler: there the position is that of the token fed to the model,
    so a plain decode step and a tree node at the same position draw the same noise.

    Args:
        seeds: int64 [N].
        positions: int64 [N].
        tokens: int64 [N, C] or [C].
    """
    state = torch.zeros_like(seeds)
    for word in (seeds & _WORD, (seeds >> 32) & _WORD, positions & _WORD):
        state = _mix(state, word)
    state = _mix(state.unsqueeze(1), tokens if tokens.dim() == 2 else tokens.unsqueeze(0))
    uniform = _finish(state ^ 16).to(torch.float64) / _WORD
    # 0 and 1 are possible draws: keep both ends finite, 1 as likely to win as its neighbour.
    exponential = -uniform.log_().clamp_(min=torch.finfo(torch.float64).min, max=-(2.0**-32))
    return -exponential.log_()


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _WORD


def _mix(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    # 32-bit arithmetic in int64: products wrap, and their low 32 bits are the right ones.
    word = _rotate((word * 0xCC9E2D51) & _WORD, 15)
    state = _rotate(state ^ ((word * 0x1B873593) & _WORD), 13)
    return (state * 5 + 0xE6546B64) & _WORD


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _WORD
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _WORD
    return state ^ (state >> 16)
