from __future__ import annotations

from typing import Any

from sglang_ddtree.demo.figures import Figures, as_json, figures, table


def answer(ids: list[int], verify_steps: int | None = None) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {} if verify_steps is None else {"spec_verify_ct": verify_steps}}


PLAIN = [answer([1, 2, 3, 4]), answer([5, 6])]


def test_plain_decoding_takes_one_forward_per_token() -> None:
    assert figures(PLAIN, PLAIN) == Figures(tokens=6, target_forwards=6, accept_length=1.0, identical=True)


def test_the_forward_of_the_prompt_counts() -> None:
    drafted = [answer([1, 2, 3, 4], 1), answer([5, 6], 1)]
    assert figures(drafted, PLAIN) == Figures(tokens=6, target_forwards=4, accept_length=1.5, identical=True)


def test_one_other_token_id_is_not_identical() -> None:
    assert not figures([answer([1, 2, 3, 9], 1), answer([5, 6], 1)], PLAIN).identical
    assert not figures([answer([1, 2, 3], 1), answer([5, 6], 1)], PLAIN).identical


def test_json_and_table_have_one_entry_per_way() -> None:
    measured = {"plain": Figures(6, 6, 1.0, True), "ddtree": Figures(6, 4, 1.5, False)}
    assert as_json(measured)["ddtree"] == {
        "tokens": 6,
        "target_forwards": 4,
        "accept_length": 1.5,
        "identical": False,
    }
    head, _, plain, ddtree = table(measured).splitlines()
    assert head.split()[0] == "tokens"
    assert plain.split() == ["plain", "6", "6", "1.00", "yes"]
    assert ddtree.split() == ["DDTREE", "6", "4", "1.50", "no"]
