"""PagePool on a CUDA device: the device table follows the host's through many steps."""

from __future__ import annotations

import random

import pytest
import torch

from astrai.kvcache import HostStaging, PagePool
from device_sync import no_device_sync

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("paged", [False, True])
def test_the_device_table_and_plans_follow_the_host(paged):
    rng = random.Random(11)
    kwargs = {"page_size": 4, "n_tokens": 4 * 60} if paged else {}
    pool = PagePool(1, 2, 8, 4, 96, "cuda", torch.bfloat16, n_heads=4, **kwargs)
    live: dict[int, int] = {}

    for _ in range(80):
        if live and (len(live) == 4 or rng.random() < 0.3):
            row = rng.choice(list(live))
            pool.commit(row, live.pop(row))
            pool.release(row)
        prompt = [rng.randrange(5) for _ in range(rng.randint(1, 40))]
        admission = pool.admit(prompt)
        rows, starts = list(live), [live[row] for row in live]
        for row in rows:
            pool.append(row, rng.randrange(5))
        rows = [row for row in rows if pool.extend(row, live[row] + 1)]
        starts, q_lens = [live[row] for row in rows], [1] * len(rows)
        if admission is not None:
            rows.append(admission.req_idx)
            starts.append(admission.n_cached)
            q_lens.append(len(prompt) - admission.n_cached)
        if not rows:
            continue

        staging = rng.choice([None, HostStaging(pool.device)])
        step = pool.plan_step(rows, starts, q_lens, staging=staging)

        for row, start, n in zip(rows, starts, q_lens, strict=True):
            live[row] = start + n
            device_row = step.kv_cache.req_to_token[row, : start + n].cpu()
            assert torch.equal(device_row, pool.table.host[row, : start + n])
        tokens = [
            pool.tokens(r)[s + i]
            for r, s, n in zip(rows, starts, q_lens, strict=True)
            for i in range(n)
        ]
        assert step.input_ids.tolist() == tokens
        assert step.kv_cache.out_cache_loc.device.type == "cuda"
        pool.check_integrity()


def test_a_step_does_not_wait_for_the_device():
    pool = PagePool(1, 2, 8, 4, 96, "cuda", torch.bfloat16, page_size=4, n_tokens=400)
    row = pool.admit(list(range(20))).req_idx
    pool.plan_step([row], [0], [20])
    pool.append(row, 3)
    pool.extend(row, 21)
    staging = HostStaging(pool.device)

    with no_device_sync():
        pool.plan_step([row], [20], [1], staging=staging)
