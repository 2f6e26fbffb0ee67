"""Steps with chunks of prompts in parts: the same logits as one forward, whatever is padded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astrai.engine.device_executor import DeviceExecutor
from astrai.engine.prompt_runner import PromptRunner, padded_tokens, prompt_sizes
from astrai.extension import TorchNativeBackend
from astrai.kvcache import KVCache, PagePool, StepBatch
from astrai.models import CausalLM
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.random_weights import RandomWeights

MAX_BATCH_SIZE, MAX_LEN = 6, 128
# (cached tokens, new tokens) of each request; those with one new token and decode come first
STEPS = {
    "one prompt": (0, [(0, 9)]),
    "exactly a size": (0, [(0, 10), (0, 6)]),
    "prompts and a chunk": (0, [(0, 17), (16, 20), (4, 1)]),
    "decoding beside a prompt": (2, [(30, 1), (5, 1), (8, 40), (0, 3)]),
    "the largest": (1, [(64, 1), (0, 63)]),
}


def made(device: str, dtype: torch.dtype, family: str) -> CausalLM:
    config = ModelConfig(
        architecture=family,
        vocab_size=300,
        hidden_size=128,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        intermediate_size=192,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_LEN,
        use_qk_norm=family == "qwen3",
    )
    weights = RandomWeights(config, std=0.08)
    return build_model(config, weights, device=torch.device(device), dtype=dtype, max_len=MAX_LEN)


class Fixture:
    """A model, and a pool whose unused slots are NaN."""

    def __init__(self, model: CausalLM) -> None:
        config = model.config
        self.model = model
        self.pool = PagePool(
            config.n_layers, config.n_kv_heads, config.head_dim, MAX_BATCH_SIZE, MAX_LEN,
            model.device, model.dtype, page_size=4, n_tokens=1024, n_heads=config.n_heads,
        )  # fmt: skip
        self.pool.k_buffer.fill_(torch.nan)
        self.pool.v_buffer.fill_(torch.nan)

    def step(self, n_decode: int, lens: list[tuple[int, int]]) -> StepBatch:
        """A step of these requests, their cached tokens filled with random keys and values."""
        requests, starts, q_lens = [], [], []
        for i, (n_cached, n_new) in enumerate(lens):
            tokens = [(7 * i + 3 * j) % 300 for j in range(n_cached + n_new)]
            row = self.pool.admit(tokens)
            assert row is not None and row.n_cached == 0
            requests.append(row.req_idx)
            starts.append(n_cached)
            q_lens.append(n_new)
        batch = self.pool.plan_step(requests, starts, q_lens, n_decode)
        for request, n_cached in zip(requests, starts, strict=True):
            slots = batch.kv_cache.req_to_token[request, :n_cached].long()
            for buffer in (self.pool.k_buffer, self.pool.v_buffer):
                buffer[:, slots] = torch.randn_like(buffer[:, slots])
        return batch

    def runner(self, enable_cuda_graph: bool) -> PromptRunner:
        any_cache = self.step(0, [(0, 1)]).kv_cache
        self.release(any_cache)
        return PromptRunner(self.model, any_cache, 64, enable_cuda_graph)

    def release(self, cache: KVCache) -> None:
        for request in cache.req_pool_indices.tolist():
            self.pool.release(request)

    def logits(self, runner: PromptRunner, batch: StepBatch) -> torch.Tensor:
        residual, attended = runner.run(batch)
        rows = batch.logits_indices
        return self.model.finish(residual.index_select(0, rows), attended.index_select(0, rows))

    def expected(self, batch: StepBatch) -> torch.Tensor:
        cache = batch.kv_cache
        return self.model.forward(
            batch.input_ids, batch.position_ids, cache, "prefill", batch.logits_indices
        )


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_sizes_hold_every_step(n_tokens: int, max_tokens: int) -> None:
    sizes = prompt_sizes(max_tokens)
    size = padded_tokens(min(n_tokens, max_tokens), max_tokens)
    assert size in sizes and sizes[-1] == max_tokens and len(sizes) < 40
    assert min(n_tokens, max_tokens) <= size <= max(16, 2 * n_tokens)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_parts_give_the_logits_of_one_forward(family: str) -> None:
    with torch.inference_mode():
        for n_decode, lens in STEPS.values():
            fixture = Fixture(made("cpu", torch.float32, family))
            batch = fixture.step(n_decode, lens)
            runner = fixture.runner(enable_cuda_graph=False)
            torch.testing.assert_close(fixture.logits(runner, batch), fixture.expected(batch))


class Unaware(TorchNativeBackend):
    """A backend that writes keys and values itself."""

    reads_written_kv: ClassVar[bool] = False


def test_steps_that_the_parts_cannot_serve_are_whole_forwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.inference_mode():
        fixture = Fixture(made("cpu", torch.float32, "llama"))
        runner = fixture.runner(enable_cuda_graph=False)
        ragged, decoding, too_large = (
            fixture.step(n_decode, lens)
            for n_decode, lens in ((0, [(0, 9)]), (1, [(9, 1)]), (0, [(0, 65)]))
        )
        runs: list[StepBatch] = []
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda batch: runs.append(batch) or run(batch))
        executor = SimpleNamespace(_model=fixture.model, _prompts=runner)

        def logits(batch: StepBatch) -> torch.Tensor:
            return DeviceExecutor._logits(executor, batch, batch.logits_indices)  # type: ignore[arg-type]

        for batch in (ragged, decoding, too_large):
            torch.testing.assert_close(logits(batch), fixture.expected(batch))
        with Unaware():
            torch.testing.assert_close(logits(ragged), fixture.expected(ragged))
    assert runs == [ragged]


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_graphs_of_parts_give_the_bits_of_single_launches(dtype: torch.dtype, family: str) -> None:
    with torch.inference_mode():
        fixture = Fixture(made("cuda", dtype, family))
        captured, single = (fixture.runner(on) for on in (True, False))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # the second time nothing is captured
                for n_decode, lens in STEPS.values():
                    batch = fixture.step(n_decode, lens)
                    logits = fixture.logits(captured, batch)
                    assert torch.equal(logits, fixture.logits(single, batch))
                    error = (logits - fixture.expected(batch)).norm() / logits.norm()
                    assert error < (0.03 if dtype == torch.bfloat16 else 0.004)
                    fixture.release(batch.kv_cache)
