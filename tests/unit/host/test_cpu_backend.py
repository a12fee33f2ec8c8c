"""The CPU platform has one attention backend; another one that the user asked for is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("sglang_with_plugins")


def resolved(given: dict[str, Any]) -> SimpleNamespace:
    from sglang_ddtree.cpu.device import DDTreeCpuPlatform

    # SGLang's resolution has written its own choice for a CPU by then.
    server_args = SimpleNamespace(attention_backend="torch_native", sampling_backend=None, _raw_input=given)
    DDTreeCpuPlatform().apply_server_args_defaults(server_args)
    return server_args


@pytest.mark.parametrize("given", [None, "ddtree_cpu"])
def test_own_choice_of_sglang_is_replaced(given: str | None) -> None:
    server_args = resolved({"attention_backend": given})
    assert (server_args.attention_backend, server_args.sampling_backend) == ("ddtree_cpu", "pytorch")


@pytest.mark.parametrize(
    "field", ["attention_backend", "prefill_attention_backend", "decode_attention_backend"]
)
def test_another_backend_of_the_user_is_refused(field: str) -> None:
    flag = "--" + field.replace("_", "-")
    with pytest.raises(ValueError, match=f"{flag} flashinfer: the platform ddtree_cpu has one"):
        resolved({field: "flashinfer"})


def test_snapshot_of_the_input_is_seen_through_sglangs_stand_in() -> None:
    from sglang.srt.arg_groups.overrides import record_foreign_defaults
    from sglang.srt.server_args import ServerArgs

    from sglang_ddtree.cpu.device import DDTreeCpuPlatform

    record = ServerArgs(model_path="some/model")
    record._raw_input = {"attention_backend": "flashinfer"}
    with pytest.raises(ValueError, match="--attention-backend flashinfer"):
        record_foreign_defaults(record, "a test", DDTreeCpuPlatform().apply_server_args_defaults)
