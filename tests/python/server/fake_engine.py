"""An engine without a model behind the same seam: deterministic text, faults on demand.

The tokenizer is a real byte-level one over 256 bytes and four special tokens; every answer spells
`FakeScript.text`, one byte a token, so counts and texts can be computed by hand.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from astrai.engine import GenerationRequest, HistogramSnapshot, Inspection, TokenEvent
from astrai.engine.errors import EngineDeadError, EngineStoppingError, QueueFullError, RequestError
from astrai.engine.inspection import PageCounts, RequestView
from astrai.engine.stats import EngineStats
from astrai.engine.step_log import StepRecord
from astrai.sampling import TokenLogprob
from astrai.structured import Grammar, GrammarCompiler, GrammarError
from astrai.text import ChatTemplate, Tokenizer

SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
VOCAB_SIZE = 300  # larger than the tokenizer's, as models pad theirs
END_ID = 258
MAX_SEQ_LEN = 600
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role') }}{% endif %}"
    "{% if m['content'] == 'refuse me' %}{{ raise_exception('refused on request') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.get('tool_calls', []) %}CALL {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: idx for idx, character in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    return Tokenizer(backend, bos_id=256, eos_ids=[END_ID], vocab_size=VOCAB_SIZE)


@dataclass
class FakeScript:
    """What the engine does. Change fields while it runs: later requests see them, those that run
    keep what they began with (but for `hold` and the permits, which are there to act on them).

    answers: what the next requests are answered, whole, one each; then
    text: what every request is answered, again and again until its limit; ends_after: tokens after
    which the end token comes. fail_at: token count at which a request ends with an error.
    delay_s: pause before each token; while `hold` is set nothing is generated. permits: a token
    waits for one (or half a second, since a held-back text gives the client nothing to react to).
    """

    text: str = "Once there was a fox who lived near a river and liked the cold morning air. "
    answers: list[str] = field(default_factory=list)
    ends_after: int | None = None
    fail_at: int | None = None
    delay_s: float = 0.0
    n_cached: int = 0
    queue_full: bool = False
    permits: threading.Semaphore | None = None
    hold: threading.Event = field(default_factory=threading.Event)


class FakeClient:
    """EngineClient with one thread per request."""

    def __init__(
        self, tokenizer: Tokenizer | None, script: FakeScript, max_seq_len: int = MAX_SEQ_LEN
    ) -> None:
        self.script = script
        self._max_seq_len = max_seq_len
        self.requests: list[GenerationRequest] = []
        self.is_dead = False
        self.is_stopping = False
        self._tokenizer = tokenizer
        self._ids = itertools.count()
        self.n_inspections = 0
        self.n_cancelled = 0  # requests that ended so, since the last reset
        self._cancelled: set[str] = set()
        self._open_ids: set[str] = set()
        self._grammars = GrammarCompiler(tokenizer, VOCAB_SIZE)
        self._counters = EngineStats()
        self._n_active = 0
        self._n_tasks = 0
        self._n_tokens = 0
        self._lock = threading.Lock()

    def submit(
        self, request: GenerationRequest, on_event: Callable[[list[TokenEvent]], None]
    ) -> str:
        if self.is_dead:
            raise EngineDeadError("the loop is dead")
        if self.is_stopping:
            raise EngineStoppingError("stopping")
        if self.script.queue_full:
            raise QueueFullError("the waiting queue is full", retry_after_s=3.2)
        request.params.validate(VOCAB_SIZE)
        room = self._max_seq_len - len(request.prompt_ids)
        if room < 1:
            raise RequestError("too long", "context_length_exceeded", "prompt")
        with self._lock:
            request_id = request.request_id or f"fake-{next(self._ids)}"
            self._open_ids.add(request_id)
            self.requests.append(request)
            self._n_active += 1
            self._n_tasks += 1
        run = threading.Thread(
            target=self._run, args=(request_id, request, room, on_event), daemon=True
        )
        run.start()
        return request_id

    def compile_grammar(self, grammar: Grammar) -> None:
        try:
            self._grammars.compile(grammar)
        except GrammarError as error:
            raise RequestError(str(error), "invalid_grammar", "grammar") from None

    def cancel(self, request_id: str) -> None:
        self._cancelled.add(request_id)

    def stats(self) -> dict[str, Any]:
        return {
            **self._counters.snapshot(),
            "total_tasks": self._n_tasks,
            "total_tokens": self._n_tokens,
            "active_tasks": self._n_active,
            "waiting_queue": 0,
            "preemptions": 0,
            "prefix_query_tokens": 8,
            "prefix_hit_tokens": 4,
            "prefix_miss_reasons": {"none": 1},
            "kv_pages": {"total": 4, "free": 1, "cached": 1, "held": 2},
            "memory_bytes": {"kv_cache": 1024},
        }

    def histograms(self) -> dict[str, HistogramSnapshot]:
        return self._counters.histograms()

    def inspect(self) -> Future[Inspection]:
        """One running request, and a tree of one edge whose text is the prompt of the last one."""
        self.n_inspections += 1
        prompt_ids = self.requests[-1].prompt_ids if self.requests else []
        edge: Any = {"node": 1, "parent": -1, "ref_count": 1, "namespace": ""}
        edge |= {"n_tokens": len(prompt_ids), "token_ids": prompt_ids[:48]}
        view = RequestView("fake-0", True, len(prompt_ids), 0, 0, len(prompt_ids), 0, 5, 0, 1.5)
        steps = [StepRecord(i, 100.0 + i, 0.25, 7 * (i == 1), i, i, None, ()) for i in (1, 2, 3)]
        future: Future[Inspection] = Future()
        pages = PageCounts(10, 5, 3, 2, 16)
        future.set_result(Inspection(104.0, 1, 0, [view], pages, 1, [edge], steps))
        return future

    def is_healthy(self) -> bool:
        return not self.is_dead

    def drain(self, timeout_s: float | None = None) -> bool:
        self.is_stopping = True
        end = time.monotonic() + (timeout_s or 0)
        while self._n_active and time.monotonic() < end:
            time.sleep(0.01)
        return not self._n_active

    def cancel_all(self) -> None:
        with self._lock:
            self._cancelled |= self._open_ids

    def _run(
        self,
        request_id: str,
        request: GenerationRequest,
        room: int,
        on_event: Callable[[list[TokenEvent]], None],
    ) -> None:
        try:
            self._generate(request_id, request, room, on_event)
        except RuntimeError:
            pass  # the loop of a server that has stopped
        finally:
            with self._lock:
                self._n_active -= 1
                self._counters.task_finished("length", 0.03, len(request.prompt_ids), 2)

    def _generate(
        self,
        request_id: str,
        request: GenerationRequest,
        room: int,
        on_event: Callable[[list[TokenEvent]], None],
    ) -> None:
        script, params = dataclasses.replace(self.script), request.params
        n_prompt = len(request.prompt_ids)

        def send(text: str, ids: list[int], n_output: int, **end: Any) -> None:
            logprobs = None
            if params.logprobs is not None:
                top = tuple((i, -0.5 - i) for i in range(params.logprobs))
                logprobs = [TokenLogprob(token_id, -0.25, top) for token_id in ids]
            fields = {"finish_reason": None, "stop_string": None, "error": None, **end}
            on_event(
                [
                    TokenEvent(
                        request_id,
                        text,
                        ids,
                        logprobs,
                        n_prompt=n_prompt,
                        n_cached=script.n_cached,
                        n_output=n_output,
                        **fields,
                    )
                ]
            )

        answer, ends_after = script.text.encode(), script.ends_after
        if script.answers:
            answer = script.answers.pop(0).encode()
            ends_after = len(answer)
        limit = min(params.max_tokens or room, room)
        raw = bytearray()
        said = 0  # characters of the text already sent
        pending: list[int] = []
        for n in range(1, limit + 1):
            while script.hold.is_set() and request_id not in self._cancelled:
                time.sleep(0.005)
            if script.permits is not None:
                script.permits.acquire(timeout=0.5)
            if script.delay_s:
                time.sleep(script.delay_s)
            if request_id in self._cancelled:
                self.n_cancelled += 1
                send("", pending, n - 1, finish_reason="cancelled")
                return
            if script.fail_at == n:
                send("", pending, n - 1, finish_reason="error", error="a fault on demand")
                return
            self._n_tokens += 1
            if ends_after is not None and n > ends_after and not params.ignore_eos:
                text = raw.decode(errors="ignore")
                send(text[said:], [*pending, END_ID], n, finish_reason="stop")
                return
            byte = answer[(n - 1) % len(answer)]
            raw.append(byte)
            pending.append(self._id_of(byte))
            text = raw.decode(errors="ignore") if self._tokenizer else ""
            stops = [(text.find(s), s) for s in params.stop if s in text]
            if stops:
                at, stop = min(stops)
                send(text[said:at], pending, n, finish_reason="stop", stop_string=stop)
                return
            held = max(
                (k for s in params.stop for k in range(1, len(s)) if text.endswith(s[:k])),
                default=0,
            )
            if n == limit:
                send(text[said:], pending, n, finish_reason="length")
                return
            if len(text) - held > said or request.every_token:
                send(text[said : len(text) - held], pending, n)
                said = max(said, len(text) - held)
                pending = []

    def _id_of(self, byte: int) -> int:
        return _ID_OF_BYTE[byte]


class FakeEngine:
    """What the server uses of an InferenceEngine."""

    def __init__(
        self,
        *,
        has_tokenizer: bool = True,
        has_template: bool = True,
        template: str = TEMPLATE,
        max_seq_len: int = MAX_SEQ_LEN,
        sampling_defaults: dict[str, float] | None = None,
    ) -> None:
        self.script = FakeScript()
        self.sampling_defaults = sampling_defaults or {}
        self.tokenizer = make_tokenizer() if has_tokenizer else None
        self.chat_template = ChatTemplate(template) if has_template and has_tokenizer else None
        self.config = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.max_seq_len = max_seq_len
        self.client = FakeClient(self.tokenizer, self.script, max_seq_len)

    def shutdown(self) -> None:
        self.client.is_stopping = True
        self.client.cancel_all()


_ID_OF_BYTE = {raw[0]: i for i, raw in enumerate(make_tokenizer().token_bytes()) if len(raw) == 1}
