"""Draft trees as pure functions on tensors: nothing here knows the host or the worker.

One decode step reads: window -> candidates -> build -> topology (and mask) -> sample -> accept.
"""

from .accept import Acceptance, PathRows, WidthTally, settle_path
from .build import build_tree
from .candidates import DraftCandidates, draft_candidates
from .capacity import resolve_topk, tree_capacity, verify_width
from .mask import flat_mask_numel, write_tree_mask
from .sample import sample_target
from .topology import TreeTopology, ancestor_mask, lay_out, links, positions
from .tree import DraftTree
from .window import StepWindow, open_window

__all__ = [
    "Acceptance",
    "DraftCandidates",
    "DraftTree",
    "PathRows",
    "StepWindow",
    "TreeTopology",
    "WidthTally",
    "ancestor_mask",
    "build_tree",
    "draft_candidates",
    "flat_mask_numel",
    "lay_out",
    "links",
    "open_window",
    "positions",
    "resolve_topk",
    "sample_target",
    "settle_path",
    "tree_capacity",
    "verify_width",
    "write_tree_mask",
]
