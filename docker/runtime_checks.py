"""What this machine lacks for the container of a serve.yaml: files, rights, a free port.

Docker itself is scripts/serve.sh's to look at.
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from model_location import Problem, locate_model, model_problems
from runtime_config import Mount, Runtime

_UID = _GID = 10001  # of the user in the images
_MAX_NAMED = 3  # unreadable files of one mount that are named


def problems(runtime: Runtime, is_own_port: bool) -> list[Problem]:
    """What would keep the container from serving, as far as files and the port tell."""
    model = locate_model(runtime)
    found = model_problems(model)
    model_is_there = model.mount is not None and model.mount.source.exists()
    to_read = [Mount(runtime.config, ""), *runtime.mounts]
    if model_is_there and model.mount is not None:
        to_read.append(model.mount)
    for mount in to_read:
        found += _mount_problems(mount)
    if runtime.cache is not None:
        found += _cache_problems(runtime.cache)
    found += _certificate_problems(runtime)
    if not is_own_port:
        found += _port_problems(runtime.address, runtime.port)
    return found


def warnings(runtime: Runtime) -> list[str]:
    """What serves, but perhaps not as meant."""
    has_key = bool(runtime.server.api_keys) or "ASTRAI_API_KEY" in runtime.environment
    if not runtime.address.startswith("127.") and runtime.address != "::1" and not has_key:
        return [
            f"runtime.address is {runtime.address} and there is no API key: whoever reaches the "
            "port is served; set runtime.environment.ASTRAI_API_KEY or server.api_keys"
        ]
    return []


def _mount_problems(mount: Mount) -> list[Problem]:
    source = mount.source
    if not source.exists():
        what = f"mount: {source} does not exist"
        return [Problem(what, "correct runtime.mounts, or make the folder")]
    refused = []
    for path in _walk(source):
        if not _may_read(path):
            refused.append(path)
            if len(refused) == _MAX_NAMED:
                break
    if not refused:
        return []
    named = ", ".join(map(str, refused))
    remedy = f"chmod -R o+rX {shlex.quote(str(source))}"
    if source.is_file():
        quoted = shlex.quote(str(source))
        remedy = f"sudo chgrp {_GID} {quoted} && chmod g+r {quoted}"
    return [Problem(f"mount: the container's user ({_UID}) cannot read {named}", remedy)]


def _walk(source: Path) -> Iterator[Path]:
    yield source
    if source.is_dir():
        for folder, folders, files in os.walk(source):
            yield from (Path(folder) / name for name in (*folders, *files))


def _may_read(path: Path) -> bool:
    """May the container's user read a file, or list and enter a folder? Access lists are not
    looked at."""
    try:
        status = path.stat()
    except OSError:  # a broken link; whether it matters the model's check says
        return True
    needed = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4
    if status.st_uid == _UID:
        needed <<= 6
    elif status.st_gid == _GID:
        needed <<= 3
    return status.st_mode & needed == needed


def _cache_problems(cache: Path) -> list[Problem]:
    quoted = shlex.quote(str(cache))
    own = f"sudo chown {_UID}:{_GID} {quoted}"
    if not cache.is_dir():
        what = f"cache: {cache} is no folder"
        return [Problem(what, f"mkdir -p {quoted} && {own}")]
    status = cache.stat()
    is_ours = status.st_uid == _UID and status.st_mode & 0o300 == 0o300
    if not is_ours and status.st_mode & 0o003 != 0o003:
        return [Problem(f"cache: the container's user ({_UID}) cannot write {cache}", own)]
    return []


def _certificate_problems(runtime: Runtime) -> list[Problem]:
    found = []
    for key in ("ssl_certfile", "ssl_keyfile"):
        name = getattr(runtime.server, key)
        if name and not any(Path(name).is_relative_to(mount.target) for mount in runtime.mounts):
            what = f"server.{key}: no mount puts {name} into the container"
            remedy = "add its folder to runtime.mounts, say ./certs:/certs, and name /certs/FILE"
            found.append(Problem(what, remedy))
    return found


def _port_problems(address: str, port: int) -> list[Problem]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                remedy = (
                    f"see who has it: ss -ltnp 'sport = :{port}'; stop that, or choose another "
                    "runtime.port"
                )
                return [Problem(f"port: {address}:{port} is taken", remedy)]
            if error.errno == errno.EADDRNOTAVAIL:
                what = f"port: {address} is no address of this machine"
                return [Problem(what, "name one in runtime.address: ip -brief address")]
            # A low port is Docker's to bind, not ours.
    return []
