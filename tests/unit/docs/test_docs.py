"""The documentation builds, and what it names exists: links, flags, commands, paths, modules, SGLang's lines."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_ddtree import cli
from sglang_ddtree.config import OPTIONS
from sglang_ddtree.host import contract
from sglang_ddtree.host.source_tree import SourceTree, installed_root
from sglang_ddtree.width import CostTable, WidthPolicy
from unit.docs.pages import DOCS, ROOT, Page, all_pages

PAGES = all_pages()
BACKENDS = Page(DOCS / "attention-backends.md")
SOURCES = ROOT / "src" / "sglang_ddtree"
SGLANG = installed_root() or Path()
COMMANDS = re.compile(r"^\s{4}(\w+)\s{2,}", re.MULTILINE)
FLAGS = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def named(page: Page) -> str:
    return page.name


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="scripts/setup-env installs it")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert "How it works" in index
    # A reader's browser asks nobody else.
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=.?https?://", index)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_anchors_resolve(page: Page) -> None:
    broken = []
    for link in page.links:
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.file.parent / path).resolve() if path else page.file
        if not target.exists() or (anchor and anchor not in Page(target).anchors):
            broken.append(link)
    assert broken == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        "# A `code` heading\n\n[a](#a-code-heading) [b](gone.md)\n\n    [c](in-code)\n\n`[d](e)`\n"
    )
    page = Page(file)
    assert page.links == ["#a-code-heading", "gone.md"]
    assert page.anchors == {"a-code-heading"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_paths_in_code_exist(page: Page) -> None:
    places = ("src/", "tests/", "docs/", "benchmarks/", "scripts/", "requirements/")
    words = [word.split(":")[0].strip(",.;'\"") for code in page.code for word in code.split()]
    missing = [word for word in words if word.startswith(places) and not (ROOT / word).exists()]
    assert missing == []


@pytest.fixture(scope="module")
def help_of() -> dict[str, str]:
    """Subcommand -> its help, "" -> the help of `sglang-ddtree` itself."""
    top = help_text([])
    return {"": top} | {name: help_text([name]) for name in COMMANDS.findall(top)}


def help_text(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    return out.getvalue()


@pytest.fixture(scope="module")
def server_flags() -> set[str]:
    """SGLang's flags, aliases included, and those of this package."""
    tree = SourceTree(SGLANG)
    fields = {f"--{field.replace('_', '-')}" for field in tree.server_args_fields()}
    sources = [*(SGLANG / "srt" / "arg_groups").rglob("*.py"), SGLANG / "srt" / "server_args.py"]
    aliases = {flag for file in sources for flag in re.findall(r'"(--[a-z][a-z0-9-]*)"', file.read_text())}
    return fields | aliases | {option.flag for option in OPTIONS}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist_with_their_flags(page: Page, help_of: dict[str, str]) -> None:
    wrong = []
    for code in page.code:
        for use in re.findall(r"sglang-ddtree((?:\s+(?!sglang-ddtree).*)?)$", code):
            words = shlex.split(use, comments=True)
            name = words[0] if words and not words[0].startswith("-") else ""
            if name not in help_of:
                wrong.append(f"sglang-ddtree {name}")
                continue
            flags = [word.split("=")[0] for word in words if FLAGS.fullmatch(word.split("=")[0])]
            known = set(FLAGS.findall(help_of[name]))
            wrong += [f"sglang-ddtree {name} {flag}" for flag in flags if flag not in known]
    assert [found for found in wrong if not is_no_command(found)] == []


def is_no_command(found: str) -> bool:
    # `pip uninstall sglang-ddtree` and the like: the package, not its command.
    return found == "sglang-ddtree "


