"""DDTREE's options as one validated value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

ALGORITHM = "DDTREE"
AUTO = "auto"
FIXED_BUDGET = 32
"""The default budget where the width does not follow the load: on a CPU, on hybrid targets, without CUDA graphs."""


@dataclass(frozen=True)
class Option:
    """One option of DDTREE: how it is spelled, what it may be, what it means."""

    field: str
    default: int | bool | None
    help: str
    low: int = 0
    high: int = 0
    word: str | None = None
    default_text: str | None = None

    @property
    def attribute(self) -> str:
        """The name as an `Engine(...)` keyword, a YAML key and a field of `/server_info`."""
        return f"speculative_ddtree_{self.field}"

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.attribute.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    @property
    def allowed(self) -> str:
        if self.is_switch:
            return "true or false"
        numbers = f"a whole number from {self.low} to {self.high}"
        return numbers if self.word is None else f"{self.word} or {numbers}"

    def parse(self, text: str) -> int | str:
        """The value of a command line's word. Raises `ValueError` where it is not allowed."""
        value = text if text == self.word else int(text)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise `ValueError` with the flag, the value got and the values allowed."""
        if self.is_switch:
            fits = isinstance(value, bool)
        elif isinstance(value, str):
            fits = value == self.word
        elif value is None:
            fits = self.default is None
        else:
            fits = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        if not fits:
            raise ValueError(f"{self.flag} must be {self.allowed}, got {value!r}.")


OPTIONS = (
    Option(
        "budget",
        default=None,
        default_text=f"{AUTO} on CUDA, {FIXED_BUDGET} on a CPU, on hybrid targets and without CUDA graphs",
        low=1,
        high=1024,
        word=AUTO,
        help="Nodes of the draft tree, the root not counted: the target verifies budget + 1 tokens a step. "
        f"{AUTO} verifies 8 to 64 tokens, each step the number with the most expected tokens per millisecond.",
    ),
    Option(
        "topk_cap",
        default=16,
        low=1,
        high=64,
        help="Candidate tokens per depth of the draft tree; at most this many, never more than the budget.",
    ),
    Option(
        "allow_hybrid_unsafe",
        default=False,
        help="Serve a hybrid target whose recurrent layers are not proven to follow the accepted node (Mamba, "
        "KDA, Lightning attention, short convolutions). Its text may differ from plain decoding. Changes "
        "nothing for other targets, Qwen3-Next and Qwen3.5 included.",
    ),
)


@dataclass(frozen=True)
class DDTreeConfig:
    """The resolved options of one server.

    `budget` counts tree nodes without the root, None is the server's default; `topk_cap` bounds the candidates per
    depth. Raises `ValueError` naming the flag, the value and the range when a value is out of range.
    """

    budget: int | Literal["auto"] | None = None
    topk_cap: int = 16
    allow_hybrid_unsafe: bool = False

    def __post_init__(self) -> None:
        for option in OPTIONS:
            option.check(getattr(self, option.field))

    def as_server_info(self) -> dict[str, Any]:
        """The options under the names that `/server_info` shows."""
        values = asdict(self)
        return {option.attribute: values[option.field] for option in OPTIONS}


assert [f.name for f in fields(DDTreeConfig)] == [o.field for o in OPTIONS]
assert DDTreeConfig() == DDTreeConfig(**{o.field: o.default for o in OPTIONS})  # type: ignore[arg-type]
