"""The scheduler's thread through the `EngineClient`: events, budgets, preemption, limits."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest
from ahead_executor import run_engines_ahead
from toy_model import END_ID, Collector, ToyModel, toy_engine

from astrai.engine import (
    AsyncEventRouter,
    EngineDeadError,
    EngineStoppingError,
    GenerationRequest,
    InferenceEngine,
    QueueFullError,
    RequestError,
    TokenEvent,
)
from astrai.engine.errors import DeviceLostError
from astrai.engine.request import merge_events
from astrai.extension import TorchNativeBackend, current_selection
from astrai.sampling import SamplingParams, TokenLogprob

PROMPTS = [[i, i + 1, 7, 7, 7, i] * (1 + i % 4) for i in range(10)]


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]


def run_all(
    engine: InferenceEngine, requests: list[GenerationRequest]
) -> tuple[list[list[int]], list[TokenEvent]]:
    """Token ids and last event of each request, submitted together."""
    sink = Collector()
    ids = [engine.client.submit(request, sink) for request in requests]
    last = {event.request_id: event for event in sink.wait(len(ids))}
    return [sink.token_ids(i) for i in ids], [last[i] for i in ids]


def requests_of(params: SamplingParams) -> list[GenerationRequest]:
    return [GenerationRequest(prompt, params) for prompt in PROMPTS]


@pytest.fixture(params=["step by step", "ahead"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything holds for both ways of running the loop."""
    if request.param == "ahead":
        run_engines_ahead(monkeypatch)
    return str(request.param)