@pytest.fixture(scope="module")
def script_flags() -> set[str]:
    """Flags of this repository's scripts, checks and benchmarks."""
    folders = (ROOT / "scripts", ROOT / "benchmarks", ROOT / "tests" / "gpu", ROOT / "src/sglang_ddtree/demo")
    kinds = ("", ".py", ".env", ".service")
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in kinds]
    return {flag for file in files if file.is_file() for flag in FLAGS.findall(file.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_flags_exist(
    page: Page, server_flags: set[str], help_of: dict[str, str], script_flags: set[str]
) -> None:
    own = {flag for text in help_of.values() for flag in FLAGS.findall(text)}
    used = {flag for text in (*page.code, page.prose) for flag in FLAGS.findall(text)}
    speculative = {flag for flag in used if flag.startswith("--speculative")}
    assert unknown(speculative, server_flags) == set()
    assert unknown(used, server_flags | own | script_flags) == set()


def unknown(flags: set[str], known: set[str]) -> set[str]:
    # `--speculative-ddtree-` stands for all that begin so.
    begins = {flag for flag in flags if flag.endswith("-") and any(one.startswith(flag) for one in known)}
    return flags - known - begins


def test_every_option_is_in_the_tuning_or_operating_page() -> None:
    text = Page(DOCS / "tuning.md").text + Page(DOCS / "operating.md").text
    assert [option.flag for option in OPTIONS if option.flag not in text] == []


def test_the_architecture_page_has_every_module() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "module-table", "--check"], timeout=60)
    assert done.returncode == 0, "run scripts/module-table"
    page = Page(DOCS / "architecture.md").text
    modules = [file.relative_to(SOURCES).as_posix() for file in SOURCES.rglob("*.py")]
    missing = [name for name in modules if f"| `{name}` |" not in page and not name.endswith("__init__.py")]
    assert missing == []


def test_quoted_lines_of_sglang_stand_there() -> None:
    assert contract.found_version() in BACKENDS.text, "read the backends of this SGLang again"
    rows = BACKENDS.tables("backend", "line", "what stands there")
    assert len(rows) > 30
    wrong = []
    for _, where, quoted in rows:
        name, _, number = where.strip("`").partition(":")
        lines = sglang_file(name).read_text().splitlines()
        if lines[int(number) - 1].strip() != quoted.strip("`"):
            wrong.append(f"{where}: {lines[int(number) - 1].strip()}")
    assert wrong == []


def test_files_without_a_mask_have_none() -> None:
    files = re.findall(r"^- `([\w/]+\.py)`$", BACKENDS.text, re.MULTILINE)
    assert len(files) > 10
    assert [name for name in files if "custom_mask" in sglang_file(name).read_text()] == []
    # The wrapper of wave names it once, as a parameter.
    wave = sglang_file("layers/attention/wave_ops/extend_attention.py").read_text()
    assert wave.count("custom_mask") == 1


