"""DDTREE as SGLang's registry sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from ..host import startup

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

NAME = "DDTREE"


class DDTreeAlgorithm(CustomSpecAlgo):
    """Drafts like DFLASH, so it is one of its family, and verifies a tree."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    def supports_mixed_chunk(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        # Requests with a grammar are refused at admission.
        return True

    def has_draft_kv(self) -> bool:
        # The tree lives in the verify window: no KV chain per branch to round up to pages.
        return False

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def get_platform_worker_cls(self) -> type | None:
        return None

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        device, req_to_token_pool, *flags = args
        return FutureMap(device, self, req_to_token_pool, *flags, **kwargs)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """The seam between the two widths: the draft block, or whatever width is verified."""
        return int(get_spec().speculative_dflash_block_size) if is_draft_worker else num_draft_tokens

    def resolve_max_speculative_num_draft_tokens(self, server_args: ServerArgs) -> int | None:
        """KV reserve and row headroom must hold the wider of the two."""
        cfg = resolving_view(server_args)
        widths = (cfg.speculative_num_draft_tokens, cfg.speculative_dflash_block_size)
        return max((int(width) for width in widths if width is not None), default=None)

    def handle_server_args(self, server_args: ServerArgs) -> None:
        startup.resolve(server_args)


def register() -> None:
    """Make `--speculative-algorithm DDTREE` known in this process."""

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeAlgorithm)
    def factory(server_args: ServerArgs) -> type:
        from .worker import DDTreeWorker

        return DDTreeWorker
