"""Grammars to something that masks tokens: off the caller's thread, within limits, kept for reuse.

A grammar's text is bounded by bytes and depth. What a client wrote is tried out in a process of
its own first (`probe`), which bounds the CPU time, the memory and the stack that compiling it
takes. All methods may be called from any thread.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from astrai.structured.grammar import Grammar, GrammarError
from astrai.structured.probe import Probe, ProbeFault
from astrai.structured.sources import source_of
from astrai.structured.vocabulary import Vocabulary
from astrai.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

__all__ = ["CompiledGrammar", "GrammarBusyError", "GrammarCompiler", "GrammarLimits"]

_N_WORKERS = 2
_MAX_PENDING = 32
_N_KEPT = 128
_HARMLESS = ("json_object", "choice")  # kinds that hold no expression of a client's
_WAIT_S = 30.0  # for a grammar whose turn does not come
_NICENESS = 3  # of the workers: a step that wants the core gets it


_EXCERPT = re.compile(r"\s*\d*\s*(\||\^)")  # a line of the grammar, or what points into it


class GrammarBusyError(RuntimeError):
    """Too many grammars are being compiled; try again."""


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """max_bytes: of a grammar's text. max_depth: levels of a schema's JSON. compile_s: CPU seconds
    that compiling a grammar may take."""

    max_bytes: int = 64 * 1024
    max_depth: int = 64
    compile_s: float = 0.5


class CompiledGrammar:
    """A grammar at its beginning. Immutable; requests take matchers of their own from it."""

    def __init__(self, matcher: llguidance.LLMatcher, n_words: int) -> None:
        """Computes first_mask, int32 [n_words], which every answer begins with."""
        self._matcher = matcher
        self.first_mask: npt.NDArray[np.int32] = np.zeros(n_words, np.int32)
        matcher.unsafe_compute_mask_ptr(self.first_mask.ctypes.data, self.first_mask.nbytes)

    def new_matcher(self) -> llguidance.LLMatcher:
        """A matcher at the beginning."""
        return self._matcher.deep_copy()


class GrammarCompiler:
    """Compiles for one tokenizer."""

    def __init__(
        self, tokenizer: Tokenizer | None, vocab_size: int, limits: GrammarLimits | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._limits = limits or GrammarLimits()
        self._lock = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None
        self._vocabulary: Future[Vocabulary] | None = None
        self._idle_probes: list[Probe] = []
        weakref.finalize(self, _close_all, self._idle_probes)  # for who forgets to close
        self._is_closed = False
        # Compiled, refused or under way, the least recently used first.
        self._known: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._n_pending = 0

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, or find what was compiled. Blocks: about a second when the first grammar loads
        llguidance. Raises GrammarError for a grammar that cannot be used and GrammarBusyError."""
        if self._tokenizer is None:
            raise GrammarError("this model has no tokenizer, so no grammar can be followed")
        n_bytes = len(grammar.text.encode("utf-8", errors="surrogatepass"))
        if n_bytes > self._limits.max_bytes:
            raise GrammarError(
                f"the grammar has {n_bytes} bytes; at most {self._limits.max_bytes} are accepted"
            )
        try:
            return self._submit(grammar).result(_WAIT_S)
        except (FutureTimeoutError, CancelledError):
            raise GrammarBusyError("other grammars are being compiled; try again") from None

    def close(self) -> None:
        """Compile nothing any more. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._workers is not None:
                self._workers.shutdown(wait=False, cancel_futures=True)
            _close_all(self._idle_probes)

    def _submit(self, grammar: Grammar) -> Future[CompiledGrammar]:
        vocabulary = self._load().result()
        with self._lock:
            future = self._known.get(grammar)
            if future is not None:
                self._known.move_to_end(grammar)
                return future
            if self._n_pending >= _MAX_PENDING:
                raise GrammarBusyError("too many grammars are being compiled; try again")
            if self._is_closed:
                raise GrammarBusyError("the engine is shutting down")
            assert self._workers is not None
            self._n_pending += 1
            future = self._workers.submit(self._compile, grammar, vocabulary)
            self._known[grammar] = future
            while len(self._known) > _N_KEPT:
                self._known.popitem(last=False)
        future.add_done_callback(self._on_done)
        return future

    def _load(self) -> Future[Vocabulary]:
        """The vocabulary, built by a worker when the first grammar comes."""
        with self._lock:
            if self._vocabulary is None:
                assert self._tokenizer is not None
                self._workers = ThreadPoolExecutor(_N_WORKERS, "astrai-grammar", _step_back)
                self._vocabulary = self._workers.submit(
                    Vocabulary, self._tokenizer, self._vocab_size
                )
            return self._vocabulary

    def _on_done(self, _: Future[CompiledGrammar]) -> None:
        with self._lock:
            self._n_pending -= 1

    def _compile(self, grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
        import llguidance

        source = source_of(grammar, self._limits.max_depth)
        if grammar.kind not in _HARMLESS:
            self._try_out(source, vocabulary)
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(vocabulary.llguidance, source, log_level=0, limits=limits)
        if not matcher.is_error():
            compiled = CompiledGrammar(matcher, self._vocab_size // 32 + 1)
            if self._has_a_start(compiled):
                return compiled
            if not matcher.is_error() or matcher.get_error().startswith("NoExtension"):
                raise GrammarError("the grammar admits no text but the empty one, or none at all")
        raise GrammarError(f"the grammar does not compile: {_first_words(matcher.get_error())}")

    def _try_out(self, source: str, vocabulary: Vocabulary) -> None:
        """Raise GrammarError for a source that takes too much to compile."""
        with self._lock:
            probe = self._idle_probes.pop() if self._idle_probes else None
        if probe is None:
            probe = Probe(vocabulary.tokens, vocabulary.special_ids, self._limits.compile_s)
        try:
            probe.try_out(source)
        except ProbeFault:
            raise GrammarError(
                f"the grammar takes more than {self._limits.compile_s} s of CPU time, or too much "
                "memory, to compile; simplify it"
            ) from None
        finally:
            with self._lock:
                if not self._is_closed:
                    self._idle_probes.append(probe)
                    probe = None
            if probe is not None:
                probe.close()

    def _has_a_start(self, compiled: CompiledGrammar) -> bool:
        """May an answer begin with some token, and not only end before it has begun?"""
        mask = compiled.first_mask.view(np.uint32).copy()
        mask[self._vocab_size // 32] &= ~np.uint32(1 << (self._vocab_size % 32))
        return bool(mask.any())


def _close_all(probes: list[Probe]) -> None:
    while probes:
        probes.pop().close()


def _step_back() -> None:
    """Lower the priority of a worker's thread, where the system knows threads as Linux does."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _first_words(message: str) -> str:
    """What llguidance says, on one line; a fault inside it is told without its trace."""
    if message.startswith("panic"):
        return "it is too complex, or the vocabulary cannot spell it"
    lines = [line for line in message.splitlines() if not _EXCERPT.match(line)]
    return " ".join(" ".join(lines).split())[:400]
