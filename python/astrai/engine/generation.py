"""Blocking access to an `EngineClient`: requests in, whole texts or a stream of pieces out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from astrai.engine.client import EngineClient
from astrai.engine.engine_task import EventSink
from astrai.engine.errors import EngineStoppingError, GenerationError
from astrai.engine.request import GenerationRequest, TokenEvent
from astrai.engine.result import GenerateResult, Stop

__all__ = ["PieceStream", "RunningBatch", "error_of"]

T_co = TypeVar("T_co", covariant=True)


def error_of(event: TokenEvent) -> Exception | None:
    """The error to raise for an event that ended a request otherwise than by its own text."""
    if event.finish_reason == "error":
        return GenerationError(event.error or "the request failed")
    if event.finish_reason == "cancelled":
        return EngineStoppingError(event.error or "the request was cancelled")
    return None


class RunningBatch:
    """Submitted requests and the result they fill."""

    def __init__(self, client: EngineClient, requests: Sequence[GenerationRequest]) -> None:
        """Submits all requests or, when one is refused, none: the earlier ones are cancelled."""
        self._client = client
        self.result = GenerateResult(len(requests))
        self._request_ids: list[str] = []
        self._n_tokens = 0  # of all requests; changed by the engine's thread alone
        try:
            for idx, request in enumerate(requests):
                self._request_ids.append(client.submit(request, self._sink(idx)))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End the requests that still run."""
        for request_id in self._request_ids:
            self._client.cancel(request_id)

    def wait(self, timeout: float | None) -> list[str]:
        """The whole texts. Raises TimeoutError after cancelling the requests, and the error of a
        request that failed."""
        try:
            is_complete = self.result.wait_completion(timeout)
        except BaseException:  # KeyboardInterrupt: nobody will read what is still generated
            self.cancel()
            raise
        if not is_complete:
            self.cancel()
            raise TimeoutError(f"generation did not finish in {timeout} s; it was cancelled")
        return self.result.get_results()

    def wait_with_bar(self, timeout: float | None) -> list[str]:
        """As wait(), with a bar on stderr: requests that ended, and their tokens a second."""
        from tqdm import tqdm  # only for those who look

        pieces: PieceStream[tuple[int, str]] = PieceStream(self, False, timeout)
        began_s = time.monotonic()
        with tqdm(total=self.result.count, unit="prompt", dynamic_ncols=True) as bar:
            for _ in pieces:
                if self.result.n_ended != bar.n:
                    rate = self._n_tokens / max(time.monotonic() - began_s, 1e-9)
                    bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
                    bar.update(self.result.n_ended - bar.n)
            bar.update(self.result.count - bar.n)
        return self.result.get_results()

    def _sink(self, idx: int) -> EventSink:
        def on_events(events: list[TokenEvent]) -> None:
            for event in events:
                self._n_tokens += len(event.token_ids)
                if event.text:
                    self.result.append(event.text, idx)
                error = error_of(event)
                if error is not None:
                    self.result.fail(error, idx)
                elif event.finish_reason is not None:
                    self.result.append(Stop.STOP, idx)

        return on_events


class PieceStream(Generator[T_co, None, None], Generic[T_co]):
    """The pieces of a batch as they come: text of the only request, or (index, text) of several.

    Closing or dropping it cancels the requests. A class and not a generator function, since the
    `finally` of a generator that was never started does not run.
    """

    def __init__(self, batch: RunningBatch, is_single: bool, timeout: float | None) -> None:
        self._batch = batch
        self._is_single = is_single
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ready: deque[tuple[int, str | Stop]] = deque()
        self._n_open = batch.result.count

    def send(self, value: None) -> T_co:
        while self._n_open > 0:
            if not self._ready:
                self._wait()
                continue
            idx, piece = self._ready.popleft()
            if not isinstance(piece, Stop):
                result: Any = piece if self._is_single else (idx, piece)
                return result  # type: ignore[no-any-return]  # T_co follows is_single
            self._n_open -= 1
            error = self._batch.result.error(idx)
            if error is not None:
                self.throw(error)
        raise StopIteration

    def throw(  # type: ignore[override]  # the three-argument forms are deprecated
        self, error: BaseException | type[BaseException], /, *_: TracebackType | None
    ) -> T_co:
        self._n_open = 0
        self._batch.cancel()
        raise error

    def __del__(self) -> None:
        if getattr(self, "_n_open", 0) > 0:
            self._batch.cancel()

    def _wait(self) -> None:
        """Sleep until pieces arrive. Ends the stream with TimeoutError at the deadline."""
        remaining = None if self._deadline is None else self._deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            self.throw(
                TimeoutError(f"generation did not finish in {self._timeout} s; it was cancelled")
            )
        self._batch.result.wait(remaining)
        self._ready.extend(self._batch.result.pop_all())