POOLS = {
    "contiguous": {},
    "paged": {"kv_mode": "paged", "page_size": 4, "kv_tokens": 1024},
    "page_of_one": {"kv_mode": "paged", "page_size": 1, "kv_tokens": 300},
    "tight": {"kv_mode": "paged", "page_size": 4, "kv_tokens": 100},
}
PARAMS = [
    greedy(24),
    SamplingParams(seed=3, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(
        temperature=0,
        max_tokens=24,
        ignore_eos=True,
        frequency_penalty=0.9,
        presence_penalty=0.4,
        repetition_penalty=1.2,
    ),
]


@pytest.fixture(scope="module")
def expected() -> list[list[list[int]]]:
    """Every request alone in an engine of its own mode, for each of PARAMS."""
    with toy_engine(max_batch_size=1) as engine:
        return [
            [run_all(engine, [request])[0][0] for request in requests_of(params)]
            for params in PARAMS
        ]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("prefill_chunk", [3, None])
@pytest.mark.parametrize("case", range(len(PARAMS)))
def test_tokens_do_not_depend_on_company_chunks_pool_or_preemption(
    expected: list[list[list[int]]], pool: str, prefill_chunk: int | None, case: int
) -> None:
    with toy_engine(max_batch_size=5, prefill_chunk=prefill_chunk, **POOLS[pool]) as engine:
        for _ in range(2):  # the second time with a warm prefix cache
            token_ids, last = run_all(engine, requests_of(PARAMS[case]))
            assert token_ids == expected[case]
            assert {event.finish_reason for event in last} == {"length"}
            assert [event.n_output for event in last] == [24] * len(PROMPTS)
        stats = engine.get_stats()
    if pool == "tight":
        assert stats["preemptions"] > 0  # type: ignore[operator]
    if pool == "paged":
        assert last[3].n_cached > 0


def test_logprobs_come_one_for_each_token_through_a_preemption() -> None:
    with toy_engine(max_batch_size=5, **POOLS["tight"]) as engine:
        sink = Collector()
        for prompt in PROMPTS:
            engine.client.submit(GenerationRequest(prompt, greedy(30, logprobs=1)), sink)
        sink.wait(len(PROMPTS))
        assert engine.get_stats()["preemptions"] > 0  # type: ignore[operator]
    for event in sink.events:
        assert event.logprobs is not None
        assert [entry.token_id for entry in event.logprobs] == event.token_ids
        assert all(entry.top[0][0] == entry.token_id for entry in event.logprobs)


def test_text_state_survives_preemption() -> None:
    stop = "qX"
    with toy_engine(max_batch_size=1) as engine:
        texts = [
            engine.generate(p, max_tokens=40, temperature=0.0, ignore_eos=True) for p in PROMPTS
        ]
    stop = texts[5][29:32]
    cut = [text.partition(stop)[0] for text in texts]
    with toy_engine(max_batch_size=5, **POOLS["tight"]) as engine:
        again = engine.generate(PROMPTS, max_tokens=40, temperature=0.0, ignore_eos=True, stop=stop)
        assert engine.get_stats()["preemptions"] > 0  # type: ignore[operator]
    assert again == cut and cut != texts


def test_all_events_of_a_step_reach_a_shared_sink_in_one_call() -> None:
    with toy_engine(max_batch_size=4, max_queue=8) as engine:
        sink = Collector()
        with sink.held():  # none ends before the last one is there
            for i in range(4):
                engine.client.submit(GenerationRequest([i], greedy(20)), sink)
        sink.wait(4)
    assert max(len(call) for call in sink.calls) == 4
    for call in sink.calls:
        assert len({event.request_id for event in call}) == len(call)


def test_no_event_waits_for_the_step_behind_it() -> None:
    """Also where the pool runs full, so that a plan needs the results of the step before."""
    with toy_engine(
        max_batch_size=4, kv_mode="paged", page_size=4, kv_tokens=64, max_seq_len=64
    ) as engine:
        sink = Collector()
        with sink.held():
            for i in range(4):
                engine.client.submit(GenerationRequest([i], greedy(40)), sink)
        sink.wait(4)
        assert engine.get_stats()["preemptions"]
    for call in sink.calls:
        assert len({event.request_id for event in call}) == len(call)


def test_with_a_target_no_event_waits_for_the_next_launch() -> None:
    n_waiting: list[int] = []  # tokens that readers have not been told of, at each launch
    model = ToyModel()
    with toy_engine(model, itl_target_ms=1000.0) as engine:
        sink = Collector()

        def look() -> None:
            n_drawn = engine.get_stats()["total_tokens"]
            n_waiting.append(n_drawn - sum(len(event.token_ids) for event in sink.events))  # type: ignore[operator]

        model.on_forward = look
        for i in range(3):
            request = GenerationRequest([i] * 20, greedy(20), every_token=True)
            engine.client.submit(request, sink)
        sink.wait(3)
    assert len(n_waiting) >= 20 and set(n_waiting) == {0}


def test_usage_counts_tokens_and_the_finish_reason_tells_the_truth() -> None:
    with toy_engine() as engine:
        forced = SamplingParams(temperature=0, max_tokens=9, logit_bias={END_ID: 100})
        stopped = run_all(engine, [GenerationRequest([1, 2, 3], forced)])[1][0]
        ignored = run_all(
            engine,
            [
                GenerationRequest(
                    [1, 2, 3], greedy(9, logit_bias={END_ID: 100}, stop_token_ids=(5,))
                )
            ],
        )[1][0]
        own_stop = SamplingParams(
            temperature=0, max_tokens=9, logit_bias={5: 100}, stop_token_ids=(5,)
        )
        by_id = run_all(engine, [GenerationRequest([1, 2, 3], own_stop)])[1][0]
    assert (stopped.finish_reason, stopped.n_prompt, stopped.n_output) == ("stop", 3, 1)
    assert (ignored.finish_reason, ignored.n_output) == ("length", 9)
    assert (by_id.finish_reason, by_id.n_output, by_id.text) == ("stop", 1, "")


def test_a_request_that_fills_the_pool_alone_ends_with_length() -> None:
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=32, max_seq_len=64) as engine:
        request = GenerationRequest([1] * 10, greedy(1000))
        (token_ids,), (last,) = run_all(engine, [request])
        assert (len(token_ids), last.finish_reason) == (23, "length")
        with pytest.raises(RequestError) as refused:
            engine.client.submit(GenerationRequest([1] * 33), Collector())
        assert refused.value.code == "context_length_exceeded"
        # The refusal kept nobody waiting.
        assert len(run_all(engine, [GenerationRequest([2], greedy(3))])[0][0]) == 3


def test_a_cached_prompt_of_whole_pages_gets_the_room_of_a_new_one() -> None:
    # 7 of the pool's 8 pages; a hit leaves out the last one, whose copy then takes the eighth.
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=32, max_seq_len=64) as engine:
        request = GenerationRequest([1, 2, 3, 4] * 7, greedy(5))
        (cold,), _ = run_all(engine, [request])
        (warm,), (last,) = run_all(engine, [request])
        assert last.n_cached == 24
        assert len(cold) == 5 and warm == cold


