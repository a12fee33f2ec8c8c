"""The measurement as plain data: what `bench.json` holds and what table and page are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from . import checks, comparable, figures, parts
from .flow import ArmResult, Cell, Plan
from .timeline import Timeline

FORMAT = 1
WANTED_RUNS = 5

Report = dict[str, Any]


def report(
    plan: Plan, results: Sequence[ArmResult], prompts: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> Report:
    """Everything, ready for JSON.

    `prompts` describes each prompt, `about` says with what and where it was measured. Arms appear in the order of
    `results`, with a row under `cells` per concurrency and temperature.
    """
    arms = [_arm(one, results, plan.in_turns) for one in results]
    return {
        "format": FORMAT,
        **about,
        "settings": {
            "arms": [arm.name for arm in plan.arms],
            "concurrency": list(plan.concurrencies),
            "temperature": list(plan.temperatures),
            "runs": plan.runs,
            "max_new_tokens": plan.max_new_tokens,
            "in_turns": plan.in_turns,
        },
        "metrics": {**figures.METRICS, "acceptance_by_depth": figures.BY_DEPTH, "parts_ms": parts.LEGEND},
        "notes": notes(plan, results, arms),
        "prompts": list(prompts),
        "arms": arms,
    }


def notes(plan: Plan, results: Sequence[ArmResult], arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before the numbers, in sentences."""
    found = []
    for text in dict.fromkeys(text for one in results for text in one.warnings):
        names = [one.arm.name for one in results if text in one.warnings]
        everywhere = len(names) == sum(bool(one.cells) for one in results)
        found.append(text if everywhere else f"{', '.join(names)}: {text}")
    if plan.runs < WANTED_RUNS:
        count = "1 run" if plan.runs == 1 else f"{plan.runs} runs"
        found.append(f"Only {count} per figure; medians and spreads of fewer than {WANTED_RUNS} are weak.")
    if plan.in_turns:
        found.append(
            "Measured in turns: all servers stood at once, run followed run arm by arm, and each speed-up is the "
            "median over the runs. Startup times are left out, since the servers started together."
        )
    if any(plan.temperatures):
        found.append(
            "Above temperature 0 every arm draws other texts, of other lengths: compare acceptance with care."
        )
    measured = {arm["name"] for arm in arms if arm["cells"]}
    if 0 in plan.temperatures and measured and "AR" not in measured:
        found.append("Greedy texts were not compared with plain decoding's, since no arm AR was measured.")
    for arm in arms:
        for cell in arm["cells"]:
            found += _cell_notes(arm, cell)
    return found


def _cell_notes(arm: Mapping[str, Any], cell: Mapping[str, Any]) -> list[str]:
    where = f"{arm['name']}, concurrency {cell['concurrency']}, temperature {cell['temperature']:g}"
    found = []
    same = cell["identity"]
    if same is not None and same["identical"] < same["compared"]:
        why = (
            "in float32 they must not"
            if same["must_be_identical"]
            else f"in {arm['flags']['dtype']} near ties between tokens turn with the batch's shape"
        )
        found.append(
            f"{where}: {same['compared'] - same['identical']} of {same['compared']} greedy texts differ from AR's, "
            f"the earliest at token {same['earliest_difference']}; {why}."
        )
    repetition = cell["repetition"]
    if repetition["flagged"]:
        found.append(
            f"{where}: {repetition['flagged']} of {repetition['answers']} texts repeat one token more than "
            f"{checks.REPETITION_LIMIT} times in a row (longest: {repetition['longest']}); such texts are drafted too "
            "easily, and the acceptance says little."
        )
    return found


def succeeded(report: Mapping[str, Any]) -> bool:
    """Whether every arm was measured and, in float32, wrote AR's greedy texts."""
    for arm in report["arms"]:
        if arm["failure"]:
            return False
        for cell in arm["cells"]:
            same = cell["identity"]
            if same is not None and same["must_be_identical"] and same["identical"] < same["compared"]:
                return False
    return True


