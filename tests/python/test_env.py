"""astrai.env: variables are read once and checked, the report is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from astrai import _C, env


@pytest.fixture(autouse=True)
def fresh_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ASTR_BACKEND", "ASTRAI_LOG_LEVEL", "ASTRAI_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    env.reload()
    yield
    env.reload()


def test_all_is_sorted_and_complete() -> None:
    assert env.__all__ == sorted(env.__all__)
    assert all(hasattr(env, name) for name in env.__all__)


@pytest.mark.parametrize("value", env.ATTENTION_BACKENDS)
def test_each_backend_name_is_accepted_in_any_case(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTR_BACKEND", f" {value.upper()} ")
    assert env.attention_backend() == value


@pytest.mark.parametrize(
    ("variable", "read"),
    [("ASTR_BACKEND", env.attention_backend), ("ASTRAI_LOG_LEVEL", env.log_level)],
)
def test_a_bad_value_is_an_error_that_names_the_accepted_ones(
    variable: str, read: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(read)
    monkeypatch.setenv(variable, "turbo")
    with pytest.raises(ValueError, match=rf"{variable} is 'turbo'; accepted: \w+, \w+"):
        read()


def test_unset_variables_have_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert env.attention_backend() == ""
    assert env.log_level() == "info"
    assert env.cache_dir() == tmp_path / ".cache" / "astrai"


def test_a_variable_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.attention_backend() == ""
    monkeypatch.setenv("ASTR_BACKEND", "cuda")
    assert env.attention_backend() == ""
    env.reload()
    assert env.attention_backend() == "cuda"


def test_the_cache_folder_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.cache_dir() == tmp_path / "astrai"
    monkeypatch.setenv("ASTRAI_CACHE_DIR", str(tmp_path / "models"))
    env.reload()
    assert env.cache_dir() == tmp_path / "models"


def test_json_report_tells_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert env.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["astrai"] == _C.__version__
    assert report["cuda_kernels"] == _C.BUILT_WITH_CUDA
    assert report["cuda_kernels_reason"] == _C.CUDA_REASON
    assert report["torch"]["version"]


def test_a_bad_variable_does_not_hide_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTR_BACKEND", "turbo")
    assert env.main([]) == 0
    printed = capsys.readouterr().out
    assert "ASTR_BACKEND: error: ASTR_BACKEND is 'turbo'" in printed
    assert f"astrai: {_C.__version__}" in printed


def test_cmake_prefix_is_a_folder_with_the_package_or_an_error_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = env.main(["--cmake-prefix"])
    printed = capsys.readouterr()
    if status == 0:
        config = Path(printed.out.strip()) / "lib" / "cmake" / "astrai" / "astraiConfig.cmake"
        assert config.is_file()
    else:
        assert "pip install ." in printed.err
