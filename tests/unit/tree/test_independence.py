import subprocess
import sys


def test_trees_need_neither_the_host_nor_triton_on_a_cpu() -> None:
    code = (
        "import sys, torch\n"
        "from sglang_ddtree.tree import build_tree, draft_candidates, lay_out\n"
        "candidates = draft_candidates(torch.randn(1, 3, 9), 2)\n"
        "lay_out(build_tree(candidates, torch.tensor([1]), 4), torch.tensor([5]))\n"
        "print(sorted({'sglang', 'triton'} & set(sys.modules)))\n"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