def test_held_text_is_released_by_a_cancel(mode: str) -> None:
    gate = threading.Semaphore(0)
    model = ToyModel()
    model.on_forward = lambda: gate.acquire(timeout=30) and None
    with toy_engine(model) as engine:
        sink = Collector()
        request = GenerationRequest(
            [1], SamplingParams(max_tokens=50, logit_bias={0: 100}, stop=("aaaaaaaaaaaa",))
        )
        request_id = engine.client.submit(request, sink)
        gate.release(3)
        n_told = (
            2 if mode == "ahead" else 3
        )  # ahead, the fourth forward waits before the third is told
        while engine.get_stats()["total_tokens"] != n_told:
            time.sleep(0.002)
        engine.client.cancel(request_id)
        engine.client.cancel(request_id)
        engine.client.cancel("req-unknown")
        gate.release(5)
        (last,) = sink.wait()
        assert last.finish_reason == "cancelled"
        assert set("".join(event.text for event in sink.events)) == {"a"}
        assert len(sink.token_ids(request_id)) == last.n_output <= 5


def test_a_queued_request_can_be_cancelled() -> None:
    gate = threading.Event()
    model = ToyModel()
    model.on_forward = lambda: gate.wait(30) and None
    with toy_engine(model, max_batch_size=1) as engine:
        running, queued = Collector(), Collector()
        engine.client.submit(GenerationRequest([1], greedy(3)), running)
        queued_id = engine.client.submit(GenerationRequest([1], greedy(3)), queued)
        engine.client.cancel(queued_id)
        gate.set()
        assert queued.wait()[0].finish_reason == "cancelled"
        assert running.wait()[0].finish_reason == "length"


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": 5},
        {"namespace": "\ud83d"},
        {"params": greedy(3, stop=("a\ud83d",))},
        {"params": greedy(3, stop=("x" * 10**6,))},
        {"params": greedy(3, stop_token_ids=(999_999_999,))},
        {"params": SamplingParams(min_tokens=10**30, max_tokens=None)},
        {"params": SamplingParams(top_k=10**30, seed=2**64 - 1, max_tokens=3)},
    ],
)
def test_odd_requests_are_refused_or_served_and_the_engine_lives(wrong: dict[str, object]) -> None:
    with toy_engine() as engine:
        neighbour, sink = Collector(), Collector()
        engine.client.submit(GenerationRequest([2], greedy(30)), neighbour)
        try:
            engine.client.submit(GenerationRequest([1], **wrong), sink)  # type: ignore[arg-type]
            sink.wait()
        except RequestError as error:
            assert error.param in wrong or error.param in str(wrong["params"])
        assert neighbour.wait()[0].n_output == 30
        assert engine.client.is_healthy()


def test_a_sink_that_cannot_be_a_key_is_refused_at_submit() -> None:
    class Unhashable(Collector):
        __hash__ = None  # type: ignore[assignment]

    with toy_engine() as engine:
        with pytest.raises(TypeError, match="unhashable"):
            engine.client.submit(GenerationRequest([1]), Unhashable())
        assert engine.get_stats()["total_tasks"] == 0


def test_a_full_queue_refuses_with_a_hint_when_to_retry() -> None:
    gate = threading.Event()
    model = ToyModel()
    model.on_forward = lambda: gate.wait(30) and None
    with toy_engine(model, max_batch_size=1, max_queue=2) as engine:
        sink = Collector()
        for _ in range(3):
            engine.client.submit(GenerationRequest([1], greedy(2)), sink)
        with pytest.raises(QueueFullError) as refused:
            engine.client.submit(GenerationRequest([1], greedy(2)), sink)
        assert refused.value.retry_after_s >= 1
        gate.set()
        sink.wait(3)
        run_all(engine, [GenerationRequest([1], greedy(2))])


def test_draining_refuses_new_requests_and_finishes_open_ones() -> None:
    with toy_engine() as engine:
        sink = Collector()
        for i in range(6):
            engine.client.submit(GenerationRequest([i], greedy(50)), sink)
        assert engine.client.drain(timeout_s=30)
        assert [event.finish_reason for event in sink.wait(6)] == ["length"] * 6
        with pytest.raises(EngineStoppingError):
            engine.client.submit(GenerationRequest([1]), sink)
        assert engine.client.is_healthy()


