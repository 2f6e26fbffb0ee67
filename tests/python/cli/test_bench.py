"""`astrai bench`: workloads that repeat, figures by hand, a run against a server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai.cli.bench import main
from astrai.cli.bench.client import Answer
from astrai.cli.bench.report import figures, table
from astrai.cli.bench.workload import PRESETS, Workload, WorkloadError

lengths = st.tuples(st.integers(1, 30), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    n=st.integers(1, 20),
    input_len=lengths,
    output_len=lengths,
    prefix=st.integers(0, 40),
    rate=st.none() | st.floats(0.1, 100),
    vocabulary=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
def test_requests_are_within_the_workload_and_repeat(
    n: int,
    input_len: tuple[int, int],
    output_len: tuple[int, int],
    prefix: int,
    rate: float | None,
    vocabulary: int,
    seed: int,
) -> None:
    workload = Workload(
        n, input_len, output_len, prefix, rate=rate, vocabulary=vocabulary, seed=seed
    )
    requests = workload.requests()
    assert requests == workload.requests() and len(requests) == n
    for request in requests:
        assert prefix + input_len[0] <= len(request.prompt_ids) <= prefix + input_len[1]
        assert output_len[0] <= request.n_output <= output_len[1]
        assert all(0 <= token_id < vocabulary for token_id in request.prompt_ids)
        assert request.prompt_ids[:prefix] == requests[0].prompt_ids[:prefix]
    times = [request.at_s for request in requests]
    assert times == sorted(times) and times[0] == 0
    if rate is None:
        assert times[-1] == 0


def test_arrivals_come_at_the_mean_rate() -> None:
    times = [request.at_s for request in Workload(4000, (1, 1), (1, 1), rate=5.0).requests()]
    assert 3999 / times[-1] == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_requests": 0}, "n_requests"),
        ({"input_len": (0, 3)}, "input_len"),
        ({"output_len": (5, 3)}, "output_len"),
        ({"shared_prefix": -1}, "shared_prefix"),
        ({"rate": 0.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"concurrency": 0}, "concurrency"),
        ({"vocabulary": 0}, "vocabulary"),
    ],
)
def test_a_workload_without_sense_is_refused(options: dict[str, object], name: str) -> None:
    with pytest.raises(WorkloadError, match=name):
        Workload(**options)  # type: ignore[arg-type]


def test_figures_of_known_answers() -> None:
    first = Answer(0.0, 10, [0.5, 0.6, 0.8], n_output=3, n_cached=4)
    second = Answer(1.0, 20, [2.0], n_output=1)
    broken = Answer(1.0, 5, [1.5], error="503 no")
    result = figures([first, second, broken])
    assert result["requests"] == 3 and result["failed"] == 1
    assert result["errors"] == {"503 no": 1}
    assert result["prompt_tokens"] == 30 and result["cached_tokens"] == 4
    assert result["output_tokens"] == 4 and result["output_tokens_per_s"] == 2.0
    assert result["total_tokens_per_s"] == 17.0 and result["requests_per_s"] == 1.0
    assert result["ttft_ms"] == {"p50": 500.0, "p90": 1000.0, "p99": 1000.0}
    assert result["itl_ms"] == {"p50": 100.0, "p90": 200.0, "p99": 200.0}
    assert result["tpot_ms"]["p50"] == 150.0
    assert result["e2e_ms"] == {"p50": 800.0, "p90": 1000.0, "p99": 1000.0}
    assert "503 no" in table(result) and "2.0 tokens/s" in table(result)


def test_figures_without_a_whole_answer() -> None:
    result = figures([Answer(0.0, 5, error="no")])
    assert result["output_tokens_per_s"] is None and result["ttft_ms"]["p50"] is None
    assert "no" in table(result)


def test_a_server_is_measured(
    fake_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    argv = ["--url", fake_url, "--api-key", "secret", "--requests", "6", "--input-len", "3:9"]
    argv += ["--output-len", "5", "--concurrency", "2", "--vocabulary", "250"]
    assert main([*argv, "--quiet", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "6, of which 0 failed" in out and err == ""
    result = json.loads(file.read_text())
    assert result["output_tokens"] == 30 and result["failed"] == 0
    assert result["workload"]["concurrency"] == 2
    assert main(argv) == 0
    assert "30/30" in capsys.readouterr().err


def test_failures_are_counted_and_told(fake_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--url", fake_url, "--api-key", "secret", "--requests", "3", "--input-len", "700"]
    assert main([*argv, "--quiet", "--output-len", "4", "--vocabulary", "250"]) == 1
    out = capsys.readouterr().out
    assert "3 failed" in out and "error (3 times): 400" in out


@pytest.mark.parametrize(
    ("argv", "status", "told"),
    [
        (["--url", "http://127.0.0.1:9"], 1, "127.0.0.1:9"),
        (["--requests", "0", "--url", "http://127.0.0.1:9"], 2, "n_requests"),
    ],
)
def test_a_run_that_cannot_start_says_why(
    argv: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == status
    assert told in capsys.readouterr().err


def test_presets_make_requests() -> None:
    for preset in PRESETS.values():
        assert len(preset.requests()) == preset.n_requests
