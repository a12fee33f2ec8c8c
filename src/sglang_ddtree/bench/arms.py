"""An arm: one way of decoding, served by a server of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..config import ALGORITHM
from ..usage import BUDGET

AUTO: Final = "auto"
# The budgets of the DDTree paper, and the one that the server chooses.
DEFAULT_BUDGETS = (16, 32, 64, 128, 256, 512, 1024, AUTO)
DEFAULT_ARMS = ("AR", "DFLASH", *(f"{ALGORITHM} {budget}" for budget in DEFAULT_BUDGETS))
# For the parts of a step. It has DDTREE set its marks at every 64th step, and SGLang count on the host in each.
METRICS_FLAG = "--enable-metrics"
ALLOWED = f'AR, DFLASH or "{ALGORITHM} N" with a budget N from {BUDGET.low} to {BUDGET.high} or {AUTO}'


@dataclass(frozen=True)
class Arm:
    """`algorithm` is AR (plain decoding), DFLASH or DDTREE; `budget` (nodes, or "auto") is set for DDTREE alone."""

    algorithm: str
    budget: int | Literal["auto"] | None = None

    @property
    def name(self) -> str:
        return self.algorithm if self.budget is None else f"{self.algorithm} {self.budget}"

    @property
    def is_speculative(self) -> bool:
        return self.algorithm != "AR"

    def server_arguments(self, model: str, draft: str | None, common: Sequence[str]) -> list[str]:
        """The words behind ``python -m sglang.launch_server``, without host and port.

        `common` is the same for every arm, and each has metrics. `draft` may be None for AR alone.
        """
        words = ["--model-path", model, *common]
        if METRICS_FLAG not in common:
            words.append(METRICS_FLAG)
        if self.is_speculative:
            assert draft is not None
            words += ["--speculative-algorithm", self.algorithm, "--speculative-draft-model-path", draft]
        if self.budget is not None:
            words += [BUDGET.flag, str(self.budget)]
        return words


def parse_arm(text: str) -> Arm:
    """The arm that ``--arm TEXT`` names.

    Raises:
        ValueError: it is not AR, DFLASH, "DDTREE N" or "DDTREE auto", or N is beyond the budget's limits.
    """
    algorithm, _, budget = " ".join(text.upper().split()).partition(" ")
    if algorithm in ("AR", "DFLASH") and not budget:
        return Arm(algorithm)
    if algorithm == ALGORITHM and budget == AUTO.upper():
        return Arm(algorithm, AUTO)
    if algorithm == ALGORITHM and budget.isascii() and budget.isdigit():
        if not BUDGET.low <= int(budget) <= BUDGET.high:
            raise ValueError(
                f'--arm "{text}": the budget must be from {BUDGET.low} to {BUDGET.high} or {AUTO}, got {budget}.'
            )
        return Arm(algorithm, int(budget))
    raise ValueError(f'--arm must be {ALLOWED}, got "{text}".')
