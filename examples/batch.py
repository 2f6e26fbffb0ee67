"""Answers every line of a file and writes JSON lines: {"prompt": ..., "answer": ...}.

    python examples/batch.py PROMPTS.txt ANSWERS.jsonl [MODEL]

MODEL is a Hugging Face folder, a GGUF file or a hub id; without one the default model is used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from astrai import InferenceEngine, SamplingParams


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    prompts = [line for line in Path(sys.argv[1]).read_text().splitlines() if line.strip()]
    source = sys.argv[3] if len(sys.argv) > 3 else None
    params = SamplingParams(temperature=0.0, max_tokens=64)
    with InferenceEngine.from_pretrained(source, kv_mode="paged", max_batch_size=16) as engine:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        answers = engine.chat(conversations, params=params, progress=True)
    with Path(sys.argv[2]).open("w") as out:
        for prompt, answer in zip(prompts, answers, strict=True):
            out.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")


if __name__ == "__main__":
    main()
