"""What a user asks when DDTREE does not start: every condition, checked, as rows."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from ..config import OPTIONS
from ..cpu.platform import NO_GPU, PLATFORM_NAME, first_advice, is_selected
from ..patch import installation as patch
from ..usage import UsageError, require_checkpoint
from . import contract, hooks
from .source_tree import installed_root

OK, NOTE, FAIL = "ok", "note", "FAIL"

_PACKAGES = ("sglang-ddtree", "sglang", "torch", "triton", "flashinfer-python", "transformers", "safetensors")


@dataclass(frozen=True)
class Finding:
    """One row: `status` is "ok", "note" or "FAIL"; with a FAIL in the report DDTREE would not start."""

    section: str
    name: str
    status: str
    detail: str


def examine(draft: str | None = None, model: str | None = None) -> list[Finding]:
    """Check everything that needs no server: versions, contract, plugin, hooks, device, shims, drafter, target.

    Never raises for what it finds wrong: that becomes a row.
    """
    findings = [*_versions(), *_contract()]
    sound = not any(finding.status == FAIL for finding in findings)
    findings += _plugin()
    findings += _guarded("patch", _patch)
    if sound:
        findings += _guarded("hooks", _hooks)
        findings += _guarded("device", _device)
        findings += _guarded("CPU shims", _shims)
    findings += _options()
    if draft is not None:
        findings += _guarded("drafter", lambda: _drafter(draft, model))
    if sound and model is not None:
        findings += _guarded("target", lambda: _target(model))
    return findings


def would_start(findings: list[Finding]) -> bool:
    """Whether nothing was found that keeps DDTREE from starting."""
    return all(finding.status != FAIL for finding in findings)


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """The report for programs: `{"would_start": bool, "findings": [{section, name, status, detail}]}`."""
    return {"would_start": would_start(findings), "findings": [asdict(finding) for finding in findings]}


def as_text(findings: list[Finding]) -> str:
    """The report as a table in sections, with a verdict as its last line."""
    lines: list[str] = []
    for section in dict.fromkeys(finding.section for finding in findings):
        rows = [finding for finding in findings if finding.section == section]
        width = max(len(row.name) for row in rows)
        lines += ["", section]
        lines += [f"  {row.status:<4}  {row.name:<{width}}  {row.detail}".rstrip() for row in rows]
    verdict = "DDTREE can start." if would_start(findings) else "DDTREE would not start: see FAIL above."
    return "\n".join([*lines, "", verdict]).lstrip("\n")


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "python", OK, platform.python_version())
    for package in _PACKAGES:
        found = _installed_version(package)
        if found is None:
            needed = package in ("sglang", "torch", "transformers")
            yield Finding("versions", package, FAIL if needed else NOTE, "not installed")
            continue
        tested = package != "sglang" or found in contract.TESTED_VERSIONS
        detail = found if tested else f"{found}, tested with {', '.join(contract.TESTED_VERSIONS)}"
        yield Finding("versions", package, OK if tested else NOTE, detail)


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "sglang" and contract.found_version() != "not installed":
            return contract.found_version()  # vendored: a folder on the path
        return None


def _contract() -> Iterator[Finding]:
    mismatches = contract.check_contract()
    for mismatch in mismatches:
        yield Finding(
            "contract", mismatch.name, FAIL, f"expected {mismatch.expected}, found {mismatch.found}"
        )
    if mismatches:
        fix = f"pip install sglang=={contract.TESTED_VERSIONS[-1]}"
        yield Finding("contract", "fix", NOTE, f"{fix}, or a release of sglang-ddtree for this SGLang")
    else:
        yield Finding("contract", "names of SGLang", OK, f"{len(contract.all_rows())} as expected")


def _plugin() -> Iterator[Finding]:
    names = {entry.name for entry in entry_points(group="sglang.srt.plugins")}
    problems = []
    if "ddtree" in names:
        yield Finding("plugin", "entry point", OK, "registered")
    else:
        advice = "install this package (a folder on the path is not enough), or `sglang-ddtree patch apply`"
        problems.append(("entry point", f"missing: {advice}"))
    wanted = os.environ.get("SGLANG_PLUGINS")
    if wanted and "ddtree" not in {name.strip() for name in wanted.split(",")}:
        problems.append(("SGLANG_PLUGINS", f"is {wanted!r} and leaves ddtree out: add ddtree"))
    selected = os.environ.get("SGLANG_PLATFORM")
    if selected and not is_selected():
        # SGLang then skips every plugin of a package that brings another platform.
        detail = f"is {selected!r}: SGLang skips this package; unset it, or set it to {PLATFORM_NAME}"
        problems.append(("SGLANG_PLATFORM", detail))
    if _sglang_loads_package():
        status, end = NOTE, ". The patched SGLang loads this package all the same"
    else:
        status, end = FAIL, ""
    for name, detail in problems:
        yield Finding("plugin", name, status, detail + end)


def _sglang_loads_package() -> bool:
    root = installed_root()
    return root is not None and patch.inspect(root).loads_package


def _patch() -> Iterator[Finding]:
    root = installed_root()
    if root is not None:
        found = patch.inspect(root)
        # DDTREE starts from either side of each file: what was interrupted or changed is worth a look only.
        whole = found.state in (patch.ORIGINAL, patch.PATCHED)
        yield Finding("patch", found.state, OK if whole else NOTE, found.describe())


def _guarded(section: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        # On a machine without a GPU SGLang's own modules lack packages.
        detail = first_advice(str(error)) if isinstance(error, ImportError) else str(error)
        return [Finding(section, type(error).__name__, FAIL, detail)]


def _hooks() -> Iterator[Finding]:
    from sglang.srt.plugins import load_plugins

    from .. import plugin

    load_plugins()
    if plugin.failure():
        yield Finding("hooks", "ddtree", FAIL, str(plugin.failure()))
        return
    if plugin.callers():
        first, *later = dict.fromkeys(plugin.callers())
        after = f"; the {later[0]} called later and changed nothing" if later else ""
        yield Finding("hooks", "loaded by", OK, f"the {first}{after}")
    missing = hooks.unapplied()
    for hook in hooks.declared():
        name = f"{hook.kind} {hook.target.removeprefix('sglang.srt.')}"
        yield Finding("hooks", name, FAIL if hook in missing else OK, hook.reason)
    if not hooks.declared():
        yield Finding("hooks", "ddtree", FAIL, "SGLang did not load the plugin; its log says why")


def _device() -> Iterator[Finding]:
    import torch

    if is_selected():
        yield Finding(
            "device", PLATFORM_NAME, OK, f"{torch.get_num_threads()} threads of {platform.machine()}"
        )
    elif torch.cuda.is_available() and torch.version.hip is None:
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory / 2**30
            yield Finding(
                "device", f"cuda:{index}", OK, f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB"
            )
    else:
        yield Finding("device", "cuda", FAIL, NO_GPU)


def _shims() -> Iterator[Finding]:
    from ..cpu.shims import shim_status

    for row in shim_status():
        failed = row["status"] == "refused"
        detail = f"{row['status']}; {row['answers']}: {row['reason'] or row['why']}"
        yield Finding("CPU shims", row["name"], FAIL if failed and is_selected() else OK, detail)


def _options() -> Iterator[Finding]:
    for option in OPTIONS:
        default = option.default_text or str(option.default).lower()
        detail = f"not set: {default}; may be {option.allowed}. {option.help}"
        yield Finding("options", option.flag, OK, detail)


def _drafter(draft: str, model: str | None) -> Iterator[Finding]:
    from .checkpoint import CheckpointError
    from .drafter import check_drafter

    if model is None:
        yield Finding("drafter", draft, FAIL, "give --model too: a drafter fits one target")
        return
    try:
        require_checkpoint("--draft", draft)
        require_checkpoint("--model", model)
        report = check_drafter(draft, model)
    except (UsageError, CheckpointError) as error:
        yield Finding("drafter", draft, FAIL, str(error))
        return
    for name, value in asdict(report).items():
        if name == "tensors" and value is None:
            yield Finding("drafter", name, NOTE, "not checked: no safetensors file at hand")
        else:
            yield Finding("drafter", name, OK, str(value))


def _target(model: str) -> Iterator[Finding]:
    from sglang.srt.configs.model_config import ModelConfig

    from ..config import DDTreeConfig
    from .refusals import target_problems

    try:
        require_checkpoint("--model", model)
    except UsageError as error:
        yield Finding("target", model, FAIL, str(error))
        return
    config = ModelConfig(model, trust_remote_code=False)  # as a server without further flags reads it
    problems = list(target_problems(config, DDTreeConfig()))
    for problem in problems:
        yield Finding("target", model, FAIL, problem)
    if not problems:
        yield Finding("target", model, OK, f"served, {config.hf_config.architectures}")
