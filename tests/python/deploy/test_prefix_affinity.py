"""Routing by pages: pure functions, no engine and no Ray."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai.deploy.prefix_affinity import PrefixAffinity, page_keys
from astrai.kvcache import RadixCache

NAMES = [f"engine-{i}" for i in range(8)]

names = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
loads = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40), min_size=1)
prompts = st.lists(st.integers(0, 3), max_size=24)


def idle(engines: list[str]) -> dict[str, int]:
    return dict.fromkeys(engines, 0)


def test_keys_are_the_hashes_of_the_engine_s_prefix_tree() -> None:
    ids = list(range(100, 148))
    tree = RadixCache(16)
    for page in range(3):
        assert tree.record(page, ids, page)

    assert page_keys([*ids, 7], 16) == [tree.hash_of(page) for page in range(3)]


@pytest.mark.parametrize(("n_tokens", "n_keys"), [(0, 0), (1, 0), (16, 0), (17, 1), (33, 2)])
def test_only_pages_that_a_hit_can_serve_have_keys(n_tokens: int, n_keys: int) -> None:
    assert len(page_keys(list(range(n_tokens)), 16)) == n_keys


@given(prompts, prompts, st.integers(1, 5))
def test_prompts_share_keys_as_long_as_they_share_pages(
    a: list[int], b: list[int], page_size: int
) -> None:
    keys_a, keys_b = page_keys(a, page_size), page_keys(b, page_size)

    for n in range(1, min(len(keys_a), len(keys_b)) + 1):
        is_shared = a[: n * page_size] == b[: n * page_size]
        assert (keys_a[:n] == keys_b[:n]) == is_shared


@given(prompts, loads, st.integers(1, 9))
def test_a_ranking_holds_every_engine_once_and_depends_on_nothing_else(
    ids: list[int], load_of: dict[str, int], max_lead: int
) -> None:
    keys = page_keys(ids, 2)

    ranking = PrefixAffinity(max_lead).rank(keys, load_of)

    assert sorted(ranking) == sorted(load_of)
    turned = dict(reversed(load_of.items()))
    assert PrefixAffinity(max_lead).rank(keys, turned) == ranking


@given(st.lists(prompts, max_size=60), names, st.integers(1, 9))
def test_no_engine_gets_further_ahead_than_it_may(
    asked: list[list[int]], engines: list[str], max_lead: int
) -> None:
    affinity = PrefixAffinity(max_lead)
    load_of = idle(engines)

    for ids in asked:
        keys = page_keys(ids, 2)
        chosen = affinity.rank(keys, load_of)[0]
        affinity.record(keys, chosen)
        load_of[chosen] += 1

        assert max(load_of.values()) - min(load_of.values()) <= max_lead


@given(prompts, names, st.sampled_from(NAMES))
def test_a_new_prompt_moves_only_to_an_engine_that_comes_or_from_one_that_goes(
    ids: list[int], engines: list[str], other: str
) -> None:
    keys = page_keys(ids, 2)
    fewer = [name for name in engines if name != other] or ["engine-last"]
    affinity = PrefixAffinity(1)

    before = affinity.rank(keys, idle(fewer))
    after = affinity.rank(keys, idle([*fewer, other]))

    assert [name for name in after if name != other] == before


@given(st.lists(st.integers(0, 9), min_size=5, max_size=24), names, st.sampled_from(NAMES))
def test_a_known_prompt_stays_where_it_was_when_an_engine_comes(
    ids: list[int], engines: list[str], other: str
) -> None:
    keys = page_keys(ids, 2)
    affinity = PrefixAffinity(1)
    affinity.record(keys, engines[-1])

    assert affinity.rank(keys, idle([*{*engines, other}]))[0] == engines[-1]


def test_new_prompts_spread_over_all_engines() -> None:
    affinity = PrefixAffinity(1)

    chosen = Counter(
        affinity.rank(page_keys(list(range(i, i + 200)), 16), idle(NAMES))[0] for i in range(800)
    )

    assert set(chosen) == set(NAMES)
    assert max(chosen.values()) < 2 * min(chosen.values())


def test_prompts_with_a_long_common_beginning_meet_without_any_memory() -> None:
    common = list(range(16 * 16))
    firsts = {
        PrefixAffinity(1).rank(page_keys([*common, *own], 16), idle(NAMES))[0]
        for own in ([i] * 40 for i in range(50))
    }

    assert len(firsts) == 1


def test_a_later_turn_follows_its_conversation_and_not_the_instruction() -> None:
    instruction = list(range(64))
    first, second = ([*instruction, *[n] * 32] for n in (1, 2))
    affinity = PrefixAffinity(4)
    affinity.record(page_keys(first, 16), "engine-0")
    affinity.record(page_keys(second, 16), "engine-1")

    for ids, name in ((first, "engine-0"), (second, "engine-1")):
        assert affinity.rank(page_keys([*ids, *[9] * 40], 16), idle(NAMES[:3]))[0] == name


def test_a_busy_engine_s_pages_do_not_count_and_the_next_holder_is_tried() -> None:
    keys = page_keys(list(range(100)), 16)
    affinity = PrefixAffinity(4)
    affinity.record(keys[:3], "engine-1")
    affinity.record(keys, "engine-0")

    def first(load: int) -> str:
        return affinity.rank(keys, {"engine-0": load, "engine-1": 2, "engine-2": 0})[0]

    assert first(3) == "engine-0"
    assert first(4) == "engine-1"


def test_a_beginning_that_all_prompts_have_draws_nothing() -> None:
    start = list(range(16))
    affinity = PrefixAffinity(8)
    affinity.record(page_keys([*start, 1], 16), "engine-0")

    firsts = {affinity.rank(page_keys([*start, *[n] * 80], 16), idle(NAMES))[0] for n in range(60)}

    assert len(firsts) > 4


def test_without_a_whole_page_the_least_loaded_engine_is_first() -> None:
    load_of = {"engine-0": 5, "engine-1": 3, "engine-2": 4}

    assert PrefixAffinity(9).rank([], load_of) == ["engine-1", "engine-2", "engine-0"]


def test_the_first_pages_are_forgotten_last() -> None:
    keys = page_keys(list(range(100)), 16)
    affinity = PrefixAffinity(1, max_keys=4)
    elsewhere = affinity.rank(keys, idle(NAMES))[-1]

    affinity.record(keys, elsewhere)

    assert affinity.rank(keys, idle(NAMES))[0] == elsewhere


def test_a_lead_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_lead is 0; it should be at least 1"):
        PrefixAffinity(0)
