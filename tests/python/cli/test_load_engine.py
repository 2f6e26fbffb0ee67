"""`load_engine`: settings become a model and an engine that obeys them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from astrai.cli.serve import load_engine
from astrai.server import ServerSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
from toy_models import llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    llama().save_pretrained(path)
    return path


def test_the_engine_has_what_the_settings_say(folder: Path) -> None:
    settings = ServerSettings(
        model=str(folder),
        device="cpu",
        dtype="float32",
        max_batch_size=3,
        max_seq_len=48,
        page_size=8,
        kv_tokens=160,
        prefill_chunk=24,
    )
    loaded, engine = load_engine(settings)
    try:
        assert loaded.source == str(folder) and str(loaded.dtype) == "torch.float32"
        assert (engine.max_seq_len, str(engine.prefill_chunk)) == (48, "24")
        host = engine.cache.host
        assert (host.max_batch_size, host.page_size, host.n_pages) == (3, 8, 20)
        assert engine.client.is_healthy()
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/no/such/folder"}, "/no/such/folder"),
        ({"max_seq_len": 10**6}, "max_seq_len is 1000000"),
        ({"device": "abacus"}, "abacus"),
        ({"dtype": "int3"}, "int3"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    folder: Path, changes: dict[str, object], message: str
) -> None:
    values: dict[str, object] = {"model": str(folder), "device": "cpu", **changes}
    with pytest.raises(ValueError, match=message):
        load_engine(ServerSettings(**values))  # type: ignore[arg-type]
