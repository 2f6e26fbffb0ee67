"""What scripts/serve.sh asks about a serve.yaml.

    serve_runtime.py exports CONFIG     shell assignments: SERVE_CONTAINER, SERVE_URL, ...
    serve_runtime.py compose CONFIG     the compose project as JSON
    serve_runtime.py preflight CONFIG   problems with files and ports, each with what mends it

Status 0, 1 for problems, 2 for a bad file. `preflight --own-port` leaves out whether the port is
free, for when the container that holds it is ours; `compose --once` leaves out the restarts.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - the machine's Python, not the package's
    sys.exit(
        f"serve_runtime.py: Python 3.10 or newer is needed, this is {sys.version.split()[0]}; "
        "name another: PYTHON=python3.12 scripts/serve.sh ..."
    )
try:
    import yaml  # noqa: F401
except ImportError:
    sys.exit(
        "serve_runtime.py: this Python has no PyYAML: apt-get install python3-yaml, or "
        f"{sys.executable} -m pip install pyyaml"
    )

# The checkout's own sources read `server:`; nothing of them has to be built for that.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from compose_project import CACHE_VOLUME, compose_project, stop_s
from runtime_checks import problems, warnings
from runtime_config import Runtime, read_runtime


def exports(runtime: Runtime) -> str:
    """Shell assignments, quoted."""
    values = {
        "SERVE_CONTAINER": runtime.container,
        "SERVE_URL": runtime.url,
        "SERVE_STOP_S": str(stop_s(runtime)),
        "SERVE_IMAGE": runtime.image or "",
        "SERVE_VOLUME": CACHE_VOLUME if runtime.cache is None else "",
        "SERVE_GPUS": "none" if runtime.gpus is None else " ".join(runtime.gpus) or "all",
    }
    return "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="serve_runtime.py", description=__doc__)
    parser.add_argument("command", choices=("exports", "compose", "preflight"))
    parser.add_argument("config", type=Path)
    parser.add_argument("--own-port", action="store_true")
    parser.add_argument("--once", action="store_true")
    arguments = parser.parse_args(argv)
    try:
        runtime = read_runtime(arguments.config)
    except ValueError as error:
        print(str(error).removeprefix("--config "), file=sys.stderr)
        return 2
    if arguments.command == "exports":
        print(exports(runtime))
    elif arguments.command == "compose":
        project = compose_project(runtime)
        if arguments.once:
            project["services"]["server"]["restart"] = "no"
        print(json.dumps(project, indent=2))
    else:
        for warning in warnings(runtime):
            print(f"warning: {warning}", file=sys.stderr)
        found = problems(runtime, arguments.own_port)
        for problem in found:
            print(f"- {problem.what}\n    {problem.remedy}", file=sys.stderr)
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
