"""Talk to a model in this process: streams an answer to each line that you type; an empty one ends.

    python examples/chat.py [MODEL]

MODEL is a Hugging Face folder, a GGUF file or a hub id; without one the default model is used.
"""

from __future__ import annotations

import sys

from astrai import InferenceEngine


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else None
    messages: list[dict[str, str]] = []
    with InferenceEngine.from_pretrained(source, kv_mode="paged") as engine:
        while line := typed():
            messages.append({"role": "user", "content": line})
            answer = ""
            for piece in engine.chat(messages, stream=True, max_tokens=512, temperature=0.7):
                print(piece, end="", flush=True)
                answer += piece
            print()
            messages.append({"role": "assistant", "content": answer})


def typed() -> str:
    """The next line; empty at the end of the input (Ctrl-D)."""
    try:
        return input("> ").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    main()
