"""A server of a tiny model for the documents' code blocks, and what other folders lend."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from astrai import InferenceEngine
from astrai.server import ServerSettings, create_app

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT / "scripts" / "docs_site"),
    *(str(ROOT / "tests" / "python" / folder) for folder in ("models", "text")),
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model, its tokenizer and a chat template, as --model takes it."""
    from toy_models import llama  # here: most tests of this folder need no transformers
    from toy_tokenizers import TEMPLATE, byte_level, save_folder

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_level()
    model = llama(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=2048)
    model.save_pretrained(folder)
    save_folder(folder, tokenizer, chat_template=TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def server_url(tiny_folder: Path) -> Iterator[str]:
    """The address of a server of that model, over the real engine."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # The best token each time: drawn at random the first may be one that ends the text.
    engine = InferenceEngine.from_pretrained(
        tiny_folder,
        max_batch_size=4,
        kv_mode="paged",
        sampling_defaults={"temperature": 0.0},
        progress=False,
    )
    app = create_app(engine, ServerSettings())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    engine.shutdown()
