import math
import struct

import pytest
import torch

from sglang_ddtree.tree.seeded_noise import seeded_gumbel


def _murmur3(data: bytes) -> int:
    """MurmurHash3 x86 32-bit, seed 0, of whole 4-byte blocks and a tail, on Python integers."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) % 2**32

    def scramble(word: int) -> int:
        return rotate(word * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32

    state = 0
    for start in range(0, len(data) - len(data) % 4, 4):
        state = rotate(state ^ scramble(int.from_bytes(data[start : start + 4], "little")), 13)
        state = (state * 5 + 0xE6546B64) % 2**32
    if tail := data[len(data) - len(data) % 4 :]:
        state ^= scramble(int.from_bytes(tail, "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0), (b"test", 0xBA6BD213), (b"Hello, world!", 0xC0363E43)]
)
def test_the_oracle_hash_gives_the_published_values(data: bytes, expected: int) -> None:
    assert _murmur3(data) == expected


@pytest.mark.parametrize("seed", [0, 1, 42, 2**40 + 17, 2**62, -5])
def test_noise_is_the_hash_of_seed_position_and_token(seed: int) -> None:
    positions, tokens = [0, 3, 70000], [0, 1, 151935]
    got = seeded_gumbel(torch.tensor([seed] * 3), torch.tensor(positions), torch.tensor(tokens))
    assert got.dtype == torch.float64
    for row, position in enumerate(positions):
        for column, token in enumerate(tokens):
            uniform = _murmur3(struct.pack("<qII", seed, position, token)) / (2**32 - 1)
            assert got[row, column].item() == pytest.approx(-math.log(-math.log(uniform)), rel=1e-9)


def test_tokens_may_differ_by_row() -> None:
    seeds, positions = torch.tensor([3, 4]), torch.tensor([10, 11])
    tokens = torch.tensor([[5, 6, 7], [7, 5, 6]])
    by_row = seeded_gumbel(seeds, positions, tokens)
    shared = seeded_gumbel(seeds, positions, torch.arange(8))
    assert torch.equal(by_row, shared.gather(1, tokens))


def test_noise_has_the_moments_of_a_gumbel_variable() -> None:
    rows = torch.arange(200)
    noise = seeded_gumbel(torch.full((200,), 7), rows, torch.arange(1000))
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)
    neighbours = torch.stack((noise[:, :-1].flatten(), noise[:, 1:].flatten()))
    assert abs(torch.corrcoef(neighbours)[0, 1].item()) < 0.02
