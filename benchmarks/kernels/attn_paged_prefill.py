"""attn_paged_prefill on a GPU: error against float64, time of one layer, TFLOP/s, torch SDPA.

    python benchmarks/kernels/attn_paged_prefill.py --out benchmarks/results --commit HASH

Needs torch and an astrai built with CUDA. The page table has page_size 1: a random permutation of
the pool (perm), or the same over contiguous slots (cont). Times are replays of a CUDA graph that
launches once for each of several input sets, together more than four times the L2 cache: the median
of REPEATS replays, divided by the launches, and the 10th and 90th percentile. Every row is checked
in the same run on randomly chosen query rows, in an output that was NaN before. FLOP are
4 * head_dim * n_heads for each visible (query, key) pair. SDPA gets K and V gathered and repeated
for the group beforehand: not the same job. Where the plan splits the keys of a case, the column
`unsplit` is the same call without splits, in the same run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from astrai import _C
from astrai.extension import ops

WARM_UPS, REPEATS, MIN_ROTATED_BYTES = 3, 15, 4 * 60 * 2**20
CHECKED_ROWS, MAX_ERROR = 192, 2.7e-3
CHECKED_KEYS = 2**21  # of all checked rows together, where that is less
SEED = 0

MODELS = {
    "llama8b": (32, 8, 128),
    "qwen0.6b": (16, 8, 128),
    "smol": (9, 3, 64),
    "wide": (16, 4, 256),
}
RAGGED = [4096, 2500, 2048, 1536, 1024, 1024, 777, 512, 512, 256, 100, 17]
# model, case, new rows and KV lengths of each request.
CASES = (
    ("llama8b", "1x2048", [2048], [2048]),
    ("llama8b", "8x2048", [2048] * 8, [2048] * 8),
    ("llama8b", "1x8192", [8192], [8192]),
    ("llama8b", "1x16384", [16384], [16384]),
    ("llama8b", "ragged12", RAGGED, RAGGED),
    ("llama8b", "512@8192+", [512], [8704]),
    ("llama8b", "4x512@8192+", [512] * 4, [8704] * 4),
    ("qwen0.6b", "1x8192", [8192], [8192]),
    ("qwen0.6b", "ragged12", RAGGED, RAGGED),
    ("smol", "1x8192", [8192], [8192]),
    ("wide", "1x8192", [8192], [8192]),
    ("wide", "ragged12", RAGGED, RAGGED),
    ("llama8b", "16@100000+", [16], [100016]),
    ("llama8b", "128@100000+", [128], [100128]),
    ("llama8b", "16@8192+", [16], [8208]),
    ("llama8b", "128@8192+", [128], [8320]),
    ("llama8b", "256@32768+", [256], [33024]),
    ("llama8b", "16@100000+ 480", [16, 480], [100016, 480]),
    ("qwen0.6b", "128@32768+", [128], [32896]),
    ("smol", "128@8192+", [128], [8320]),
    ("wide", "128@32768+", [128], [32896]),
)
# The best page_size 1 column and the contiguous one of other libraries on this card, measured by
# the same method: FlashAttention-3 over pages of 1, FlashInfer's FA3 template on ragged K and V.
PEERS = {
    ("llama8b", "1x2048"): (73.5, 74.5),
    ("llama8b", "8x2048"): (559.9, 476.3),
    ("llama8b", "1x8192"): (962.9, 837.8),
    ("llama8b", "1x16384"): (3527.5, 3190.8),
    ("llama8b", "ragged12"): (586.3, 494.0),
    ("llama8b", "512@8192+"): (123.8, 105.7),
    ("llama8b", "4x512@8192+"): (481.6, 427.7),
    ("qwen0.6b", "1x8192"): (485.8, 435.8),
    ("qwen0.6b", "ragged12"): (300.3, 262.4),
    ("smol", "1x8192"): (182.6, None),
    ("wide", "1x8192"): (None, None),
    ("wide", "ragged12"): (None, None),
}


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    table: Tensor
    out: Tensor


class Case:
    """One row of the table: its index arrays, and input sets that rotate."""

    def __init__(
        self, model: str, q_lens: list[int], kv_lens: list[int], is_permuted: bool
    ) -> None:
        self.n_heads, self.n_kv_heads, self.head_dim = MODELS[model]
        self.q_lens, self.kv_lens = q_lens, kv_lens
        self.is_permuted = is_permuted
        self.rows = torch.arange(len(q_lens), dtype=torch.int32, device="cuda")
        self.kv_indptr, self.qo_indptr = indptr(kv_lens), indptr(q_lens)
        tile_rows = _C.prefill_q_tile_rows(
            self.n_heads, self.n_kv_heads, self.head_dim, torch.bfloat16, 0
        )
        pairs = [(b, i) for b, n in enumerate(q_lens) for i in range(-(-n // tile_rows))]
        # The plan's order: by the keys that a tile sees.
        pairs.sort(
            key=lambda t: kv_lens[t[0]] - q_lens[t[0]] + min((t[1] + 1) * tile_rows, q_lens[t[0]])
        )
        tiles = torch.tensor(pairs, dtype=torch.int32, device="cuda").T
        self.tile_batch, self.tile_index = tiles[0].contiguous(), tiles[1].contiguous()
        self.plan_splits(tile_rows)
        first = self.make_inputs()
        n_bytes = sum(t.numel() * t.element_size() for t in vars(first).values())
        n_sets = max(2, -(-MIN_ROTATED_BYTES // n_bytes))
        self.sets = [first, *(self.make_inputs() for _ in range(n_sets - 1))]

    def plan_splits(self, tile_rows: int) -> None:
        """The plan of an engine on this device, and its workspace, NaN at first."""
        heads = (self.n_heads, self.n_kv_heads)
        n_multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        self.splits = _C.plan_prefill_splits(
            self.q_lens, self.kv_lens, tile_rows, *heads, 0, n_multiprocessors
        )
        size = _C.prefill_workspace_size(tile_rows, *heads, self.head_dim, n_multiprocessors)
        self.workspace = torch.full((size,), float("nan"), device="cuda")

    def make_inputs(self) -> Inputs:
        n_tokens = sum(self.kv_lens)
        order = torch.randperm if self.is_permuted else torch.arange
        slots = order(n_tokens, device="cuda").to(torch.int32)
        table = torch.zeros(len(self.kv_lens), max(self.kv_lens), dtype=torch.int32, device="cuda")
        for row, own in zip(table, slots.split(self.kv_lens), strict=True):
            row[: len(own)] = own
        pool = (n_tokens, self.n_kv_heads, self.head_dim)
        q = normal(sum(self.q_lens), self.n_heads, self.head_dim)
        return Inputs(q, normal(*pool), normal(*pool), table, torch.full_like(q, float("nan")))

    def launch(self, one: Inputs) -> None:
        ops.attn_paged_prefill(
            one.q,
            one.k_cache,
            one.v_cache,
            one.table,
            self.rows,
            self.kv_indptr,
            self.qo_indptr,
            self.tile_batch,
            self.tile_index,
            is_causal=True,
            out=one.out,
            workspace=self.workspace,
            splits=self.splits,
        )

    def n_flop(self) -> int:
        pairs = sum(
            q * (kv - q) + q * (q + 1) // 2 for q, kv in zip(self.q_lens, self.kv_lens, strict=True)
        )
        return 4 * self.head_dim * self.n_heads * pairs

    def error(self) -> float:
        """Relative error of randomly chosen rows of the first set; every output must be finite."""
        one = self.sets[0]
        one.out.fill_(float("nan"))
        self.launch(one)
        if not torch.isfinite(one.out).all():
            return float("nan")
        group = self.n_heads // self.n_kv_heads
        errors, sizes = 0.0, 0.0
        n_checked = min(CHECKED_ROWS, CHECKED_KEYS // max(self.kv_lens))
        for row in torch.randint(sum(self.q_lens), (n_checked,)).tolist():
            batch = int((self.qo_indptr[1:] <= row).sum())
            q_begin = sum(self.q_lens[:batch])
            kv_len = self.kv_lens[batch] - self.q_lens[batch] + row - q_begin + 1
            slots = one.table[batch, :kv_len].long()
            keys = one.k_cache[slots].double().repeat_interleave(group, dim=1)
            values = one.v_cache[slots].double().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,khd->hk", one.q[row].double(), keys)
            weights = torch.softmax(scores * self.head_dim**-0.5, dim=-1)
            expected = torch.einsum("hk,khd->hd", weights, values)
            errors += float((one.out[row].double() - expected).square().sum())
            sizes += float(expected.square().sum())
        return float((errors / sizes) ** 0.5)

    def sdpa_us(self, backend: SDPBackend) -> float | None:
        """Time of torch SDPA where the case is one or more equal whole prompts."""
        if self.q_lens != self.kv_lens or len(set(self.q_lens)) != 1:
            return None
        batch, seq_len = len(self.q_lens), self.q_lens[0]
        group = self.n_heads // self.n_kv_heads

        def dense(x: Tensor, repeats: int) -> Tensor:
            rows = x.view(batch, seq_len, -1, self.head_dim).repeat_interleave(repeats, dim=2)
            return rows.transpose(1, 2)

        sets = [
            (dense(s.q, 1), dense(s.k_cache, group), dense(s.v_cache, group)) for s in self.sets[:3]
        ]

        def launch(one: tuple[Tensor, Tensor, Tensor]) -> None:
            scaled_dot_product_attention(*one, is_causal=True)

        try:
            with sdpa_kernel(backend):
                return graph_us(launch, sets)[0]
        except RuntimeError:  # this torch has no such kernel here
            return None


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def indptr(lens: list[int]) -> Tensor:
    return torch.tensor([0, *lens], device="cuda").cumsum(0).to(torch.int32)


def graph_us(launch: Callable[..., None], sets: list) -> tuple[float, float, float]:  # type: ignore[type-arg]
    """(median, 10th, 90th percentile) microseconds per launch of a graph of one launch per set."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for one in sets:
            launch(one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in sets:
            launch(one)
    times = []
    for i in range(WARM_UPS + REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= WARM_UPS:
            times.append(start.elapsed_time(end) * 1000 / len(sets))
    deciles = statistics.quantiles(times, n=10)
    return statistics.median(times), deciles[0], deciles[-1]


def measure(model: str, name: str, q_lens: list[int], kv_lens: list[int]) -> dict[str, object]:
    row: dict[str, object] = {"model": model, "case": name}
    paged, ragged = PEERS.get((model, name), (None, None))
    for order in ("perm", "cont"):
        case = Case(model, q_lens, kv_lens, order == "perm")
        error = case.error()
        if not error <= MAX_ERROR:
            raise SystemExit(f"{model} {name} {order}: relative error {error:.3g}; not timed")
        median, low, high = graph_us(case.launch, case.sets)
        row[f"{order} us"] = round(median, 1)
        if order == "perm":
            row["p10"], row["p90"] = round(low, 1), round(high, 1)
            row["TFLOP/s"] = round(case.n_flop() / median / 1e6)
            row["error"] = f"{error:.2e}"
            row["fa3-p1-perm us"] = paged or "-"
            row["ours / fa3"] = round(median / paged, 2) if paged else "-"
            row["splits"], row["unsplit us"] = "-", "-"
            if case.splits[0]:
                row["splits"] = f"{case.splits[0]} x {case.splits[1]}"
                case.splits = (0, 1, 0)
                row["unsplit us"] = round(graph_us(case.launch, case.sets)[0], 1)
            sdpa = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
            for label, backend in sdpa.items():
                us = case.sdpa_us(backend)
                row[f"sdpa-{label} us"] = "-" if us is None else round(us, 1)
        else:
            row["fi-fa3-ragged us"] = ragged or "-"
        del case
        torch.cuda.empty_cache()
    print(row, flush=True)
    return row


def machine(commit: str) -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    driver, clock = (part.strip() for part in answer.splitlines()[0].split(","))
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "SM clock after": clock,
        "CUDA": torch.version.cuda,
        "torch": torch.__version__,
        "kernels": _C.CUDA_REASON.split(" at ")[0] + " for " + ", ".join(_C.cuda_archs()),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "warm-ups": WARM_UPS,
        "repeats": REPEATS,
    }


def markdown(head: dict[str, object], rows: list[dict[str, object]]) -> str:
    columns = list(rows[0])
    lines = ["# attn_paged_prefill: causal prefill over page_size 1, one layer, bfloat16", ""]
    lines += [", ".join(f"{key} {value}" for key, value in head.items()) + ".", ""]
    lines += [
        "Columns `fa3-p1-perm` and `fi-fa3-ragged` are other libraries on the same kind of card,",
        "by the same method in another run (their ragged12 may have other lengths than ours: these",
        f"are {', '.join(map(str, RAGGED))}). `sdpa-*` ran here, on K and V already gathered.",
        "",
    ]
    lines += ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += ["| " + " | ".join(str(one[column]) for column in columns) + " |" for one in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the .json and the .md")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--only", default="", help="part of 'model case' to measure alone")
    options = parser.parse_args()
    torch.manual_seed(SEED)

    rows = [measure(*case) for case in CASES if options.only in f"{case[0]} {case[1]}"]
    head = machine(options.commit)
    text = markdown(head, rows)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "attn_paged_prefill.md").write_text(text)
    result = json.dumps({"machine": head, "rows": rows}, indent=1)
    (options.out / "attn_paged_prefill.json").write_text(result + "\n")


if __name__ == "__main__":
    main()
