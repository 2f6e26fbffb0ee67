"""The compose project of one serve.yaml: compose.yaml with the file's ports, GPUs and mounts in it.

compose.yaml is the template and works by itself; here its `${...}` defaults give way to values.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml
from model_location import locate_model
from runtime_config import CONFIG_TARGET, Mount, Runtime

_REPO = Path(__file__).resolve().parents[1]
_COMPOSE_FILE = _REPO / "docker" / "compose.yaml"
CACHE_VOLUME = "astrai-cache"
_CACHE_TARGET = "/cache"
_GRACE_S = 10  # after the drain: for cancelled requests to be answered and memory to be freed


def stop_s(runtime: Runtime) -> int:
    """Seconds from SIGTERM to SIGKILL."""
    return math.ceil(runtime.server.drain_timeout_s) + _GRACE_S


def compose_project(runtime: Runtime) -> dict[str, Any]:
    """The project as a JSON object that `docker compose --file` takes. Reads compose.yaml."""
    template = yaml.safe_load(_COMPOSE_FILE.read_text(encoding="utf-8"))
    name = "server" if runtime.gpus is not None else "server-cpu"
    service = template["services"][name]
    service.pop("profiles", None)
    service["container_name"] = runtime.container
    model = locate_model(runtime)
    mounts = [Mount(runtime.config, CONFIG_TARGET), *([model.mount] if model.mount else [])]
    mounts += runtime.mounts
    if runtime.cache is not None:
        mounts.append(Mount(runtime.cache, _CACHE_TARGET, is_read_only=False))
    service["volumes"] = [_bind(mount) for mount in mounts]
    if runtime.cache is None:
        service["volumes"].append({"type": "volume", "source": "cache", "target": _CACHE_TARGET})
    service["command"] = ["--config", CONFIG_TARGET]
    if model.argument is not None:
        service["command"] += ["--model", model.argument]
    service["ports"] = [
        {
            "target": runtime.server.port,
            "published": str(runtime.port),
            "host_ip": runtime.address,
            "protocol": "tcp",
        }
    ]
    service["stop_grace_period"] = f"{stop_s(runtime)}s"
    service["environment"] = {**service.get("environment", {}), **runtime.environment}
    if runtime.image is not None:
        service["image"] = runtime.image
        del service["build"]
    else:
        service["image"] = "astrai:cuda" if runtime.gpus is not None else "astrai:cpu"
        service["build"]["context"] = str(_REPO)
    if runtime.gpus:
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        del device["count"]
        device["device_ids"] = list(runtime.gpus)
    project: dict[str, Any] = {"name": runtime.container, "services": {"server": service}}
    if runtime.cache is None:
        # Not the project's own: it is one for all jobs, so that a model is fetched once.
        project["volumes"] = {"cache": {"name": CACHE_VOLUME, "external": True}}
    escaped: dict[str, Any] = _escaped(project)
    return escaped


def _bind(mount: Mount) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": str(mount.source.resolve()),
        "target": mount.target,
        "read_only": mount.is_read_only,
        # Docker would make a missing folder, owned by root, and serve an empty model from it.
        "bind": {"create_host_path": False},
    }


def _escaped(value: Any) -> Any:
    """value with every $ doubled, which compose would else take for a variable."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
