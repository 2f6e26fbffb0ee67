"""Sampling on a GPU: agreement with the definition, time, torch.

    python benchmarks/kernels/sampling.py --out benchmarks/results --commit HASH

Method: graph_timing.py. Before a case is timed its tokens are compared with those of the CPU's
Sampler on a few rows. torch is what users write: topk or sort, softmax, cumulative sum, and a draw
by exponential noise (for logprobs: log_softmax and topk).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from graph_timing import arguments, machine, n_sets, replay_us, write_results
from torch import Tensor

from astrai.extension import ops
from astrai.sampling import Sampler, SamplingParams

SHAPES = tuple((vocab_size, batch) for vocab_size in (128256, 151936) for batch in (1, 64, 256))
N_CHECKED = 3


@dataclass(frozen=True)
class Config:
    name: str
    params: SamplingParams
    has_wide_rows: bool


CONFIGS = (
    Config("argmax", SamplingParams(temperature=0.0), False),
    Config("top-k 50, top-p 0.9", SamplingParams(temperature=0.8, top_k=50, top_p=0.9), False),
    Config("temperature", SamplingParams(temperature=0.8, top_k=0), True),
    Config("min-p 0.05", SamplingParams(temperature=0.8, top_k=0, min_p=0.05), True),
    Config("top-p 0.9", SamplingParams(temperature=0.8, top_k=0, top_p=0.9), True),
)


def parameters(params: SamplingParams, batch: int) -> list[Tensor]:
    columns = (
        torch.full((batch,), params.temperature),
        torch.full((batch,), params.top_k, dtype=torch.int32),
        torch.full((batch,), params.top_p),
        torch.full((batch,), params.min_p),
        torch.arange(batch) * 7919,
        torch.zeros(batch, dtype=torch.int64),
    )
    return [column.cuda() for column in columns]


def torch_draw(logits: Tensor, params: SamplingParams) -> Tensor:
    if params.temperature == 0:
        return logits.argmax(-1)
    scores, ids = logits.float() / params.temperature, None
    if params.top_k > 0:
        scores, ids = scores.topk(params.top_k, dim=-1)
    elif params.top_p < 1:
        scores, ids = scores.sort(dim=-1, descending=True)
    p = torch.softmax(scores, dim=-1)
    if params.top_p < 1:
        p = torch.where(p.cumsum(-1) - p < params.top_p, p, 0.0)
    if params.min_p > 0:
        p = torch.where(p >= params.min_p * p.amax(-1, keepdim=True), p, 0.0)
    drawn = (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True)
    return drawn if ids is None else ids.gather(-1, drawn)


def agreement(logits: Tensor, token_ids: Tensor, params: SamplingParams) -> str:
    """How many of the first rows the CPU's Sampler draws alike. Of equal logits, which bfloat16
    has, it may keep another at the end of top-k."""
    n = min(len(logits), N_CHECKED)
    sampler = Sampler(logits.shape[1])
    slots = []
    for row in range(n):
        seeded = SamplingParams(
            params.temperature, params.top_p, params.top_k, params.min_p, seed=row * 7919
        )
        slots.append(sampler.add(seeded))
    expected = sampler.sample(logits[:n].cpu(), slots).token_ids
    same = sum(a == b for a, b in zip(expected, token_ids[:n].tolist(), strict=True))
    assert same >= n - 1, f"{params}: {same} of {n} rows as the CPU draws them"
    return f"{same}/{n}"


def row_of(
    op: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    check: str,
    sets: list[Tensor],
    ours: Callable[[Tensor], object],
    theirs: Callable[[Tensor], object],
) -> dict[str, object]:
    time = replay_us([partial(ours, one) for one in sets])
    by_torch = replay_us([partial(theirs, one) for one in sets], repeats=5)
    gb_s = sets[0].numel() * sets[0].element_size() / time.median / 1000
    return {
        "op": op,
        "V": shape[0],
        "B": shape[1],
        "logits": str(dtype).removeprefix("torch."),
        "as the CPU": check,
        "us": round(time.median, 1),
        "p10": round(time.p10, 1),
        "p90": round(time.p90, 1),
        "GB/s of logits": round(gb_s),
        "torch us": round(by_torch.median, 1),
        "torch / ours": round(by_torch.median / time.median, 1),
    }


def measure(vocab_size: int, batch: int, dtype: torch.dtype) -> list[dict[str, object]]:
    shape = (vocab_size, batch)
    n_bytes = vocab_size * batch * dtype.itemsize
    sets = [
        (torch.randn(batch, vocab_size, device="cuda") * 3).to(dtype)
        for _ in range(n_sets(n_bytes))
    ]
    outputs = {
        "token_ids": torch.empty(batch, dtype=torch.int64, device="cuda"),
        "is_faulty": torch.empty(batch, dtype=torch.bool, device="cuda"),
        "workspace": torch.empty(
            ops.sample_workspace_bytes(batch, vocab_size), dtype=torch.uint8, device="cuda"
        ),
    }
    rows = []
    for config in CONFIGS:
        columns = parameters(config.params, batch)

        def draw(
            logits: Tensor, columns: list[Tensor] = columns, config: Config = config
        ) -> Tensor:
            ops.sample(logits, *columns, has_wide_rows=config.has_wide_rows, **outputs)
            return outputs["token_ids"]

        check = agreement(sets[0], draw(sets[0]), config.params)
        theirs = partial(torch_draw, params=config.params)
        rows.append(row_of(config.name, shape, dtype, check, sets, draw, theirs))

    ids = torch.zeros(batch, dtype=torch.int64, device="cuda")
    chosen, top_ids, top = ops.top_logprobs(sets[0], ids, 20)
    expected = torch.log_softmax(sets[0].double(), -1)
    assert (top.double() - expected.gather(1, top_ids.long())).abs().max() < 1e-4
    kept = {
        "chosen": chosen,
        "top_ids": top_ids,
        "logprobs": top,
        "workspace": torch.empty(
            ops.top_logprobs_workspace_bytes(batch, vocab_size), dtype=torch.uint8, device="cuda"
        ),
    }
    rows.append(
        row_of(
            "top 20 logprobs",
            shape,
            dtype,
            "float64",
            sets,
            lambda logits: ops.top_logprobs(logits, ids, 20, **kept),
            lambda logits: torch.log_softmax(logits.float(), -1).topk(20, -1),
        )
    )
    return rows


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    rows = []
    for vocab_size, batch in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            rows += measure(vocab_size, batch, dtype)
            torch.cuda.empty_cache()
    write_results(
        "sampling",
        "Sampling on the GPU",
        "Logits are normal with a standard deviation of 3; temperature 0.8 where one is drawn."
        " Microseconds a call by graph replay over rotating buffers.",
        machine(options.commit),
        rows,
        options.out,
    )


if __name__ == "__main__":
    main()
