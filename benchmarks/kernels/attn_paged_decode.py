"""attn_paged_decode on a GPU: error against float64, time of one layer, share of the read ceiling.

    python benchmarks/kernels/attn_paged_decode.py --out benchmarks/results --commit HASH

Needs torch and an astrai built with CUDA.

The page table has page_size 1, a random permutation of the pool. Times and ceilings as
graph_timing.py says. Every row is checked in the same run, in an output and workspaces that were
NaN before, on the first, the middle and the last request. Bytes are the keys and values once. `peer
us`: the best page_size 1 column of FlashInfer 0.6.18 (CUDA cores, tensor cores) and of
FlashAttention-3 on such a table, measured on an H200 by the same method. `skewed` is one request of
64K tokens among 63 of 1K, `mixed` 256 requests of 100 to 1624 tokens. `64 x 9K, 8K shared`: 64
requests whose first 8K tokens are in the same slots, read once as the plan says; `unstacked`: the
same without a plan. Shared tokens count once. As in the engine batches come with a plan, and the
index arrays are complete before the kernel ahead of the call begins.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from graph_timing import machine, n_sets, replay_us, write_results
from torch import Tensor

from astrai import _C
from astrai.extension import ops

MAX_ERROR = 2.7e-3
SPLIT_LEN = 512
UNIT_MEMBERS = 256  # kUnitMembers of decode_runs.h
SHARED_LENS = ([8192 + 1024] * 64, 8192)
SEED = 0
MIXED_LENS = [100 + 97 * i % 1525 for i in range(256)]

SPREAD_SPLITS = 512  # the workspace's least size, see PagePool
MODELS = {"llama8b": (32, 8, 128), "qwen0.6b": (16, 8, 128), "smol": (9, 3, 64)}
# (batch, KV length) -> the best page_size 1 time of other libraries for each of MODELS.
PEERS: dict[tuple[int, int], tuple[float, float, float]] = {
    (1, 1024): (9.5, 9.6, 8.3),
    (1, 8192): (18.8, 15.0, 9.4),
    (8, 1024): (17.4, 14.1, 9.0),
    (1, 32768): (43.5, 41.4, 17.2),
    (8, 8192): (73.7, 69.6, 23.7),
    (64, 1024): (76.3, 71.4, 24.9),
    (8, 32768): (251.7, 255.2, 64.3),
    (256, 1024): (276.0, 264.4, 69.6),
    (64, 8192): (489.9, 490.6, 132.6),
    (64, 32768): (1919.8, 1922.6, 495.5),
    (256, 8192): (1929.6, 1919.7, 412.3),
    (256, 32768): (7614.7, 7611.0, 1588.6),
}


# What was tried, and what keeps a row from its target. Written under the table's conditions.
NOTES = """Beside the kernel before it, in one run and to the same bits (us): llama8b 1 x 1024 10.7
to 9.4, 4 x 512 10.2 to 8.9, 8 x 1024 15.1 to 13.7, 64 x 8192 495.8 to 494.5, `unstacked` 455 to
353; qwen0.6b 1 x 1024 10.4 to 8.9; smol 1 x 1024 6.1 to 4.7, 8 x 1024 8.2 to 6.8. What did it: a
short sequence's warps wait for their own instructions, of which the kernel for llama8b had 3992 and
has 2664: a copy's address is one multiplication and addition, a fragment's one operation, the
policy of the L2 cache a constant. At head_dim 64, where few units are spread over more thread
blocks, a warp attends two tiles at once.

Keys and values leave the L2 cache first only where a plan says what is shared, or for a request
alone: requests that share slots without a plan find them there. Requests that share none and have
no plan are slower for it (llama8b 64 x 1024 69.9 to 76.0, 64 x 4096 254 to 286); in the engine a
batch has a plan.

What the kernel before gained in its turn (llama8b 64 x 8192 554 to 503, a mixed batch 237 to 219):
units after a thread block's first two are taken by a counter, as some multiprocessors read a
quarter slower than others; the merge and the kernel ahead ask for the same division of memory as
the main kernel, without which single blocks of it began when the others had ended; short pairs
merge by a warp, long ones by a block; the kernel behind a small merge may start before it.