def _arm(result: ArmResult, results: Sequence[ArmResult], in_turns: bool) -> dict[str, Any]:
    return {
        "name": result.arm.name,
        "algorithm": result.arm.algorithm,
        "budget": result.arm.budget,
        "failure": result.failure,
        "mode": comparable.mode(result.flags) if result.flags else None,
        "flags": dict(result.flags),
        "warnings": result.warnings,
        "launch_command": result.info.get("launch_command"),
        "startup_s": None if result.startup_s is None else round(result.startup_s, 1),
        "cells": [_cell(result, cell, results, in_turns) for cell in result.cells],
    }


def _cell(result: ArmResult, cell: Cell, results: Sequence[ArmResult], in_turns: bool) -> dict[str, Any]:
    measured = figures.over_runs(cell.runs, result.arm.is_speculative)
    runs_of_one_token = [[checks.longest_run(one.output_ids) for one in run] for run in cell.runs]
    every = [length for run in runs_of_one_token for length in run]
    return {
        "concurrency": cell.concurrency,
        "temperature": cell.temperature,
        "figures": {name: _spread(one) for name, one in measured.items()},
        "parts_ms": None if cell.parts is None or cell.parts.ms is None else dict(cell.parts.ms),
        "timed_steps": None if cell.parts is None else cell.parts.steps,
        "acceptance_by_depth": [_spread(one) for one in figures.by_depth_over_runs(cell.runs)],
        "speedup": {name: _speedup(cell, measured, name, results, in_turns) for name in ("AR", "DFLASH")},
        "identity": _identity(result, cell, results),
        "repetition": {
            "answers": len(every),
            "longest": max(every),
            "flagged": sum(length > checks.REPETITION_LIMIT for length in every),
        },
        "requests": [[_request(one) for one in run] for run in cell.runs],
        "output_ids": [list(one.output_ids) for one in cell.runs[0]],
    }


def _spread(one: figures.Spread) -> dict[str, Any]:
    return {"median": one.median, "low": one.low, "high": one.high, "values": list(one.values)}


def _speedup(
    cell: Cell,
    measured: Mapping[str, figures.Spread],
    name: str,
    results: Sequence[ArmResult],
    in_turns: bool,
) -> float | None:
    """Total tokens/s over that of the arm `name`: of the medians, in turns the median of run over run.

    None without that arm.
    """
    found = _same_cell(cell, name, results)
    if found is None:
        return None
    mine = measured["total_tokens_per_s"]
    other = figures.over_runs(found.runs, speculative=name != "AR")["total_tokens_per_s"]
    if in_turns:
        return median(one / two for one, two in zip(mine.values, other.values, strict=True))
    return mine.median / other.median


def _identity(result: ArmResult, cell: Cell, results: Sequence[ArmResult]) -> dict[str, Any] | None:
    """The first run's texts against AR's first run; None above temperature 0, for AR itself and without it."""
    plain = _same_cell(cell, "AR", results)
    if cell.temperature > 0 or plain is None or not result.arm.is_speculative:
        return None
    same = checks.identity(
        [one.output_ids for one in cell.runs[0]], [one.output_ids for one in plain.runs[0]]
    )
    return {
        "compared": same.compared,
        "identical": same.identical,
        "earliest_difference": same.earliest,
        "differences": {str(index): position for index, position in same.differences.items()},
        "must_be_identical": comparable.is_float32(result.flags),
    }


def _same_cell(cell: Cell, name: str, results: Sequence[ArmResult]) -> Cell | None:
    wanted = (cell.concurrency, cell.temperature)
    for result in results:
        if result.arm.name == name:
            for other in result.cells:
                if (other.concurrency, other.temperature) == wanted:
                    return other
    return None


def _request(one: Timeline) -> dict[str, Any]:
    return {
        "time_to_first_token_s": round(one.time_to_first_token, 6),
        "decode_s": round(one.decode_time, 6),
        "tokens": one.tokens,
        "verify_steps": one.verify_steps,
        "correct_drafts": one.correct_drafts,
        "correct_drafts_histogram": list(one.correct_drafts_histogram),
    }