def test_draining_gives_up_at_its_time_limit() -> None:
    gate = threading.Event()
    model = ToyModel()
    model.on_forward = lambda: gate.wait(30) and None
    with toy_engine(model) as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([1], greedy(2)), sink)
        assert not engine.client.drain(timeout_s=0.02)
        gate.set()
        assert engine.client.drain(timeout_s=30)


def test_a_sink_that_raises_loses_its_request_and_nobody_else_does() -> None:
    def broken(events: list[TokenEvent]) -> None:
        raise OSError("pipe closed")

    with toy_engine() as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([1], greedy(200)), broken)
        engine.client.submit(GenerationRequest([2], greedy(30)), sink)
        assert sink.wait()[0].n_output == 30
        assert engine.client.drain(timeout_s=30)
        assert engine.get_stats()["finished"]["cancelled"] == 1  # type: ignore[index]


def test_many_threads_may_submit_and_cancel() -> None:
    with toy_engine(max_batch_size=4, max_queue=500, **POOLS["tight"]) as engine:
        sink = Collector()

        def submit_some(base: int) -> None:
            for i in range(10):
                request = GenerationRequest([base, i, 3], greedy(12))
                request_id = engine.client.submit(request, sink)
                if i % 3 == 0:
                    engine.client.cancel(request_id)

        threads = [threading.Thread(target=submit_some, args=(base,)) for base in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = sink.wait(50)
        assert len({event.request_id for event in last}) == len(last) == 50
        stats = engine.get_stats()
        assert stats["total_tasks"] == 50
        assert (stats["active_tasks"], stats["waiting_queue"]) == (0, 0)


def test_a_model_without_text_tells_every_token_at_once() -> None:
    with toy_engine(tokenizer=None) as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([1, 2], greedy(6)), sink)
        sink.wait()
    assert [len(event.token_ids) for event in sink.events] == [1] * 6


def test_stats_have_the_four_counters_and_the_latencies() -> None:
    with toy_engine(**POOLS["paged"]) as engine:
        run_all(engine, requests_of(greedy(5)))
        stats = engine.get_stats()
    assert stats["total_tasks"] == len(PROMPTS)
    assert stats["total_tokens"] == 5 * len(PROMPTS)
    assert stats["active_tasks"] == 0 and stats["waiting_queue"] == 0
    assert stats["finished"] == {"stop": 0, "length": len(PROMPTS), "error": 0, "cancelled": 0}
    for key in ("ttft_s", "itl_s"):
        values = stats[key]
        assert isinstance(values, dict)
        assert 0 < values["p50"] <= values["p90"] <= values["p99"]
    assert 0 < stats["host_s"]["p50"] < stats["itl_s"]["p99"]
    pages = stats["kv_pages"]
    assert isinstance(pages, dict)
    assert pages["free"] + pages["cached"] == pages["total"] == 256


