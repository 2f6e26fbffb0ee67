"""`astrai bench`: a workload against a running server, any with OpenAI's /v1/completions."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrai.cli.bench.workload import PRESETS, Workload, WorkloadError

if TYPE_CHECKING:
    from astrai.cli.bench.client import Answer, Target

__all__ = ["main", "make_parser"]

_EPILOG = """\
presets, each of which the other options change:
  throughput   256 requests at once, 100:1024 tokens in, 100:1024 out
  latency      8 requests one after another, 512 in, 256 out
  prefix       64 requests at once with a common prefix of 4096 tokens, 128 more in, 64 out
  arrivals     256 requests at 8 a second (Poisson), 100:1024 in, 32:256 out

Prompts are random token ids, answers run to their full length (ignore_eos).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0 when every request was answered, 1 otherwise, 2 on usage."""
    options = make_parser().parse_args(argv)
    if importlib.util.find_spec("httpx") is None:
        print("astrai bench: error: it needs httpx: pip install httpx", file=sys.stderr)
        return 2
    import httpx

    try:
        workload = _workload(options)
        target = _target(options)
        answers = _run(target, workload, options.quiet)
    except WorkloadError as error:
        print(f"astrai bench: error: {error}", file=sys.stderr)
        return 2
    except (httpx.HTTPError, ValueError) as error:
        print(f"astrai bench: error: {options.url}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return _report(options, target, workload, answers)


def make_parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    parser = argparse.ArgumentParser(
        prog="astrai bench",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="http://127.0.0.1:8000", metavar="URL")
    server.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    server.add_argument("--served-model", metavar="NAME", help="its model; the first by default")
    work = parser.add_argument_group("workload")
    work.add_argument("--preset", choices=sorted(PRESETS), default="throughput")
    work.add_argument("--requests", type=int, metavar="N", dest="n_requests")
    work.add_argument("--input-len", type=_span, metavar="LOW:HIGH", help="tokens of a prompt")
    work.add_argument("--output-len", type=_span, metavar="LOW:HIGH", help="tokens of an answer")
    work.add_argument("--shared-prefix", type=int, metavar="N", help="tokens all prompts share")
    work.add_argument("--rate", type=float, metavar="R", help="requests a second on the mean")
    work.add_argument("--concurrency", type=int, metavar="N", help="at most so many at a time")
    work.add_argument("--vocabulary", type=int, metavar="N", help="ids are below it (10000)")
    work.add_argument("--seed", type=int, metavar="SEED")
    work.add_argument("--temperature", type=float, metavar="T", default=0.6, help="(0.6)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    output.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"should be N or LOW:HIGH, got {text!r}") from None


def _workload(options: argparse.Namespace) -> Workload:
    names = [field.name for field in dataclasses.fields(Workload)]
    given = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(PRESETS[options.preset], **changes)


def _target(options: argparse.Namespace) -> Target:
    from astrai.cli.bench.client import Target, first_model

    url = options.url.rstrip("/").removesuffix("/v1") + "/v1"
    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    model = options.served_model or first_model(url, headers)
    return Target(url, model, headers, {"temperature": options.temperature})


def _run(target: Target, workload: Workload, is_quiet: bool) -> list[Answer]:
    from tqdm import tqdm

    from astrai.cli.bench.client import run_requests

    requests = workload.requests()
    n_tokens = sum(request.n_output for request in requests)
    with tqdm(total=n_tokens, unit=" tokens", dynamic_ncols=True, disable=is_quiet) as bar:

        def on_answer(answer: Answer) -> None:
            bar.update(answer.n_output)

        return asyncio.run(run_requests(target, requests, workload.concurrency, on_answer))


def _report(
    options: argparse.Namespace, target: Target, workload: Workload, answers: list[Answer]
) -> int:
    from astrai.cli.bench.report import figures, table

    result = figures(answers)
    print(table(result))
    if options.json is not None:
        record: dict[str, Any] = {
            "url": target.url,
            "model": target.model,
            "sampling": target.sampling,
            "workload": dataclasses.asdict(workload),
            **result,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
