"""A `docker` and an `nvidia-smi` that record their calls and answer from files, for serve.sh.

The folder of a Machine holds: calls (a line each, \\x1f after every word), states (one line of
`docker inspect` after another, the last one stays; no file: no container), project.json (what
compose was given).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SCRIPT = REPO / "scripts" / "serve.sh"

# What serve.sh may use beside docker: nothing else of the test's machine is on its PATH.
_TOOLS = ("awk", "bash", "cat", "cp", "dirname", "grep", "head", "mktemp", "rm", "sleep")

_DOCKER = r"""#!/bin/bash
here={folder}
printf '%s\x1f' "$@" >>"$here/calls"
echo >>"$here/calls"
fail() {{ echo "$1" >&2; exit 1; }}
case "$1 $2" in
  info*)
    [ ! -e "$here/no_daemon" ] || fail "Cannot connect to the Docker daemon"
    cat "$here/runtimes" ;;
  "compose version") [ ! -e "$here/no_compose" ] || fail "'compose' is no docker command" ;;
  "compose --file")
    cp "$3" "$here/project.json"
    [ ! -e "$here/fail_$4" ] || fail "$4 failed"
    [ "$4" != up ] || cp "$here/states_after_up" "$here/states"
    [ "$4" != down ] || rm -f "$here/states" ;;
  inspect*)
    [ -e "$here/states" ] || {{ echo; fail "Error: No such object"; }}
    mapfile -t states <"$here/states"
    [ ${{#states[@]}} -eq 1 ] || printf '%s\n' "${{states[@]:1}}" >"$here/states"
    case "$3 ${{states[0]}}" in
      *Running*' running '*) echo true ;;
      *) echo "${{states[0]}}" ;;
    esac ;;
  logs*) echo "a line of the server's log" ;;
esac
"""
_NVIDIA_SMI = """#!/bin/bash
[ -e {folder}/gpus ] || {{ echo "NVIDIA-SMI has failed"; exit 9; }}
cat {folder}/gpus
"""


class Machine:
    """A machine as serve.sh sees it; everything is well until a test changes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name in _TOOLS:
            found = shutil.which(name)
            assert found is not None, name
            (self.bin / name).symlink_to(found)
        self.install("docker", _DOCKER)
        self.install("nvidia-smi", _NVIDIA_SMI)
        self.write("runtimes", '{"nvidia": {}, "runc": {}}')
        self.write("gpus", "0, GPU-aa11, 580.65.06\n1, GPU-bb22, 580.65.06")
        self.write("states_after_up", "running 0 starting\nrunning 0 healthy")

    def install(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text.format(python=sys.executable, folder=shlex.quote(str(self.folder))))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def remove(self, program: str) -> None:
        (self.bin / program).unlink()

    def serve_sh(
        self, *words: object, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *map(str, words)],
            cwd=cwd or self.folder,
            env={"PATH": str(self.bin), "PYTHON": sys.executable, "HOME": os.environ["HOME"]} | env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def calls(self) -> list[list[str]]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split("\x1f")[:-1] for line in lines]

    def compose_calls(self) -> list[list[str]]:
        """What compose was told to do, without the project's file."""
        calls = (call for call in self.calls() if call[0] == "compose")
        return [call[3:] for call in calls if call[1] == "--file"]

    def service(self) -> dict[str, object]:
        """The service in the project that compose was given last."""
        project = json.loads((self.folder / "project.json").read_text())
        (service,) = project["services"].values()
        return dict(service)
