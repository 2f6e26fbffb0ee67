"""The two sections of serve.yaml as the container's tools need them.

`server:` is read by the server's own code, which the caller puts on sys.path; `runtime:` is checked
here. Needs Python 3.10 and PyYAML, neither a built AstrAI nor Docker. Nothing here looks at
the machine: `runtime_checks` does.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from astrai.cli.config import read_config
from astrai.cli.options import nearest, server_options
from astrai.server.settings import ServerSettings

CONFIG_TARGET = "/run/astrai/serve.yaml"  # where the container finds this file
MODEL_TARGET = "/models"  # and the folder of its model

_JOB_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]+\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEYS = ("job_name", "address", "port", "image", "paths", "gpu", "mounts", "environment")


class ConfigError(ValueError):
    """A key of `runtime:` that does not exist, has a wrong value, or does not fit `server:`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine (source, absolute) inside the container (target)."""

    source: Path
    target: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class Runtime:
    """serve.yaml, checked."""

    config: Path  # absolute
    server: ServerSettings
    container: str  # also the name of the compose project
    address: str
    port: int
    image: str | None  # None: built from this checkout
    param: Path | None
    cache: Path | None  # None: a Docker volume
    gpus: tuple[str, ...] | None  # None: no GPU; empty: all of them
    mounts: tuple[Mount, ...]
    environment: dict[str, str | None]  # None: the value of this machine's variable

    @property
    def url(self) -> str:
        """The server's address as this machine sees it."""
        scheme = "https" if self.server.ssl_certfile else "http"
        is_any = ipaddress.ip_address(self.address).is_unspecified
        host = "127.0.0.1" if is_any else self.address
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def host_path(config: Path, text: str) -> Path:
    """A path of this machine; a relative one starts at the folder of the YAML file."""
    return config.parent / os.path.expanduser(text)


def read_runtime(path: Path) -> Runtime:
    """Both sections of a YAML file.

    Raises ValueError (OptionError of the server's, ConfigError of ours) naming file and key.
    """
    path = path.absolute()
    server = ServerSettings(**read_config(path, server_options()))
    section = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("runtime")
    reader = _Reader(path)
    top = reader.mapping({"runtime": section}, "runtime", _KEYS)
    paths = reader.mapping(top, "runtime.paths", ("param", "cache"))
    runtime = Runtime(
        config=path,
        server=server,
        container=reader.container(top.get("job_name")),
        address=reader.address(top.get("address")),
        port=reader.port(top.get("port")),
        image=reader.text(top.get("image"), "runtime.image"),
        param=reader.path(paths.get("param"), "runtime.paths.param"),
        cache=reader.path(paths.get("cache"), "runtime.paths.cache"),
        gpus=reader.gpus(top, server.device),
        mounts=reader.mounts(top.get("mounts")),
        environment=reader.environment(top.get("environment")),
    )
    _check_server(runtime)
    return runtime


def _check_server(runtime: Runtime) -> None:
    """What a server may have but a server in a container may not."""
    server, where = runtime.server, f"{runtime.config}: "
    if server.host in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(
            f"{where}server.host is {server.host}, which nobody outside the container reaches; "
            "set it to 0.0.0.0 (runtime.address says who reaches the published port)"
        )
    if server.port == 0:
        raise ConfigError(f"{where}server.port is 0; a published port has to be named, say 8000")
    if runtime.param is not None and server.model is not None:
        raise ConfigError(
            f"{where}server.model and runtime.paths.param both name the model; keep one"
        )


