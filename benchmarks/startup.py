"""Seconds from launch to a healthy server, arms alternating, with empty and with filled Triton kernel caches.

    python benchmarks/startup.py --model TARGET --draft DRAFTER --arm DFLASH --arm "DDTREE auto" --out FILE \
      [--server-arg="--max-running-requests 64"]

Each arm has a kernel cache of its own: empty at its first start, filled at the later ones. One server at a time; what
else is cached (files, SGLang's compiled operators) is so for every arm if a server ran on the machine before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglang_ddtree.bench.arguments import server_words
from sglang_ddtree.bench.arms import parse_arm
from sglang_ddtree.bench.server import Servers

# SGLang's own account of its scheduler's startup.
TIMINGS = re.compile(r"Engine startup timings \(s\): (.*)")


def start_once(servers: Servers, name: str) -> dict[str, Any]:
    """One start: seconds until `/health` answers, and SGLang's timings of the parts."""
    began = time.monotonic()
    with servers.start(parse_arm(name)) as server:
        seconds = time.monotonic() - began
        timings = TIMINGS.findall(server.log())
    return {"seconds": round(seconds, 1), "timings": timings[-1] if timings else None}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--arm", action="append", required=True, help='AR, DFLASH or "DDTREE BUDGET"')
    parser.add_argument("--warm-starts", type=int, default=2)
    parser.add_argument("--server-arg", action="append", default=[], help="words of every server's command")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    words = server_words(arguments)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {"empty": [], "filled": []} for name in arguments.arm
    }
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: Path(folder) / str(number) for number, name in enumerate(arguments.arm)}
        for turn in range(1 + arguments.warm_starts):
            for name in arguments.arm:
                os.environ["TRITON_CACHE_DIR"] = str(caches[name])
                servers = Servers(arguments.model, arguments.draft, words, Path(folder), 1800)
                start = start_once(servers, name)
                found[name]["filled" if turn else "empty"].append(start)
                print(name, "filled" if turn else "empty", json.dumps(start), file=sys.stderr, flush=True)
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
