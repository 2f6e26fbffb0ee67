"""`app`: the two deployments of AstrAI on Ray Serve, from the arguments of `serve run`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from astrai.deploy.ray.ingress import Ingress
from astrai.deploy.ray.replica import EngineReplica
from astrai.deploy.ray_options import RayOptions, read_options
from astrai.server.settings import ServerSettings

__all__ = ["app", "engine_options"]

_ROUTER = "astrai.deploy.ray.request_router:PrefixRequestRouter"
_GRACE_S = 3  # after the drain, as astrai-serve has it


def app(args: Mapping[str, Any]) -> Application:
    """The Serve application.

    args: keys of `RayOptions` and of the server's settings; texts are read as on a command line.
    Raises ValueError naming the key at fault."""
    options, settings = read_options(args)
    engines = serve.deployment(EngineReplica, name="engine").options(
        **engine_options(options, settings)
    )
    ingress = serve.deployment(Ingress, name="ingress").options(
        num_replicas=options.ingress_replicas,
        ray_actor_options={"num_cpus": 0},  # else two engines would not fit on two CPUs
        # It only passes on what the engines take, and knows when they take no more.
        max_ongoing_requests=1_000_000,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + 2 * _GRACE_S,
    )
    return ingress.bind(engines.bind(settings), settings)


def engine_options(options: RayOptions, settings: ServerSettings) -> dict[str, Any]:
    """Ray's options of the engines' deployment."""
    num_gpus = options.num_gpus
    if num_gpus is None:
        num_gpus = 1 if settings.device.startswith("cuda") else 0
    deployment: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": options.num_cpus, "num_gpus": num_gpus},
        "max_ongoing_requests": options.max_ongoing_requests or 2 * settings.max_batch_size,
        "max_queued_requests": max(1, settings.max_queue),  # Ray has no queue of length 0
        "graceful_shutdown_timeout_s": settings.drain_timeout_s + _GRACE_S,
    }
    if options.max_replicas is None:
        deployment["num_replicas"] = options.num_replicas
    else:
        deployment["autoscaling_config"] = AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            target_ongoing_requests=options.target_ongoing_requests or settings.max_batch_size,
        )
    routing = {
        "max_lead": options.max_lead or math.ceil(settings.max_batch_size / 2),
        "follows_pages": options.routing == "prefix",
    }
    # Ray's own router would send what one replica alone can answer to any.
    deployment["request_router_config"] = RequestRouterConfig(
        request_router_class=_ROUTER, request_router_kwargs=routing
    )
    return deployment