class _Reader:
    """Checks the values of one file; messages name the file and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _error(self, key: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self._path}: {key} is {value!r}; expected {expected}")

    def mapping(self, parent: dict[str, Any], key: str, known: tuple[str, ...]) -> dict[str, Any]:
        value = parent.get(key.rpartition(".")[2])
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(key, value, f"a mapping of {', '.join(known)}")
        for name in value:
            if name not in known:
                close = nearest(str(name), known)
                raise ConfigError(
                    f"{self._path}: unknown key {key}.{name}; did you mean {close!r}?"
                )
        return value

    def text(self, value: Any, key: str) -> str | None:
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self._error(key, value, "a text, or null")
        return value

    def path(self, value: Any, key: str) -> Path | None:
        text = self.text(value, key)
        return None if text is None else host_path(self._path, text)

    def container(self, job_name: Any) -> str:
        if job_name is None:
            return "astrai-server"
        if not isinstance(job_name, str) or not _JOB_NAME.match(job_name):
            raise self._error("runtime.job_name", job_name, "small letters, digits, _ and -")
        return f"astrai-server-{job_name}"

    def address(self, value: Any) -> str:
        try:
            return str(ipaddress.ip_address("127.0.0.1" if value is None else str(value)))
        except ValueError:
            expected = "an IP address of this machine, or 0.0.0.0 for all of them"
            raise self._error("runtime.address", value, expected) from None

    def port(self, value: Any) -> int:
        port = 8000 if value is None else value
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise self._error("runtime.port", value, "a whole number from 1 to 65535")
        return port

    def gpus(self, runtime: dict[str, Any], device: str) -> tuple[str, ...] | None:
        section = self.mapping(runtime, "runtime.gpu", ("enabled", "devices"))
        enabled, devices = section.get("enabled"), section.get("devices")
        if enabled is None:
            enabled = device != "cpu"
        if not isinstance(enabled, bool):
            raise self._error("runtime.gpu.enabled", enabled, "true or false")
        if not enabled:
            self._check_no_gpu(devices, device)
            return None
        if device == "cpu":
            raise ConfigError(
                f"{self._path}: runtime.gpu.enabled is true, but server.device is cpu; set it to "
                "false, or server.device to cuda"
            )
        gpus = self._gpu_list(devices)
        _, _, number = device.partition(":")
        if gpus and number.isdecimal() and int(number) >= len(gpus):
            raise ConfigError(
                f"{self._path}: server.device is {device}, but runtime.gpu.devices gives the "
                f"container {len(gpus)} GPUs, which it counts from 0"
            )
        return gpus

    def _check_no_gpu(self, devices: Any, device: str) -> None:
        if devices not in (None, "all"):
            raise ConfigError(
                f"{self._path}: runtime.gpu.devices names GPUs, but runtime.gpu.enabled is false"
            )
        if device.startswith("cuda"):
            raise ConfigError(
                f"{self._path}: server.device is {device}, but runtime.gpu.enabled is false; set "
                "server.device to cpu"
            )

    def _gpu_list(self, devices: Any) -> tuple[str, ...]:
        if devices in (None, "all"):
            return ()
        items = devices if isinstance(devices, list) else [devices]
        for item in items:
            is_index = isinstance(item, int) and not isinstance(item, bool) and item >= 0
            is_uuid = isinstance(item, str) and bool(_GPU_UUID.match(item))
            if not is_index and not is_uuid:
                expected = "all, or a list of GPU numbers or UUIDs as nvidia-smi -L prints them"
                raise self._error("runtime.gpu.devices", devices, expected)
        if not items or len(set(items)) < len(items):
            raise self._error("runtime.gpu.devices", devices, "each GPU once, at least one")
        return tuple(map(str, items))

    def mounts(self, value: Any) -> tuple[Mount, ...]:
        items = [] if value is None else value
        expected = "a list of HOST:CONTAINER or HOST:CONTAINER:rw, the second path absolute"
        if not isinstance(items, list):
            raise self._error("runtime.mounts", value, expected)
        mounts = []
        for item in items:
            parts = item.split(":") if isinstance(item, str) else []
            mode = parts.pop() if len(parts) == 3 else "ro"
            if len(parts) != 2 or not all(parts) or mode not in ("ro", "rw") or parts[1][0] != "/":
                raise self._error("runtime.mounts", item, expected)
            source = host_path(self._path, parts[0])
            mounts.append(Mount(source, parts[1].rstrip("/") or "/", mode == "ro"))
        return tuple(mounts)

    def environment(self, value: Any) -> dict[str, str | None]:
        variables = {} if value is None else value
        if not isinstance(variables, dict):
            raise self._error("runtime.environment", value, "a mapping of variables")
        found: dict[str, str | None] = {}
        for name, content in variables.items():
            if not isinstance(name, str) or not _VARIABLE.match(name):
                raise self._error("runtime.environment", name, "names of variables")
            if isinstance(content, (dict, list)):
                raise self._error(f"runtime.environment.{name}", content, "a text, or null")
            found[name] = _environment_text(content)
        return found


def _environment_text(content: Any) -> str | None:
    if isinstance(content, bool):  # as the file spells it
        return "true" if content else "false"
    return None if content is None else str(content)
