"""`InferenceEngine` over the toy model: the calls of the specification."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest
from toy_model import END_ID, TOY_FAULT_ID, ToyConfig, ToyModel, toy_engine

from astrai.engine import (
    EngineDeadError,
    EngineStoppingError,
    GenerationError,
    InferenceEngine,
    RequestError,
)
from astrai.extension import ATTN_BACKEND, attn_backend
from astrai.sampling import Sampler, SamplingParams
from astrai.text import ChatTemplate

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPTS = ["a", "hello", "helloworld" * 5, "Q", "zz9"[:2]]


@pytest.fixture(scope="module")
def engine():  # type: ignore[no-untyped-def]
    with toy_engine(max_batch_size=4, kv_mode="paged", page_size=4, kv_tokens=400) as engine:
        yield engine


def until(condition, timeout: float = 20) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_one_prompt_gives_a_text_and_a_list_gives_a_list(engine: InferenceEngine) -> None:
    alone = [engine.generate(prompt, max_tokens=20, **GREEDY) for prompt in PROMPTS]
    assert all(isinstance(text, str) and len(text) >= 15 for text in alone)
    assert engine.generate(PROMPTS, max_tokens=20, **GREEDY) == alone


def test_token_ids_are_prompts_too(engine: InferenceEngine) -> None:
    ids = [engine.tokenizer.encode(prompt) for prompt in PROMPTS]
    texts = engine.generate(PROMPTS, max_tokens=9, **GREEDY)
    assert engine.generate(ids, max_tokens=9, **GREEDY) == texts
    assert engine.generate(ids[1], max_tokens=9, **GREEDY) == texts[1]


def test_a_stream_joined_is_the_text(engine: InferenceEngine) -> None:
    text = engine.generate("hello", max_tokens=30, **GREEDY)
    pieces = list(engine.generate("hello", stream=True, max_tokens=30, **GREEDY))
    assert "".join(pieces) == text and len(pieces) > 1


def test_a_stream_of_several_prompts_tells_their_indices(engine: InferenceEngine) -> None:
    texts = engine.generate(PROMPTS, max_tokens=12, **GREEDY)
    joined = [""] * len(PROMPTS)
    for idx, piece in engine.generate(PROMPTS, stream=True, max_tokens=12, **GREEDY):
        joined[idx] += piece
    assert joined == texts


def test_async_generation_gives_the_same_text(engine: InferenceEngine) -> None:
    async def collect(prompt: str) -> str:
        return "".join([piece async for piece in engine.generate_async(prompt, 12, **GREEDY)])

    async def collect_all() -> list[str]:
        return await asyncio.gather(*map(collect, PROMPTS))

    assert asyncio.run(collect_all()) == engine.generate(PROMPTS, max_tokens=12, **GREEDY)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_nothing_to_generate_does_not_reach_the_scheduler(
    engine: InferenceEngine, max_tokens: int
) -> None:
    before = engine.get_stats()["total_tasks"]

    async def collect() -> list[str]:
        return [piece async for piece in engine.generate_async("a", max_tokens=max_tokens)]

    assert engine.generate("a", max_tokens=max_tokens) == ""
    assert engine.generate(["a", "b"], max_tokens=max_tokens) == ["", ""]
    with closing(engine.generate("a", stream=True, max_tokens=max_tokens)) as stream:
        assert list(stream) == []
    assert asyncio.run(collect()) == []
    assert engine.generate([]) == []
    assert engine.get_stats()["total_tasks"] == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop_token_ids": (9999,)}, "stop_token_ids"),
        ({"logit_bias": {99999999: 5.0}}, "logit_bias"),
        ({"top_q": 1}, "top_q"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"ignore_eos": "no"}, "ignore_eos"),
    ],
)
def test_a_wrong_parameter_is_a_value_error_that_names_it(
    engine: InferenceEngine, options: dict[str, object], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        engine.generate("a", **options)
    with pytest.raises(ValueError, match=field):
        engine.generate_async("a", **options)


@pytest.mark.parametrize("timeout", ["1", True, float("nan"), 1e300])
def test_a_wrong_timeout_is_refused_before_anything_runs(
    engine: InferenceEngine, timeout: object
) -> None:
    before = engine.get_stats()["total_tasks"]
    for stream in (False, True):
        with pytest.raises(ValueError, match="timeout"):
            engine.generate("a", stream=stream, timeout=timeout)  # type: ignore[call-overload]
    assert engine.get_stats()["total_tasks"] == before


def test_no_stops_and_collections_of_stops_are_accepted(engine: InferenceEngine) -> None:
    text = engine.generate("a", max_tokens=6, **GREEDY)
    assert engine.generate("a", max_tokens=6, stop=None, stop_token_ids=None, **GREEDY) == text
    assert engine.generate("a", max_tokens=6, stop={text[0]}, **GREEDY) == ""


@pytest.mark.parametrize("prompt", ["", [[]], [VOCAB := 61], [-1], [[1], [2, 61]]])
def test_a_prompt_that_cannot_be_computed_is_refused(
    engine: InferenceEngine, prompt: object
) -> None:
    with pytest.raises(RequestError, match="prompt"):
        engine.generate(prompt, **GREEDY)  # type: ignore[call-overload]
    until(lambda: engine.get_stats()["active_tasks"] == 0)


@pytest.mark.parametrize("prompt", [5, None, {"a": 1}, [1, "a"], [None]])
def test_a_prompt_of_another_type_is_a_value_error(engine: InferenceEngine, prompt: object) -> None:
    with pytest.raises(ValueError, match="prompt"):
        engine.generate(prompt)  # type: ignore[call-overload]


def test_a_prompt_longer_than_the_context_is_refused_and_the_longest_is_served(
    engine: InferenceEngine,
) -> None:
    with pytest.raises(RequestError) as refused:
        engine.generate("a" * 256, **GREEDY)
    assert refused.value.code == "context_length_exceeded"
    assert "255" in str(refused.value)
    assert len(engine.generate("a" * 255, **GREEDY)) == 1


def test_max_tokens_is_clamped_to_the_context(engine: InferenceEngine) -> None:
    assert len(engine.generate("a" * 250, max_tokens=10**9, **GREEDY)) == 6


def test_a_stop_string_ends_the_text_before_it(engine: InferenceEngine) -> None:
    text = engine.generate("hello", max_tokens=30, **GREEDY)
    stop = text[10:13]
    expected = text[: text.index(stop)]
    assert engine.generate("hello", max_tokens=30, stop=stop, **GREEDY) == expected
    pieces = engine.generate("hello", stream=True, max_tokens=30, stop=(stop,), **GREEDY)
    assert "".join(pieces) == expected


def test_the_end_id_ends_a_text_and_gives_none(engine: InferenceEngine) -> None:
    forced = {"temperature": 0.0, "logit_bias": {END_ID: 100.0}}
    assert engine.generate("a", max_tokens=9, **forced) == ""
    assert len(engine.generate("a", max_tokens=9, min_tokens=4, **forced)) == 4


def test_a_seed_gives_the_same_text_alone_and_in_company(engine: InferenceEngine) -> None:
    alone = engine.generate("hello", max_tokens=25, seed=42)
    stream = engine.generate(PROMPTS, stream=True, max_tokens=40)
    assert engine.generate("hello", max_tokens=25, seed=42) == alone
    stream.close()
    assert engine.generate("hello", max_tokens=25, seed=43) != alone


def test_a_fault_in_one_request_leaves_its_neighbours_alone(engine: InferenceEngine) -> None:
    expected = engine.generate("hello", max_tokens=40, **GREEDY)
    stream = engine.generate("hello", stream=True, max_tokens=40, **GREEDY)
    first = next(stream)
    with pytest.raises(GenerationError, match="finite"):
        engine.generate([TOY_FAULT_ID, 1], **GREEDY)
    assert first + "".join(stream) == expected
    assert engine.client.is_healthy()
    assert engine.get_stats()["finished"]["error"] == 1  # type: ignore[index]


def test_one_failing_text_of_several_raises_in_both_ways(engine: InferenceEngine) -> None:
    prompts = [[1, 2], [TOY_FAULT_ID], [3]]
    with pytest.raises(GenerationError):
        engine.generate(prompts, max_tokens=5, **GREEDY)
    with pytest.raises(GenerationError):
        list(engine.generate(prompts, stream=True, max_tokens=5, **GREEDY))


class SlowModel(ToyModel):
    """Waits for `go` in every forward."""

    def __init__(self, **options: object) -> None:
        self.go = threading.Event()
        super().__init__(on_forward=lambda: self.go.wait(30) and None, **options)  # type: ignore[arg-type]


def idle(engine: InferenceEngine) -> bool:
    stats = engine.get_stats()
    pages = stats["kv_pages"]
    return (stats["active_tasks"], stats["waiting_queue"], pages["held"]) == (0, 0, 0)  # type: ignore[index]


def test_a_timeout_raises_after_cancelling() -> None:
    model = SlowModel()
    with toy_engine(model, kv_mode="paged", page_size=4) as engine:
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            engine.generate(["a", "b"], timeout=0.05, **GREEDY)
        stream = engine.generate("a", stream=True, timeout=0.05, **GREEDY)
        with pytest.raises(TimeoutError):
            list(stream)
        model.go.set()
        until(lambda: idle(engine))
        assert engine.get_stats()["finished"]["cancelled"] == 3  # type: ignore[index]


@pytest.mark.parametrize("end", ["close", "drop_unstarted", "drop_started", "throw"])
def test_a_stream_that_is_left_cancels_its_request(engine: InferenceEngine, end: str) -> None:
    before = engine.get_stats()["finished"]["cancelled"]  # type: ignore[index]
    stream = engine.generate("a", stream=True, max_tokens=250, **GREEDY)
    if end != "drop_unstarted":
        next(stream)
    if end == "close":
        stream.close()
        assert list(stream) == []
    elif end == "throw":
        with pytest.raises(KeyError):
            stream.throw(KeyError("reader"))
    del stream
    gc.collect()
    until(lambda: idle(engine))
    assert engine.get_stats()["finished"]["cancelled"] == before + 1  # type: ignore[index]


def test_an_async_generator_that_is_closed_cancels_its_request(engine: InferenceEngine) -> None:
    before = engine.get_stats()["finished"]["cancelled"]  # type: ignore[index]

    async def read_one() -> None:
        async with contextlib.aclosing(engine.generate_async("a", 250, **GREEDY)) as pieces:
            async for _ in pieces:
                break

    asyncio.run(read_one())
    until(lambda: idle(engine))
    assert engine.get_stats()["finished"]["cancelled"] == before + 1  # type: ignore[index]


def test_a_fault_of_the_loop_reaches_every_caller_and_later_ones() -> None:
    def fail() -> None:
        raise RuntimeError("secret detail")

    model = SlowModel()
    with toy_engine(model, max_batch_size=2) as engine:
        results: list[BaseException] = []

        def call() -> None:
            try:
                engine.generate(["a", "b"], **GREEDY)
            except BaseException as error:
                results.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: engine.get_stats()["total_tasks"] == 6)
        model.on_forward = fail
        model.go.set()
        for thread in threads:
            thread.join(20)
        assert len(results) == 3
        assert all(isinstance(error, GenerationError) for error in results)
        assert "secret" not in str(results[0])
        assert not engine.client.is_healthy()
        assert engine.get_stats()["active_tasks"] == 0
        with pytest.raises(EngineDeadError):
            engine.generate("a", **GREEDY)


def test_shutdown_ends_open_requests_and_is_idempotent() -> None:
    engine = toy_engine(max_batch_size=2)
    streams = [engine.generate("a", stream=True, max_tokens=250, **GREEDY) for _ in range(4)]
    next(streams[0])
    engine.shutdown()
    engine.shutdown()
    for stream in streams:
        with contextlib.suppress(EngineStoppingError):
            list(stream)
    with pytest.raises(EngineStoppingError):
        engine.generate("a", **GREEDY)
    assert not engine.client.is_healthy()


def test_the_backend_in_force_at_the_call_is_used_on_the_scheduler_thread(
    engine: InferenceEngine,
) -> None:
    seen: list[object] = []
    from astrai.extension import get_backend

    model = ToyModel()
    model.on_forward = lambda: seen.append(get_backend(use_default=False))
    with toy_engine(model) as engine:
        with attn_backend(ATTN_BACKEND.TORCH_NATIVE) as backend:
            stream = engine.generate("a", stream=True, max_tokens=3, **GREEDY)
        list(stream)
        assert seen and all(one is backend for one in seen)
        seen.clear()
        engine.generate("a", max_tokens=3, **GREEDY)
        assert set(seen) == {None}


def test_an_engine_backend_applies_where_no_context_is_open() -> None:
    from astrai.extension import get_backend

    seen: list[object] = []
    model = ToyModel()
    model.on_forward = lambda: seen.append(get_backend(use_default=False))
    with toy_engine(model, backend="torch_native") as engine:
        assert engine.backend_name == "torch_native"
        engine.generate("a", max_tokens=2, **GREEDY)
    assert [type(one).__name__ for one in seen] == ["TorchNativeBackend"] * 2


def test_a_failure_under_a_chosen_backend_ends_only_its_requests() -> None:
    from astrai.extension import get_backend

    model = ToyModel()

    def fail_under_a_choice() -> None:
        if get_backend(use_default=False) is not None:
            raise RuntimeError("cannot run float64")

    model.on_forward = fail_under_a_choice
    with toy_engine(model) as engine:
        with (
            attn_backend(ATTN_BACKEND.TORCH_NATIVE),
            pytest.raises(GenerationError, match="float64"),
        ):
            engine.generate("a", **GREEDY)
        assert len(engine.generate("a", max_tokens=3, **GREEDY)) >= 2
        assert engine.client.is_healthy()


def test_an_engine_without_tokenizer_takes_token_ids() -> None:
    with toy_engine(tokenizer=None) as engine:
        assert engine.generate([1, 2, 3], max_tokens=3, **GREEDY) == ""
        with pytest.raises(RequestError, match="no tokenizer"):
            engine.generate("abc")


@pytest.mark.parametrize(
    "options",
    [
        {"max_seq_len": 1000},
        {"max_seq_len": 1},
        {"max_seq_len": "5"},
        {"max_seq_len": "auto"},
        {"prefill_chunk": "5"},
        {"kv_mode": "x"},
        {"max_batch_size": 0},
        {"max_batch_size": 2.5},
        {"page_size": 0, "kv_mode": "paged"},
        {"kv_tokens": "5", "kv_mode": "paged"},
        {"prefill_chunk": -1},
        {"prefill_chunk": 1.5},
        {"max_queue": -1},
        {"max_queue": None},
        {"end_ids": (10**9,)},
        {"end_ids": ("a",)},
    ],
)
def test_a_wrong_engine_option_is_named(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        toy_engine(ToyModel(ToyConfig()), **options)


def test_params_replace_the_parameters_by_name(engine: InferenceEngine) -> None:
    by_name = {"max_tokens": 9, "seed": 5, "stop": ["zz"], **GREEDY}
    text = engine.generate("hello", **by_name)
    params = SamplingParams(**by_name)

    async def collect() -> str:
        return "".join([piece async for piece in engine.generate_async("hello", params=params)])

    assert engine.generate("hello", params=params) == text
    assert "".join(engine.generate("hello", stream=True, params=params)) == text
    assert asyncio.run(collect()) == text
    assert engine.generate(PROMPTS, params=SamplingParams(max_tokens=0)) == [""] * len(PROMPTS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"params": SamplingParams(), "max_tokens": 3}, "max_tokens in params or by name"),
        ({"params": SamplingParams(), "seed": 3}, "seed in params or by name"),
        ({"params": SamplingParams(top_p=7.0)}, "top_p"),
        ({"params": {"max_tokens": 3}}, "params must be SamplingParams"),
    ],
)
def test_params_are_checked(engine: InferenceEngine, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        engine.generate("a", **options)
    with pytest.raises(ValueError, match=told):
        engine.generate_async("a", **options)


def test_a_bar_shows_on_stderr_and_changes_nothing(
    engine: InferenceEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = engine.generate(PROMPTS, max_tokens=12, **GREEDY)
    assert capsys.readouterr() == ("", "")
    assert engine.generate(PROMPTS, max_tokens=12, progress=True, **GREEDY) == texts
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{len(PROMPTS)}/{len(PROMPTS)}" in shown.err and "tokens/s" in shown.err


def test_a_bar_keeps_timeouts_and_errors(engine: InferenceEngine) -> None:
    with pytest.raises(TimeoutError):
        engine.generate("a", timeout=0, progress=True, **GREEDY)
    with pytest.raises(GenerationError):
        engine.generate([[1], [TOY_FAULT_ID, 1]], max_tokens=4, progress=True, **GREEDY)


TEMPLATE = ChatTemplate(
    "{% if ends %}{{ ends }}{% endif %}"
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}"
    "{% if tools %}{{ tools[0].name }}{% endif %}{% if add_generation_prompt %}a{% endif %}",
    {},
)


def test_chat_is_generate_over_the_template() -> None:
    first = [{"role": "user", "content": "hello"}]
    second = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    options = {"max_tokens": 8, **GREEDY}
    with toy_engine(max_batch_size=2, chat_template=TEMPLATE) as engine:
        texts = engine.generate(["uhelloa", "uhelloabuca"], **options)
        assert engine.chat(first, **options) == texts[0]
        assert engine.chat([first, second], **options) == texts
        assert "".join(engine.chat(first, stream=True, **options)) == texts[0]
        with_tools = engine.chat(first, tools=[{"name": "xy"}], **options)
        assert with_tools == engine.generate("uhelloxya", **options)
        extra = engine.chat(first, template_options={"ends": "qq"}, **options)
        assert extra == engine.generate("qquhelloa", **options)


@pytest.mark.parametrize("messages", ["hello", [], [[]], [{"role": "user"}, []], None, [[1]]])
def test_messages_of_another_shape_are_refused(messages: Any) -> None:
    with toy_engine(chat_template=TEMPLATE) as engine, pytest.raises(ValueError, match="messages"):
        engine.chat(messages)


def test_chat_without_a_template_says_so(engine: InferenceEngine) -> None:
    with pytest.raises(RequestError, match="chat template"):
        engine.chat([{"role": "user", "content": "a"}])


def test_a_bias_of_more_tokens_than_fit_is_refused_and_the_most_that_fit_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sampler, "max_edits", 12)
    with toy_engine() as engine:

        def generate(n_biased: int, **options: Any) -> None:
            bias = dict.fromkeys(range(n_biased), 1.0)
            engine.generate([5, 6, 7], max_tokens=4, logit_bias=bias, temperature=0.0, **options)

        generate(12)
        generate(5, presence_penalty=0.5)  # beside 3 tokens of the prompt and 4 of the answer
        with pytest.raises(RequestError, match="has 13 tokens; this engine takes 12") as caught:
            generate(13)
        assert caught.value.param == "logit_bias"
        with pytest.raises(RequestError, match="has 6 tokens; this engine takes 5 "):
            generate(6, presence_penalty=0.5)


def test_stop_ids_count_once_and_only_as_many_as_fit_can_be_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sampler, "max_edits", 12)
    with toy_engine() as engine:

        def generate(stop_ids: Iterable[int], **options: Any) -> None:
            engine.generate(
                [5, 6, 7], max_tokens=4, stop_token_ids=[*stop_ids], temperature=0.0, **options
            )

        generate(range(30))  # nothing is masked
        generate([*range(11), *range(11), END_ID], min_tokens=1)
        generate(range(4), min_tokens=1, repetition_penalty=1.1)
        with pytest.raises(RequestError, match="has 13 tokens; this engine takes 12") as caught:
            generate(range(12), min_tokens=1)
        assert caught.value.param == "stop_token_ids"
        with pytest.raises(RequestError, match="has 6 tokens; this engine takes 5 "):
            generate(range(5), min_tokens=1, repetition_penalty=1.1)
        with pytest.raises(RequestError, match="logit_bias has 12 tokens; this engine takes 11"):
            generate([], min_tokens=1, logit_bias=dict.fromkeys(range(12), 1.0))
