"""HEALTHCHECK of the images: asks /health of the server that is this container's command.

Its address, port and certificate are read as the server read them: from its arguments, the YAML
file they name, and the defaults. Status 0 when it answers 200, else 1.
"""

from __future__ import annotations

import argparse
import ssl
import sys
import urllib.request
from pathlib import Path

from astrai.cli.serve import parse_settings

_TIMEOUT_S = 4
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def server_arguments(command_line: bytes) -> list[str]:
    """The arguments after astrai-serve in the text of /proc/PID/cmdline, which ends each with a
    zero byte. Raises ValueError when the process is no astrai-serve."""
    words = command_line.decode().split("\0")[:-1]
    for i, word in enumerate(words):
        if Path(word).name == "astrai-serve":
            return words[i + 1 :]
    raise ValueError(f"process 1 runs no astrai-serve but {' '.join(words)!r}")


def health_url(arguments: list[str]) -> str:
    """Where a server with these arguments answers."""
    settings = parse_settings(arguments)
    scheme = "https" if settings.ssl_certfile else "http"
    host = _ANY.get(settings.host, settings.host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}/health"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    # Process 1 is the server, or an init whose arguments name it.
    parser.add_argument("--command-line", type=Path, default=Path("/proc/1/cmdline"))
    command_line = parser.parse_args().command_line
    # The certificate is for the name that clients use, not for this machine's own address.
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        url = health_url(server_arguments(command_line.read_bytes()))
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=unchecked) as answer:
            print(answer.read().decode())
            return 0
    except (OSError, ValueError) as error:
        print(f"healthcheck: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
