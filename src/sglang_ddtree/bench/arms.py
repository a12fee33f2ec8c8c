"""An arm: one way of decoding, served by a server of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import ALGORITHM, OPTIONS

BUDGET = next(option for option in OPTIONS if option.field == "budget")
DEFAULT_ARMS = ("AR", "DFLASH", "DDTREE 16", "DDTREE 32", "DDTREE 64", "DDTREE 128")


@dataclass(frozen=True)
class Arm:
    """`algorithm` is AR (plain decoding), DFLASH or DDTREE; `budget` is set for DDTREE alone."""

    algorithm: str
    budget: int | None = None

    @property
    def name(self) -> str:
        return self.algorithm if self.budget is None else f"{self.algorithm} {self.budget}"

    @property
    def is_speculative(self) -> bool:
        return self.algorithm != "AR"

    def server_arguments(self, model: str, draft: str | None, common: Sequence[str]) -> list[str]:
        """The words behind ``python -m sglang.launch_server``, without host and port.

        `common` is the same for every arm. `draft` may be None for AR alone.
        """
        words = ["--model-path", model, *common]
        if self.is_speculative:
            assert draft is not None
            words += ["--speculative-algorithm", self.algorithm, "--speculative-draft-model-path", draft]
        if self.budget is not None:
            words += [BUDGET.flag, str(self.budget)]
        return words


def parse_arm(text: str) -> Arm:
    """The arm that ``--arm TEXT`` names.

    Raises:
        ValueError: it is not AR, DFLASH or "DDTREE N", or N is beyond the budget's limits.
    """
    algorithm, _, budget = " ".join(text.upper().split()).partition(" ")
    if algorithm in ("AR", "DFLASH") and not budget:
        return Arm(algorithm)
    if algorithm == ALGORITHM and budget.isascii() and budget.isdigit():
        if not BUDGET.low <= int(budget) <= BUDGET.high:
            raise ValueError(f'--arm "{text}": the budget must be {BUDGET.allowed}, got {budget}.')
        return Arm(algorithm, int(budget))
    raise ValueError(
        f'--arm must be AR, DFLASH or "{ALGORITHM} N" with N {BUDGET.allowed.removeprefix("a whole number ")}, '
        f'got "{text}".'
    )
