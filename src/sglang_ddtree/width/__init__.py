"""Which verify width the next decode step runs: plain numbers, nothing here knows torch, the host or a clock.

One decode step: `policy` chooses from what `gain` expects a width to emit and what `cost` expects a step of it to
take, with a `pace` per captured batch size; afterwards the worker tells both what the step gave. A width is the
tokens of one request in the verify forward, the root included.
"""

from .cost import CostTable
from .gain import GainEstimator
from .policy import WidthPolicy

__all__ = ["CostTable", "GainEstimator", "WidthPolicy"]