def test_host_work_is_a_step_without_what_is_computed(mode: str) -> None:
    class SlowModel(ToyModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(0.05)
            return super().forward(*args, **kwargs)

    with toy_engine(SlowModel()) as engine:
        run_all(engine, requests_of(greedy(5)))
        host_s, itl_s = (engine.get_stats()[key]["p50"] for key in ("host_s", "itl_s"))
    assert itl_s > 0.05
    if mode != "ahead":  # its pretended device computes within the launch
        assert host_s < 0.05


def test_host_work_begins_with_what_clients_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_engine() as engine:
        accept = engine._scheduler._publisher.accept
        monkeypatch.setattr(
            engine._scheduler._publisher, "accept", lambda task: (time.sleep(0.02), accept(task))
        )
        time.sleep(0.5)  # the thread is asleep, which is no work
        run_all(engine, [GenerationRequest([1], greedy(1))])
        host = engine._scheduler.histograms()["host_s"]
    assert sum(host.counts) == 1 and 0.02 <= host.total < 0.5


def test_a_router_gives_every_stream_its_own_events() -> None:
    async def collect(router: AsyncEventRouter, prompt: list[int]) -> list[int]:
        request = GenerationRequest(prompt, greedy(15), every_token=True)
        return [i async for event in router.stream(request) for i in event.token_ids]

    async def collect_all(engine: InferenceEngine) -> list[list[int]]:
        router = AsyncEventRouter(engine.client)
        return await asyncio.gather(*(collect(router, prompt) for prompt in PROMPTS))

    with toy_engine() as engine:
        alone = run_all(engine, requests_of(greedy(15)))[0]
        assert asyncio.run(collect_all(engine)) == alone


def test_a_router_raises_what_submit_raises() -> None:
    async def collect(engine: InferenceEngine) -> None:
        async for _ in AsyncEventRouter(engine.client).stream(GenerationRequest([])):
            pass

    with toy_engine() as engine, pytest.raises(RequestError):
        asyncio.run(collect(engine))


def test_events_that_piled_up_are_told_as_one() -> None:
    def event(text: str, token_ids: list[int], reason: str | None, n_output: int) -> TokenEvent:
        logprobs = [TokenLogprob(i, -1.0, ()) for i in token_ids]
        return TokenEvent("r", text, token_ids, logprobs, reason, None, None, 3, 0, n_output)  # type: ignore[arg-type]

    merged = merge_events([event("a", [1], None, 1), event("bc", [2, 3], "length", 3)])
    assert (merged.text, merged.token_ids, merged.n_output) == ("abc", [1, 2, 3], 3)
    assert merged.finish_reason == "length"
    assert merged.logprobs is not None and len(merged.logprobs) == 3


def test_a_step_is_launched_before_the_tokens_of_the_last_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = run_engines_ahead(monkeypatch)
    with toy_engine(max_batch_size=5, **POOLS["paged"]) as engine:
        run_all(engine, requests_of(greedy(24)))
        assert executors[0].most_in_flight == 2
        assert not executors[0].in_flight


def test_events_of_a_step_go_out_behind_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what their readers do with them runs while the thread waits, and not beside it."""
    executor = run_engines_ahead(monkeypatch)
    n_launched = 0
    told: list[tuple[int, int]] = []
    all_told = threading.Event()

    def sink(events: list[TokenEvent]) -> None:
        told.append((events[0].n_output, n_launched))
        if events[0].finish_reason is not None:
            all_told.set()

    with toy_engine() as engine:
        launch = executor[0].launch

        def counted(group: Any, slots: list[int]) -> Any:
            nonlocal n_launched
            n_launched += 1
            return launch(group, slots)

        monkeypatch.setattr(executor[0], "launch", counted)
        request = GenerationRequest([1], greedy(6), every_token=True)
        engine.client.submit(request, sink)
        assert all_told.wait(30)
    # The token of step k while step k + 1 is computed and k + 2 is launched; six steps in all.
    assert told == [(1, 3), (2, 4), (3, 5), (4, 6), (5, 6), (6, 6)]


def test_a_request_that_stops_unforeseen_leaves_its_neighbours_alone(
    expected: list[list[list[int]]],
) -> None:
    """Ahead, the stopped requests are part of one step too many, and their rows are taken again."""
    stops = [ids[5] for ids in expected[0]]
    with toy_engine(max_batch_size=3, **POOLS["paged"]) as engine:
        requests = []
        for prompt, stop in zip(PROMPTS, stops, strict=True):
            requests.append(GenerationRequest(prompt, greedy(24)))
            requests.append(GenerationRequest(prompt, greedy(24, stop_token_ids=(stop,))))
        token_ids, last = run_all(engine, requests)
    assert token_ids[::2] == expected[0]
    for ids, whole, stop in zip(token_ids[1::2], expected[0], stops, strict=True):
        assert ids == whole[: whole.index(stop) + 1]
    assert {event.finish_reason for event in last[1::2]} == {"stop"}


def test_a_fault_of_the_device_ends_every_request_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = run_engines_ahead(monkeypatch)
    with toy_engine() as engine:
        sink = Collector()
        for i in range(6):
            engine.client.submit(GenerationRequest([i], greedy(200)), sink)
        sink.wait_events(4)
        executors[0].fault = RuntimeError("an illegal access, far from the host")
        reasons = {event.finish_reason for event in sink.wait(6)}
        assert reasons == {"error"} and not engine.client.is_healthy()
        with pytest.raises(EngineDeadError):
            engine.client.submit(GenerationRequest([1]), sink)
    assert not executors[0].in_flight  # also the step that was launched behind it


def test_a_fault_of_the_loop_waits_for_the_step_that_was_launched_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = run_engines_ahead(monkeypatch)
    with toy_engine() as engine:
        publisher = engine._scheduler._publisher
        publish, n_calls = publisher.publish, itertools.count()

        def publish_twice(*args: Any) -> Any:
            if next(n_calls) == 2:
                raise RuntimeError("no text for this")
            return publish(*args)

        monkeypatch.setattr(publisher, "publish", publish_twice)
        run_all(engine, [GenerationRequest([1], greedy(20))])
        engine._scheduler._thread.join(30)
    assert executors[0].most_in_flight == 2 and not executors[0].in_flight


def test_a_launch_that_fails_waits_for_the_groups_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = run_engines_ahead(monkeypatch)
    with toy_engine() as engine:
        executor = executors[0]
        launch, n_at_fault = executor.launch, []

        def launch_of_a_client(group: Any, slots: list[int]) -> Any:
            if group.selection.backend is None and group.starts[0] > 8:
                n_at_fault.append(len(executor.in_flight))
                raise MemoryError("no room to launch")
            return launch(group, slots)

        monkeypatch.setattr(executor, "launch", launch_of_a_client)
        with TorchNativeBackend():
            selected = current_selection()
        requests = [GenerationRequest([1], greedy(90), selection=s) for s in (selected, None)]
        _, last = run_all(engine, requests)
        engine._scheduler._thread.join(30)
    assert {event.finish_reason for event in last} == {"error"}
    assert n_at_fault[0] >= 2 and not executor.in_flight


def test_a_stop_waits_for_the_step_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = run_engines_ahead(monkeypatch)
    with toy_engine() as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([1], greedy(200)), sink)
        sink.wait_events(2)
    assert sink.wait()[0].finish_reason == "cancelled"
    assert not executors[0].in_flight


def test_a_forward_that_fails_takes_only_the_requests_of_its_backend(mode: str) -> None:
    class Broken(TorchNativeBackend):
        name = "broken"

    def fail_under_broken() -> None:
        if isinstance(current_selection().backend, Broken):
            raise RuntimeError("this backend cannot")

    model = ToyModel(on_forward=fail_under_broken)
    with toy_engine(model, max_batch_size=6) as engine:
        sink = Collector()
        fine = [engine.client.submit(GenerationRequest([i], greedy(30)), sink) for i in range(3)]
        with Broken():
            engine.client.submit(GenerationRequest([5], greedy(30)), sink)
        last = {event.request_id: event for event in sink.wait(4)}
    assert [last.pop(request_id).finish_reason for request_id in fine] == ["length"] * 3
    assert [event.finish_reason for event in last.values()] == ["error"]


def test_a_lost_device_is_the_fault_of_no_backend(mode: str) -> None:
    def lose_the_device() -> None:
        if isinstance(current_selection().backend, TorchNativeBackend):
            raise DeviceLostError("a kernel has failed")

    with toy_engine(ToyModel(on_forward=lose_the_device), max_batch_size=6) as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([1], greedy(200)), sink)
        sink.wait_events(2)
        with TorchNativeBackend():
            engine.client.submit(GenerationRequest([5], greedy(30)), sink)
        assert {event.finish_reason for event in sink.wait(2)} == {"error"}
        assert not engine.client.is_healthy()


def test_an_end_that_comes_in_the_step_of_a_fault_is_told(mode: str) -> None:
    """A request that is over when the loop fails is not open any more, yet somebody waits."""

    class Broken(TorchNativeBackend):
        name = "broken"

    first_step, both_are_in = threading.Event(), threading.Event()

    def fail_when_both_are_in() -> None:
        if not both_are_in.is_set():  # the step of a request that is there before them
            first_step.set()
            assert both_are_in.wait(10)
            return
        if isinstance(current_selection().backend, Broken):
            raise RuntimeError("this backend cannot")
        raise MemoryError("nor can the default one")

    with toy_engine(ToyModel(on_forward=fail_when_both_are_in), max_batch_size=4) as engine:
        sink = Collector()
        engine.client.submit(GenerationRequest([4], greedy(1)), sink)
        assert first_step.wait(10)
        with Broken():
            chosen = engine.client.submit(GenerationRequest([5], greedy(30)), sink)
        other = engine.client.submit(GenerationRequest([6], greedy(30)), sink)
        both_are_in.set()
        last = {event.request_id: event for event in sink.wait(3)}
    assert last[chosen].error == "this backend cannot"
    assert last[other].finish_reason == "error"