def test_every_choice_of_an_attention_backend_has_a_row() -> None:
    text = sglang_file("arg_groups/choices.py").read_text()
    block = re.search(r"^ATTENTION_BACKEND_CHOICES = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block
    rows = BACKENDS.tables("backend", "takes a tree mask", "state", "with DDTREE")
    named_in_rows = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(re.findall(r'^\s+"(\w+)"', block[1], re.MULTILINE)) - named_in_rows == set()


def sglang_file(name: str) -> Path:
    return SGLANG / name if name.startswith("kernels/") else SGLANG / "srt" / name


def test_the_tree_of_the_drawing_is_what_the_builder_gives() -> None:
    import torch

    from sglang_ddtree.tree import DraftCandidates, build_tree, lay_out, settle_path

    rows = Page(DOCS / "how-it-works.md").tables("slot", "prefix", "parent", "score")
    depths = [
        {"on": 0.62, "in": 0.27, "by": 0.11},
        {"the": 0.70, "a": 0.20, "my": 0.10},
        {"mat": 0.55, "rug": 0.30, "bed": 0.15},
    ]
    words = ["sat", ".", "box", *(word for depth in depths for word in depth)]
    ids = torch.tensor([[[words.index(word) for word in depth] for depth in depths]])
    logprobs = torch.tensor([[list(depth.values()) for depth in depths]]).log()
    tree = build_tree(DraftCandidates(ids, logprobs), torch.tensor([words.index("sat")]), 7)
    prefixes: list[str] = []
    for token, parent in zip(tree.tokens[0].tolist(), tree.parents[0].tolist(), strict=True):
        before = prefixes[parent] + " " if parent > 0 else ""
        prefixes.append(before + words[token])
    assert [row[1] for row in rows] == prefixes
    assert [int(row[2] or -1) for row in rows] == tree.parents[0].tolist()
    for prefix, row in zip(prefixes[1:], rows[1:], strict=True):
        score = 1.0
        for depth, word in zip(depths, prefix.split(), strict=False):
            score *= depth[word]
        assert row[3] == f"{score:.3f}"
    # The choices that the drawing shows.
    choices = ["on", "the", "rug", "the", ".", "box", ".", "mat"]
    target = torch.tensor([[words.index(word) for word in choices]])
    _, topology = lay_out(tree, torch.tensor([2]))
    slots = torch.arange(tree.width).view(1, -1)
    accepted, _ = settle_path(tree, topology.ancestor_mask, target, torch.tensor([2]), slots)
    assert accepted.accept_index[0].tolist() == [0, 1, 2, 6]
    assert [words[token] for token in accepted.predict[0].tolist()] == ["on", "the", "rug", "."]


def constant(module: str, name: str) -> Any:
    """The value of a module's constant, read without importing it."""
    for node in ast.parse((SOURCES / module).read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise LookupError(f"{module} has no {name}")


def test_the_numbers_of_the_width_are_those_of_the_code() -> None:
    text = " ".join(Page(DOCS / "how-it-works.md").text.split())
    *widths, last = constant("step/plan.py", "AUTO_WIDTHS")
    for sentence in (
        f"verifies {', '.join(map(str, widths))} or {last} tokens per request",
        f"the tree of {last - 1} nodes",
        f"batch sizes of up to {constant('step/plan.py', 'WIDE_TOKENS')} verified tokens",
        f"the sums every {constant('step/widths.py', 'TALLY_STEPS')} steps",
        f"the last {constant('width/pace.py', 'SAMPLES')} times",
        f"counts half after {constant('width/gain.py', 'HALF_LIFE'):.0f} request-steps",
        f"{100 * constant('width/policy.py', 'MARGIN'):.0f} % better",
        f"Every {constant('width/policy.py', 'DWELL_STEPS')} steps",
        f"tried for {constant('width/policy.py', 'TRIAL_STEPS')} steps",
        f"once in {constant('width/policy.py', 'TRIAL_INTERVAL')} steps",
        f"From the {constant('width/policy.py', 'EXPLORE_AFTER')}th step",
    ):
        assert sentence in text
    readme = " ".join(Page(ROOT / "README.md").text.split())
    assert f"at least {100 * constant('width/policy.py', 'MARGIN'):.0f} % better" in readme


def test_the_keys_of_the_widths_are_those_of_the_code() -> None:
    widths = (8, 16)
    policy = WidthPolicy(widths, CostTable(widths, {(1, width): 1.0 for width in widths}))
    rows = Page(DOCS / "tuning.md").tables("key", "meaning")
    # The worker adds the graphs' times.
    assert {row[0].strip("`") for row in rows} == {*policy.snapshot(), "graph_ms"}


def test_quoted_log_lines_are_in_the_code() -> None:
    quoted = [code for code in Page(DOCS / "operating.md").code if code.startswith("DDTREE ")]
    assert len(quoted) >= 4
    source = "".join(file.read_text() for file in SOURCES.rglob("*.py"))
    begins = [re.match(r"[A-Za-z ]+", code)[0].strip() for code in quoted]  # type: ignore[index]
    assert [begin for begin in begins if begin not in source] == []


def test_measured_figures_are_in_the_folder_they_name() -> None:
    page = Page(DOCS / "tuning.md")
    rows = re.findall(r"^\|(.*)\| `(benchmarks/results/[\w-]+)` \|$", page.text, re.MULTILINE)
    assert len(rows) > 20
    wrong = []
    for cells, folder in rows:
        name, *figures = [cell.strip() for cell in cells.split("|")]
        source = (ROOT / folder / "README.md").read_text()
        wrong += [
            f"{folder}: {name}: {one}"
            for one in figures
            if not re.search(rf"(?<!\d){re.escape(one)}", source)
        ]
    assert wrong == []


def test_the_citation_has_the_version_of_the_package() -> None:
    from sglang_ddtree import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
