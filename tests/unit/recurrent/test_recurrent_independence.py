import subprocess
import sys


def test_recurrent_layers_need_neither_the_host_nor_triton_on_a_cpu() -> None:
    code = (
        "import sys\n"
        "import torch\n"
        "from sglang_ddtree.recurrent import tree_delta_rule\n"
        "from unit.recurrent.recurrent_cases import SMALL, chain_tree, make_layer, poisoned_record\n"
        "layer = make_layer(torch.Generator(), SMALL, chain_tree(1, 3))\n"
        "tree_delta_rule(*layer.delta_args(layer.x), poisoned_record(layer).layer(0), SMALL)\n"
        "print(sorted({'sglang', 'triton'} & set(sys.modules)))\n"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
