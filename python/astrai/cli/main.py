"""`astrai`: one command, its programs as sub-commands. `astrai serve` is `astrai-serve`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from astrai import _C

# Sub-command: the module whose main(argv) runs it, and a line for --help.
_PROGRAMS = {
    "serve": ("astrai.cli.serve", "serve a model over the OpenAI and Anthropic HTTP protocols"),
    "chat": ("astrai.cli.chat", "talk to a model, or to a server by --url, in the terminal"),
    "bench": ("astrai.cli.bench", "measure a running server under a workload"),
    "env": ("astrai.env", "what this installation is and what it found"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status of the program, 2 for one that does not exist."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"astrai {_C.__version__}")
        return 0
    name, *rest = arguments
    if name not in _PROGRAMS:
        known = ", ".join(_PROGRAMS)
        print(f"astrai: error: there is no command {name!r}; there are {known}", file=sys.stderr)
        return 2
    module = importlib.import_module(_PROGRAMS[name][0])
    status: int = module.main(rest)
    return status


def _usage() -> str:
    lines = [f"  {name:<7}{text}" for name, (_, text) in _PROGRAMS.items()]
    return "\n".join(
        ["usage: astrai COMMAND ...", "", *lines, "", "astrai COMMAND --help tells its flags."]
    )


if __name__ == "__main__":
    sys.exit(main())
