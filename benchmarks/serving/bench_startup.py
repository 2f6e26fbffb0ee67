"""Seconds from `astrai-serve` to the first streamed token, import time, and peak resident memory
under load.

    python benchmarks/serving/bench_startup.py [--dtype float32] [--out benchmarks/results]

The model's file is read once before, so that it lies in the page cache. The peak (VmHWM of the
server process) is taken after 16 concurrent requests with prompts of about 900 tokens.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.calibration import calibrate, machine, summary


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def post(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )


def first_token_s(url: str, process: subprocess.Popen[bytes], start: float) -> float:
    """Ask for a stream until the server is up; seconds from `start` to the first text."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
    while process.poll() is None:
        try:
            with urllib.request.urlopen(
                post(url + "/v1/chat/completions", body), timeout=60
            ) as stream:
                for line in stream:
                    if line.startswith(b"data:") and b'"content"' in line:
                        return time.perf_counter() - start
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"the server ended with {process.returncode}")


def load(url: str) -> None:
    """16 requests at once, each with its own prompt of about 900 tokens."""

    def one(i: int) -> None:
        body = {
            "messages": [{"role": "user", "content": f"{i} " + "walk the fox home " * 220}],
            "max_tokens": 32,
        }
        urllib.request.urlopen(post(url + "/v1/chat/completions", body), timeout=600).read()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
        / 1024
    )


def import_s() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import astrai"], check=True)
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (bare - start) - (time.perf_counter() - bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()

    starts: list[float] = []
    stats: dict[str, Any] = {}
    peak = 0.0
    for i in range(args.rounds + 1):
        port = free_port()
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "astrai.cli.serve",
            "--port",
            str(port),
            "--dtype",
            args.dtype,
        ]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        seconds = first_token_s(url, process, start)
        if i:  # the first start brings the files into the page cache
            starts.append(seconds)
        if i == args.rounds:
            load(url)
            stats = json.load(urllib.request.urlopen(url + "/stats"))
            peak = peak_mb(process.pid)
        process.terminate()
        process.wait(30)
    result = {
        "what": "astrai-serve, default model: start to first streamed token; peak resident memory",
        **machine(),
        "dtype": args.dtype,
        "calibration": calibrate(),
        "start_to_first_token_s": summary(starts),
        "import_astrai_s": summary([import_s() for _ in range(5)]),
        "peak_resident_mb": round(peak, 1),
        "memory_bytes": stats["memory_bytes"],
    }
    (args.out / "cpu_startup.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    print(
        f"start to first token: median {statistics.median(starts):.2f} s, best {min(starts):.2f} s"
    )


if __name__ == "__main__":
    main()
