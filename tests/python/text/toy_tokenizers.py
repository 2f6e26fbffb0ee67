"""Small tokenizers for tests: trained here on a few words, in the shapes that checkpoints have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the boat left the harbour at noon", "don't count 1234 or 007", "über Größe 語 🧪 ďábel"]

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE with single digits, three special tokens and one that is not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def gguf_metadata(tokenizer: Tokenizer, pre: str = "smollm") -> dict[str, Any]:
    """What a GGUF file of the byte-level tokenizer says."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=lambda token: vocab[token])
    kinds = {**dict.fromkeys(SPECIALS, 3), "<think>": 4}
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([kinds.get(t, 1) for t in tokens], dtype=np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    """A llama-style vocabulary: control tokens, every byte, characters and a few merged pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    pieces = [*"▁thebaol", "▁t", "he", "▁the", "bo", "at", "boat", "▁boat", "▁b"]
    tokens += pieces
    kinds += [1] * len(pieces)
    scores = [0.0] * 259 + [-1000.0] * 8 + [-float(rank) for rank in range(len(pieces) - 8)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
        "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def save_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> None:
    import json

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
