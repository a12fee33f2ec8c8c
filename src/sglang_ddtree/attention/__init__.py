"""Attention of a verify or a draft block over its context and itself. Knows nothing of SGLang."""

from .pointers import write_pointers
from .verify import can_attend, tree_attention
from .workspace import Workspace

__all__ = ["Workspace", "can_attend", "tree_attention", "write_pointers"]
