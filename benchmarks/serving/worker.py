"""One engine in one process: reads a JSON request a line from stdin, answers with a JSON line.

Requests: {"prompts": [[ids]], "n_new": n} -> {"seconds": s}. Between requests the process blocks on
stdin, so that engines measured in turn do not disturb each other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an engine that prints must not break the answers

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from benchmarks.serving.peers import PEERS

    peer = PEERS[args.peer](args.model, args.dtype, args.threads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = peer.generate_s(request["prompts"], request["n_new"])
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
