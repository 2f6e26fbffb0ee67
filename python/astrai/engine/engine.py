"""`InferenceEngine`: a model, a KV pool and a scheduler's thread behind plain calls.

Everything goes through `client`, the `EngineClient` that the server uses too. All methods may be
called from any thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from astrai import _C
from astrai.engine.arguments import (
    Prompt,
    as_conversations,
    as_params,
    as_prompts,
    check_integer,
    check_share,
    check_timeout,
)
from astrai.engine.client import EngineClient, InProcessClient, capture_selection
from astrai.engine.errors import RequestError
from astrai.engine.executor_choice import executor_for
from astrai.engine.generation import PieceStream, RunningBatch, error_of
from astrai.engine.kv_sizing import auto_chunk, size_pool
from astrai.engine.memory_ledger import MemoryLedger, StepLimits
from astrai.engine.prefill_chunk import PrefillChunk
from astrai.engine.request import GenerationRequest
from astrai.engine.router import AsyncEventRouter
from astrai.engine.scheduler import InferenceScheduler
from astrai.extension import ATTN_BACKEND, AttentionBackend, attn_backend
from astrai.kvcache import PagePool
from astrai.sampling import SamplingParams
from astrai.structured import Grammar, GrammarCompiler, GrammarLimits
from astrai.text import encode_chat

if TYPE_CHECKING:
    from astrai.models import CausalLM
    from astrai.text import ChatTemplate, Tokenizer

__all__ = ["InferenceEngine"]


class InferenceEngine:
    """Continuous batching over one model. A context manager that shuts down at its end."""

    def __init__(
        self,
        model: CausalLM,
        tokenizer: Tokenizer | None,
        max_batch_size: int = 1,
        max_seq_len: int | None = None,
        cache: PagePool | None = None,
        enable_cuda_graph: bool = True,
        backend: ATTN_BACKEND | str | type[AttentionBackend] | AttentionBackend | None = None,
        *,
        kv_mode: Literal["contiguous", "paged"] = "contiguous",
        page_size: int = 16,
        kv_tokens: int | None = None,
        prefill_chunk: int | Literal["auto"] | None = "auto",
        itl_target_ms: float | None = None,
        batch_invariant: bool = False,
        max_queue: int = 256,
        chat_template: ChatTemplate | None = None,
        end_ids: tuple[int, ...] = (),
        grammar_limits: GrammarLimits | None = None,
        gpu_memory_utilization: float = 0.9,
        sampling_defaults: Mapping[str, float] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Start serving; the scheduler's thread runs when this returns.

        tokenizer: None serves token ids only. max_seq_len: None is the model's context; the
        prompt and the generated tokens of one request. cache: a pool of your own, instead of one
        made from kv_mode, page_size (tokens a page) and kv_tokens (slots of the paged pool, None
        for what memory allows). enable_cuda_graph: on a GPU, run each step of decoding requests as
        one captured graph. backend: attention for requests made outside an `attn_backend(...)`
        context. prefill_chunk: prompt tokens computed in one step, None or 0 without limit; "auto"
        is 512 on a CPU and on a GPU up to 4096, less for larger models while few prompts wait
        (`auto_chunk`). itl_target_ms: steps
        beside decoding requests compute no more of prompts than lets them end within it, as far as
        that can be foretold (see `ItlPace`). batch_invariant: logits and greedy ids of a request
        are the same to the bit whatever runs beside it, is cached or has to wait (see
        `models.batch_invariant`); slower. max_queue: requests that may wait beside the running
        ones. end_ids: ids that end a text. grammar_limits: what a request's grammar may cost.
        gpu_memory_utilization: share of a card's memory that may be in use, the pool included.
        sampling_defaults: what a server takes for fields of `SamplingParams` that a request does
        not name, where that is not its own. after_step: see `InferenceScheduler`.
        Raises ValueError naming an option out of its range, NotEnoughMemoryError (a ValueError)
        for limits that the card cannot hold.
        """
        config = model.config
        check_integer("max_batch_size", max_batch_size, 1)
        check_integer("page_size", page_size, 1)
        check_integer("max_queue", max_queue, 0)
        for name, value, low in (
            ("max_seq_len", max_seq_len, 2),
            ("kv_tokens", kv_tokens, 1),
            ("prefill_chunk", prefill_chunk, 0),
        ):
            is_auto = name == "prefill_chunk" and value == "auto"
            if value is not None and not is_auto:
                check_integer(name, value, low)
        if itl_target_ms is not None and not 0 < itl_target_ms < math.inf:
            raise ValueError(
                f"InferenceEngine: itl_target_ms is {itl_target_ms}; it should be a number of "
                "milliseconds above 0"
            )
        for end_id in end_ids:
            check_integer("end_ids", end_id, 0, config.vocab_size - 1)
        context_len = model.max_len
        if max_seq_len is not None and not 2 <= max_seq_len <= context_len:
            raise ValueError(
                f"InferenceEngine: max_seq_len is {max_seq_len}; this model takes 2 to "
                f"{context_len}"
            )
        if kv_mode not in ("contiguous", "paged"):
            raise ValueError(
                f"InferenceEngine: kv_mode is {kv_mode!r}; accepted are 'contiguous' and 'paged'"
            )
        if batch_invariant:
            model = _batch_invariant(model, backend)
        self.batch_invariant = batch_invariant
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.config = config
        self.prefill_chunk = (
            auto_chunk(model) if prefill_chunk == "auto" else PrefillChunk.fixed(prefill_chunk)
        )
        most_prefill = None if self.prefill_chunk is None else self.prefill_chunk.most
        self.max_seq_len = max_seq_len if max_seq_len is not None else context_len
        self.sampling_defaults: Mapping[str, float] = sampling_defaults or {}
        self._default_backend = None if backend is None else attn_backend(backend)
        check_share("gpu_memory_utilization", gpu_memory_utilization)
        self.ledger: MemoryLedger | None = None  # of a pool on a GPU that was made here
        if cache is None:
            limits = StepLimits(
                max_batch_size,
                self.max_seq_len,
                most_prefill,
                page_size if kv_mode == "paged" else 1,
                enable_cuda_graph,
                splits_prefill=not batch_invariant,
            )
            kv_tokens, self.ledger = size_pool(
                model, limits, kv_mode == "paged", kv_tokens, gpu_memory_utilization
            )
            cache = PagePool(
                config.n_layers,
                config.n_kv_heads,
                config.head_dim,
                max_batch_size,
                self.max_seq_len,
                model.device,
                model.dtype,
                page_size=page_size if kv_mode == "paged" else 1,
                n_tokens=kv_tokens,
                n_heads=config.n_heads,
                splits_prefill=not batch_invariant,
            )
        self.cache = cache
        self._vocab_size = config.vocab_size
        self._grammars = GrammarCompiler(tokenizer, config.vocab_size, grammar_limits)
        executor, sampler = executor_for(model, cache, enable_cuda_graph, most_prefill)
        self._scheduler = InferenceScheduler(
            cache.host,
            executor,
            sampler,
            _C.TextStreams(_token_table(tokenizer, config.vocab_size)),
            max_open=cache.host.max_batch_size + max_queue,
            prefill_chunk=self.prefill_chunk,
            itl_target_s=None if itl_target_ms is None else itl_target_ms / 1000,
            rope_switch_len=model.rope_switch_len,
            is_batch_invariant=batch_invariant,
            strip_leading_space=tokenizer is not None and tokenizer.strips_leading_space,
            after_step=after_step,
        )
        client = InProcessClient(
            self._scheduler,
            cache.host,
            config.vocab_size,
            end_ids,
            self._grammars,
            has_text=tokenizer is not None,
            default_backend=self._default_backend,
            memory_bytes={
                "weights": sum(weight.nbytes for weight in model.parameters()),
                "kv_pool": cache.storage.n_bytes,
            }
            if self.ledger is None
            else self.ledger.parts,
            max_edits=sampler.max_edits,
        )
        self.client: EngineClient = client
        self.limits = client.limits
        self._scheduler.start()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        progress: bool = True,
        **options: Any,
    ) -> InferenceEngine:
        """An engine for a model folder, a GGUF file or a hub id; None is the default model.

        options: keyword arguments of `InferenceEngine`. Raises ModelLoadError.
        """
        from astrai.models import load_model  # the loader and its libraries only when asked

        loaded = load_model(
            path,
            device=device,
            dtype=dtype,
            progress=progress,
            max_seq_len=options.get("max_seq_len"),
        )
        options = {"chat_template": loaded.chat_template, "end_ids": loaded.end_ids} | options
        return cls(loaded.model, loaded.tokenizer, **options)

    @property
    def backend_name(self) -> str | None:
        """The attention backend chosen for this engine; None is automatic choice."""
        return None if self._default_backend is None else self._default_backend.name

    @overload
    def generate(
        self, prompt: str | list[int], stream: Literal[False] = False, **options: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], stream: Literal[False] = False, **options: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: str | list[int], stream: Literal[True], **options: Any
    ) -> Generator[str, None, None]: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], stream: Literal[True], **options: Any
    ) -> Generator[tuple[int, str], None, None]: ...

    def generate(
        self,
        prompt: Prompt,
        stream: bool = False,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 50,
        frequency_penalty: float = 0.0,
        *,
        params: SamplingParams | None = None,
        timeout: float | None = None,
        namespace: str = "",
        grammar: Grammar | None = None,
        progress: bool = False,
        **sampling: Any,
    ) -> Any:
        """Generate text for one prompt or several; a prompt is text or token ids.

        Returns a str for one prompt and a list for several; with stream a generator of str or of
        (index, str), whose closing cancels. max_tokens 0 or less gives "" at once. params: all
        sampling parameters at once, instead of those by name. timeout: seconds, after which the
        requests are cancelled and TimeoutError is raised. namespace: see `GenerationRequest`.
        grammar: what each answer must look like, whole unless cut by max_tokens or a stop.
        progress: a bar on stderr, of finished prompts; not with stream. sampling: further fields
        of `SamplingParams`.
        Raises ValueError naming a field out of range, RequestError for a prompt that cannot be
        served, GenerationError for a request that failed on the way.
        """
        prompts, is_single = as_prompts(prompt)
        sampling |= {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "frequency_penalty": frequency_penalty,
        }
        checked = as_params(params, sampling, self._vocab_size)
        check_timeout(timeout)
        if checked is None or not prompts:
            if stream:
                nothing: list[str] = []
                return (piece for piece in nothing)  # an iterator would have no close()
            return "" if is_single else [""] * len(prompts)
        requests = [self._request(one, checked, namespace, grammar) for one in prompts]
        batch = RunningBatch(self.client, requests)
        if stream:
            return PieceStream(batch, is_single, timeout)
        texts = batch.wait_with_bar(timeout) if progress else batch.wait(timeout)
        return texts[0] if is_single else texts

    @overload
    def chat(
        self, messages: list[dict[str, Any]], stream: Literal[False] = False, **options: Any
    ) -> str: ...
    @overload
    def chat(
        self, messages: list[list[dict[str, Any]]], stream: Literal[False] = False, **options: Any
    ) -> list[str]: ...
    @overload
    def chat(
        self, messages: list[dict[str, Any]], stream: Literal[True], **options: Any
    ) -> Generator[str, None, None]: ...
    @overload
    def chat(
        self, messages: list[list[dict[str, Any]]], stream: Literal[True], **options: Any
    ) -> Generator[tuple[int, str], None, None]: ...

    def chat(
        self,
        messages: Any,
        stream: bool = False,
        *,
        tools: list[dict[str, Any]] | None = None,
        template_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """The assistant's next turn in one conversation or several, as `generate` gives text.

        messages: {"role", "content"} dicts in the order they were said, or a list of such lists.
        tools, template_options: what the model's chat template gets beside them; the text is
        returned as the model wrote it, calls of tools included. options: those of `generate`.
        Raises RequestError where the model has no chat template, TemplateError (a ValueError) where
        it refuses the messages, and what `generate` raises.
        """
        conversations, is_single = as_conversations(messages)
        if self.tokenizer is None or self.chat_template is None:
            raise RequestError(
                "this model has no chat template; use generate() or give one by chat_template",
                param="messages",
            )
        prompts = [
            encode_chat(self.tokenizer, self.chat_template, one, tools, **(template_options or {}))
            for one in conversations
        ]
        generate: Any = self.generate  # its overloads take no bool
        return generate(prompts[0] if is_single else prompts, stream, **options)

    def generate_async(
        self,
        prompt: str | list[int],
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 50,
        frequency_penalty: float = 0.0,
        *,
        params: SamplingParams | None = None,
        namespace: str = "",
        grammar: Grammar | None = None,
        **sampling: Any,
    ) -> AsyncGenerator[str, None]:
        """The pieces of one text for `async for`. Arguments are checked, and the attention
        backend in force is captured, by the call; the request is submitted by the first step of
        the iteration. Closing the generator cancels it. Raises as `generate` does."""
        prompts, is_single = as_prompts(prompt)
        if not is_single:
            raise ValueError("generate_async: prompt must be one text or one list of token ids")
        sampling |= {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "frequency_penalty": frequency_penalty,
        }
        checked = as_params(params, sampling, self._vocab_size)
        return self._pieces(
            None if checked is None else self._request(prompts[0], checked, namespace, grammar)
        )

    def get_stats(self) -> dict[str, object]:
        """Counters, queue lengths, pages, latencies and the bytes of weights and KV pool."""
        return self.client.stats()

    def shutdown(self) -> None:
        """End open requests and the scheduler's thread. Idempotent."""
        self._scheduler.stop()
        self._grammars.close()

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    async def _pieces(self, request: GenerationRequest | None) -> AsyncGenerator[str, None]:
        if request is None:
            return
        router = AsyncEventRouter(self.client, asyncio.get_running_loop())
        async with aclosing(router.stream(request)) as events:
            async for event in events:
                if event.text:
                    yield event.text
                error = error_of(event)
                if error is not None:
                    raise error

    def _request(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        namespace: str,
        grammar: Grammar | None,
    ) -> GenerationRequest:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError(
                    "this model has no tokenizer; give the prompt as token ids", param="prompt"
                )
            prompt = self.tokenizer.encode(prompt)
        selection = capture_selection(self._default_backend)
        return GenerationRequest(prompt, params, namespace, selection=selection, grammar=grammar)


def _token_table(tokenizer: Tokenizer | None, vocab_size: int) -> _C.TokenTable:
    if tokenizer is None:
        return _C.TokenTable([b""] * vocab_size, bytes(vocab_size))
    pieces, special = tokenizer.token_bytes(), tokenizer.special_flags()
    n_missing = max(0, vocab_size - len(pieces))  # ids of the model that the tokenizer lacks
    return _C.TokenTable(pieces + [b""] * n_missing, special + bytes(n_missing))


def _batch_invariant(model: CausalLM, backend: Any) -> CausalLM:
    """The model whose logits do not depend on the batch; backend: of attention, None for any."""
    from astrai.models.batch_invariant import batch_invariant

    if backend is not None and model.device.type == "cuda":
        name = attn_backend(backend).name
        if name != "cuda":
            raise ValueError(
                f"InferenceEngine: batch_invariant does not work with backend {name!r}; leave it "
                "out or take 'cuda'"
            )
    return batch_invariant(model)
