"""Times a step of text (`_C.TextStreams.push_batch`, reading its events) against plain Python.

PYTHONPATH=python python -m benchmarks.core.bench_text --write   # results/core_text.{json,md}
"""

from __future__ import annotations

import argparse
import codecs
import random
import statistics
import time
from pathlib import Path

from benchmarks.results_file import write_results

from astrai._C import TextStreams, TokenTable

VOCABULARY_SIZE = 49152
WARM_UPS, REPEATS = 50, 500
STOPS = ["\n\nUser:", "###"]


def make_pieces(rng: random.Random) -> list[bytes]:
    """Words of 1 to 8 letters, mostly after a blank; one piece in 16 is part of a character."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    parts = ["🧪".encode()[:2], "🧪".encode()[2:], "語".encode()[:1], "語".encode()[1:]]
    pieces = []
    for token_id in range(VOCABULARY_SIZE):
        if token_id % 16 == 0:
            pieces.append(parts[token_id // 16 % 4])
        else:
            word = "".join(rng.choices(letters, k=rng.randint(1, 8)))
            pieces.append((" " * (token_id % 4 != 0) + word).encode())
    return pieces


class PythonStreams:
    """The same work per stream in Python: incremental decoder, and stops looked for in a tail."""

    def __init__(self, pieces: list[bytes], n_streams: int) -> None:
        self.pieces = pieces
        decoder = codecs.getincrementaldecoder("utf-8")
        self.decoders = [decoder("replace") for _ in range(n_streams)]
        self.held = [""] * n_streams

    def push_batch(self, token_ids: list[int]) -> list[tuple[int, str]]:
        events = []
        for i, token_id in enumerate(token_ids):
            text = self.held[i] + self.decoders[i].decode(self.pieces[token_id])
            if any(stop in text for stop in STOPS):
                raise AssertionError("the random words hold no stop string")
            n_held = max(
                (n for stop in STOPS for n in range(1, len(stop)) if text.endswith(stop[:n])),
                default=0,
            )
            self.held[i] = text[len(text) - n_held :]
            if len(text) > n_held:
                events.append((i, text[: len(text) - n_held]))
        return events


def measure(pieces: list[bytes], table: TokenTable, n_streams: int) -> dict[str, object]:
    rng = random.Random(n_streams)
    streams = TextStreams(table)
    handles = [streams.open(STOPS, [0], 10**6) for _ in range(n_streams)]
    peer = PythonStreams(pieces, n_streams)
    pushes, reads, peer_times, n_chars = [], [], [], 0
    for _ in range(WARM_UPS + REPEATS):
        token_ids = [rng.randrange(1, VOCABULARY_SIZE) for _ in handles]
        begin = time.perf_counter()
        events = streams.push_batch(handles, token_ids)
        pushed = time.perf_counter()
        for event in events:
            n_chars += len(event.text)
            assert event.finish is None and event.handle
        read = time.perf_counter()
        peer_events = peer.push_batch(token_ids)
        peer_end = time.perf_counter()
        assert [event.text for event in events] == [text for _, text in peer_events]
        pushes.append((pushed - begin) * 1e6)
        reads.append((read - pushed) * 1e6)
        peer_times.append((peer_end - read) * 1e6)
    totals = [a + b for a, b in zip(pushes[WARM_UPS:], reads[WARM_UPS:], strict=True)]
    total, peer_total = statistics.median(totals), statistics.median(peer_times[WARM_UPS:])
    return {
        "streams": n_streams,
        "push_batch_median_us": round(statistics.median(pushes[WARM_UPS:]), 1),
        "read_events_median_us": round(statistics.median(reads[WARM_UPS:]), 1),
        "sum_median_us": round(total, 1),
        "sum_p95_us": round(statistics.quantiles(totals, n=20)[-1], 1),
        "python_median_us": round(peer_total, 1),
        "python_over_ours": round(peer_total / total, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/core_text.*")
    args = parser.parse_args()
    pieces = make_pieces(random.Random(1))
    table = TokenTable(pieces, bytes(len(pieces)))
    rows = [measure(pieces, table, n_streams) for n_streams in (1, 64, 256)]
    write_results(
        "core_text",
        "Text of one step: `_C.TextStreams.push_batch`, then reading every event",
        f"Random tokens of a made vocabulary of {VOCABULARY_SIZE}, {len(STOPS)} stop strings each; "
        f"{WARM_UPS} warm-ups, {REPEATS} repeats. python: codecs' incremental decoder and a scan "
        "for the stops; its texts are compared with ours at every step.",
        rows,
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    main()
