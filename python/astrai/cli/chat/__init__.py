"""`astrai chat`: a conversation in the terminal, with a model in this process or with a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from astrai.cli.chat.session import ChatSession
from astrai.cli.chat.source import ChatError, ChatSource
from astrai.requirements import MissingRequirementError, require_torch

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0 at the end of the input, 1 when the model or server fails, 2 on usage.

    Where the input is no terminal each line is a message, and only answers go to stdout.
    """
    options = make_parser().parse_args(argv)
    try:
        with _source(options) as source:
            session = ChatSession(source, _sampling(options), options.system)
            return session.run(sys.stdin, is_terminal=sys.stdin.isatty() and sys.stdout.isatty())
    except KeyboardInterrupt:
        return 130
    except (ChatError, MissingRequirementError, OSError, ValueError, RuntimeError) as error:
        print(f"astrai chat: error: {error}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    parser = argparse.ArgumentParser(prog="astrai chat", description=__doc__)
    where = parser.add_argument_group("model")
    where.add_argument("--model", metavar="MODEL", help="folder, .gguf file or hub id to load here")
    where.add_argument("--device", default="auto", help="auto, cpu or cuda")
    where.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    server = parser.add_argument_group("server")
    server.add_argument("--url", metavar="URL", help="a server with OpenAI's protocol instead")
    server.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    server.add_argument("--served-model", metavar="NAME", help="its model; the first by default")
    talk = parser.add_argument_group("conversation")
    talk.add_argument("--system", metavar="TEXT", help="system prompt")
    talk.add_argument("--max-tokens", type=int, metavar="N", help="of one answer")
    talk.add_argument("--temperature", type=float, metavar="T")
    talk.add_argument("--top-p", type=float, metavar="P")
    talk.add_argument("--top-k", type=int, metavar="K")
    talk.add_argument("--seed", type=int, metavar="SEED")
    return parser


def _source(options: argparse.Namespace) -> ChatSource:
    if options.url is None:
        require_torch()
        from astrai.cli.chat.local import LocalSource  # torch, only where a model runs here

        return LocalSource(options.model, options.device, options.dtype)
    if options.model is not None:
        raise ChatError("--model loads a model here; with --url name it by --served-model")
    from astrai.cli.chat.remote import RemoteSource

    return RemoteSource(options.url, options.api_key, options.served_model)


def _sampling(options: argparse.Namespace) -> dict[str, float | int]:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed")
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
