from __future__ import annotations

import threading

import pytest

from astrai.engine import STOP, GenerateResult


def test_pieces_are_taken_once_and_join_to_the_text() -> None:
    result = GenerateResult()
    result.append("a")
    result.append("b")
    assert result.pop_all() == [(0, "a"), (0, "b")]
    assert result.pop_all() == []
    assert result.get_results() == ["ab"]


def test_texts_are_kept_by_index() -> None:
    result = GenerateResult(2)
    result.append("x", 1)
    result.append("y", 0)
    assert result.get_results() == ["y", "x"]


def test_completion_waits_for_every_text_and_a_second_stop_counts_once() -> None:
    result = GenerateResult(2)
    result.append(STOP, 0)
    result.append(STOP, 0)
    assert not result.wait_completion(timeout=0.01)
    result.append(STOP, 1)
    assert result.wait_completion(timeout=0)


def test_text_that_comes_after_stop_is_ignored() -> None:
    result = GenerateResult()
    result.append(STOP)
    result.append("late")
    assert result.get_results() == [""]
    assert result.pop_all() == [(0, STOP)]


def test_the_word_stop_is_ordinary_text() -> None:
    result = GenerateResult()
    result.append("stop")
    assert not result.wait_completion(timeout=0)


def test_wait_sees_news_until_they_are_taken() -> None:
    result = GenerateResult()
    assert not result.wait(timeout=0.01)
    result.append("a")
    assert result.wait(timeout=0)
    result.pop_all()
    assert not result.wait(timeout=0.01)


def test_a_waiting_thread_is_woken() -> None:
    result = GenerateResult()
    done = []
    thread = threading.Thread(target=lambda: done.append(result.wait_completion(timeout=30)))
    thread.start()
    result.append(STOP)
    thread.join(30)
    assert done == [True]


def test_an_error_ends_its_text_and_is_raised_to_the_reader() -> None:
    result = GenerateResult(2)
    result.append("a", 0)
    result.append(STOP, 0)
    result.fail(KeyError("broken"), 1)
    assert result.wait_completion(timeout=0)
    with pytest.raises(KeyError, match="broken"):
        result.get_results()
    assert result.error(0) is None
    assert isinstance(result.error(1), KeyError)


def test_an_error_after_the_end_changes_nothing() -> None:
    result = GenerateResult()
    result.append(STOP)
    result.fail(KeyError("late"))
    assert result.get_results() == [""]
