"""Gated DeltaNet layers under a draft tree, without a state per node: nothing here knows the host.

A verify forward reads, per layer: taps -> conv -> delta, and records every node's inputs. After acceptance
`commit_path` replays the accepted path of all layers from the record.
"""

from .commit import commit_path
from .conv import tree_conv
from .delta import tree_delta_rule
from .record import LayerRecord, TreeRecord, record_bytes_per_node
from .shape import GDNShape
from .taps import ancestor_taps

__all__ = [
    "GDNShape",
    "LayerRecord",
    "TreeRecord",
    "ancestor_taps",
    "commit_path",
    "record_bytes_per_node",
    "tree_conv",
    "tree_delta_rule",
]
