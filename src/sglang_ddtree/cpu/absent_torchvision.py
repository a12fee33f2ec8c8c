"""A stand-in for torchvision, which SGLang imports for its image models and which no CPU text server needs.

SGLang imports it unconditionally (srt/multimodal/internvl_utils.py:5, srt/configs/deepseek_ocr.py:7). Names
can be taken from the stand-in, subclassed and used as defaults; calling one raises.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "torchvision"


class _Absent:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> _Absent:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Absent(f"{self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{self._name} was called, but torchvision is not installed on this CPU set-up")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> _Absent:
        return self  # `T.Compose | None` in an annotation

    __ror__ = __or__


class _AbsentModule(ModuleType):
    __version__ = "0.0.0"
    __path__: list[str] = []  # noqa: RUF012  (what makes a module a package)

    def __getattr__(self, attribute: str) -> _Absent:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Absent(f"{self.__name__}.{attribute}")


class _AbsentFinder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] == PACKAGE:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def is_installed() -> bool:
    """Whether the stand-in is in place in this process."""
    return any(isinstance(finder, _AbsentFinder) for finder in sys.meta_path)


def is_needed() -> bool:
    """Whether no real torchvision can be found."""
    return is_installed() or importlib.util.find_spec(PACKAGE) is None


def install() -> None:
    """Put the stand-in behind every other finder, so that a real torchvision wins. Idempotent."""
    if is_needed() and not is_installed():
        sys.meta_path.append(_AbsentFinder())