Tried without a gain: units of head_dim 128 spread over more thread blocks, also with two tiles at
once (8 x 1024 14.7 to 17.2); three or four tiles at once (smol 1 x 1024 5.5, two 4.9); a merge by
the last thread block of a request inside the main kernel (by 13 to 60 %: its fence waits for the
copies in flight); the whole of a unit fetched to L2 ahead of the wait; values read ahead of the
softmax; last splits in the order of their lengths; hints for 128 or 256 bytes a fetch; two blocks
of three stages (the same), one of six (a fifth slower).

Not reached: llama8b 1 x 1024 in 8 us. Rows of more than 5 GB were left out, for want of time on the
card. The read bandwidth here is that of torch's sum; the peers' run names 4662 GB/s as its
card's."""


class Inputs(NamedTuple):
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    table: Tensor
    out: Tensor


class Case:
    """One row of the table: its index arrays and workspace, and input sets that rotate."""

    def __init__(self, model: str, kv_lens: list[int], n_shared: int = 0) -> None:
        """n_shared: leading tokens that all requests have in the same slots."""
        self.n_heads, self.n_kv_heads, self.head_dim = MODELS[model]
        self.kv_lens, self.n_shared = kv_lens, n_shared
        self.rows = torch.arange(len(kv_lens), dtype=torch.int32, device="cuda")
        self.kv_indptr = indptr(kv_lens)
        splits = [-(-length // SPLIT_LEN) for length in kv_lens]
        self.split_indptr = indptr(splits)
        n_places = max(sum(splits), min(4 * sum(splits), SPREAD_SPLITS))
        self.o_part = torch.full((n_places, self.n_heads, self.head_dim), torch.nan).cuda()
        self.ml_part = torch.full((n_places, self.n_heads, 2), torch.nan).cuda()
        self.plan = self.make_plan(splits) if len(kv_lens) > 1 else {}
        self.n_tokens = sum(kv_lens) - n_shared * (len(kv_lens) - 1)
        self.n_bytes = 4 * self.n_tokens * self.n_kv_heads * self.head_dim
        self.sets = [self.make_inputs() for _ in range(n_sets(self.n_bytes))]

    def make_plan(self, splits: list[int]) -> dict[str, object]:
        """What `_C.BatchPlan` plans for such requests: the most splits first, then the others."""
        n, n_shared = len(splits), self.n_shared // SPLIT_LEN
        heads = (self.n_heads, self.n_kv_heads, self.head_dim)
        stack_len = _C.decode_stack_len(*heads) if n_shared else 1
        units = [
            (first, split * UNIT_MEMBERS + min(stack_len, n - first))
            for split in range(n_shared)
            for first in range(0, n, stack_len)
        ]
        for row in sorted(range(n), key=lambda row: -splits[row]):
            units += [(row, split * UNIT_MEMBERS + 1) for split in range(n_shared, splits[row])]
        members = [self.rows, self.rows, self.kv_indptr.diff(), self.split_indptr[:-1]]
        return {
            "members": torch.stack(members, 1).to(torch.int32),
            "n_units": torch.tensor([len(units), 0], dtype=torch.int32, device="cuda"),
            "units": torch.tensor(units, dtype=torch.int32, device="cuda"),
            "stack_len": stack_len,
        }

    def make_inputs(self) -> Inputs:
        batch = len(self.kv_lens)
        slots = torch.randperm(self.n_tokens, device="cuda").to(torch.int32)
        table = torch.full((batch, max(self.kv_lens)), 2**31 - 1, dtype=torch.int32, device="cuda")
        table[:, : self.n_shared] = slots[: self.n_shared]
        own_lens = [length - self.n_shared for length in self.kv_lens]
        for row, own in zip(table, slots[self.n_shared :].split(own_lens), strict=True):
            row[self.n_shared : self.n_shared + len(own)] = own
        pool = (self.n_tokens, self.n_kv_heads, self.head_dim)
        q = normal(batch, self.n_heads, self.head_dim)
        return Inputs(q, normal(*pool), normal(*pool), table, torch.full_like(q, torch.nan))

    def launch(self, one: Inputs) -> None:
        ops.attn_paged_decode(
            one.q,
            one.k_cache,
            one.v_cache,
            one.table,
            self.rows,
            self.kv_indptr,
            o_part_buf=self.o_part,
            ml_part_buf=self.ml_part,
            out_buf=one.out,
            split_indptr=self.split_indptr,
            split_len=SPLIT_LEN,
            is_plan_settled=True,
            **self.plan,  # type: ignore[arg-type]
        )

    def error(self) -> float:
        """Largest relative error of some requests of the first set; NaN when out has one."""
        one = self.sets[0]
        self.launch(one)
        if not one.out.isfinite().all():
            return float("nan")
        group = self.n_heads // self.n_kv_heads
        errors = []
        for i in {0, len(self.kv_lens) // 2, len(self.kv_lens) - 1}:
            slots = one.table[i, : self.kv_lens[i]].long()
            keys, values = one.k_cache[slots].double(), one.v_cache[slots].double()
            q = one.q[i].double().view(self.n_kv_heads, group, self.head_dim)
            scores = torch.einsum("hgd,khd->hgk", q, keys) * self.head_dim**-0.5
            expected = torch.einsum("hgk,khd->hgd", scores.softmax(-1), values).flatten(0, 1)
            errors.append(float((one.out[i].double() - expected).norm() / expected.norm()))
        return max(errors)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def indptr(lens: list[int]) -> Tensor:
    return torch.tensor([0, *lens], device="cuda").cumsum(0).to(torch.int32)


def measure(
    name: str, case: Case, model: str, peer_us: float | None, read_gb_s: float
) -> dict[str, object]:
    error = case.error()
    if not error <= MAX_ERROR:
        raise AssertionError(f"{model} {name}: error {error:.2e} exceeds {MAX_ERROR:.1e}")
    time = replay_us([lambda one=one: case.launch(one) for one in case.sets])  # type: ignore[misc]
    gb_s = case.n_bytes / time.median / 1000
    return {
        "model": model,
        "batch x kv": name,
        "MB": round(case.n_bytes / 1e6, 1),
        "error": f"{error:.1e}",
        "us": round(time.median, 1),
        "p10": round(time.p10, 1),
        "p90": round(time.p90, 1),
        "GB/s": round(gb_s),
        "of read": f"{gb_s / read_gb_s:.0%}",
        "peer us": peer_us,
        "ours / peer": None if peer_us is None else round(time.median / peer_us, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the .json and .md")
    parser.add_argument("--commit", required=True)
    parser.add_argument(
        "--max-gb", type=float, default=40, help="skip rows of more keys and values"
    )
    options = parser.parse_args()
    torch.manual_seed(SEED)

    head = machine(options.commit)
    read_gb_s = float(str(head["read GB/s"]))
    rows = []
    for i, (model, (_, n_kv_heads, head_dim)) in enumerate(MODELS.items()):
        for (batch, kv_len), peers in PEERS.items():
            if 4e-9 * batch * kv_len * n_kv_heads * head_dim <= options.max_gb:
                name = f"{batch} x {kv_len}"
                case = Case(model, [kv_len] * batch)
                rows.append(measure(name, case, model, peers[i], read_gb_s))
                del case
                torch.cuda.empty_cache()
        skewed = Case(model, [65536, *[1024] * 63])
        rows.append(measure("skewed", skewed, model, None, read_gb_s))
        mixed = Case(model, MIXED_LENS)
        rows.append(measure("mixed", mixed, model, None, read_gb_s))
        shared = Case(model, *SHARED_LENS)
        rows.append(measure("64 x 9K, 8K shared", shared, model, None, read_gb_s))
        shared.plan = {}
        rows.append(measure("unstacked", shared, model, None, read_gb_s))
        del skewed, mixed, shared
        torch.cuda.empty_cache()
    write_results(
        "attn_paged_decode",
        "Paged decode attention, page_size 1, random permutation, bfloat16",
        (__doc__ or "").split("\n\n")[3].strip().replace("\n", " ") + "\n\n" + NOTES,
        head,
        rows,
        options.out,
    )


if __name__ == "__main__":
    main()
