"""What `serve run astrai.deploy.ray:app KEY=VALUE ...` can be told. Needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astrai.cli.config import read_config
from astrai.cli.options import Option, OptionError, nearest, server_options
from astrai.cli.serve import from_environment
from astrai.server.settings import ServerSettings

__all__ = ["RayOptions", "read_options"]

# Who listens where is Ray's matter.
_OF_RAY = frozenset({"host", "port", "ssl_certfile", "ssl_keyfile"})


class RayOptions(BaseModel):
    """How many replicas there are, and where a request goes. The other keys are the server's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_replicas: int = Field(1, ge=1, description="engines, where their number is fixed")
    max_replicas: int | None = Field(
        None, ge=1, description="most engines; given, their number follows the queue"
    )
    min_replicas: int = Field(1, ge=0, description="fewest engines, with max_replicas")
    target_ongoing_requests: float | None = Field(
        None,
        gt=0,
        description="open and waiting requests an engine, at which their number stays; "
        "left out: max_batch_size",
    )
    max_ongoing_requests: int | None = Field(
        None,
        ge=1,
        description="requests that one engine holds; the next ones wait for any engine; "
        "left out: twice max_batch_size",
    )
    num_cpus: float = Field(1, ge=0, description="CPUs that an engine takes of its node")
    num_gpus: float | None = Field(
        None, ge=0, description="GPUs that an engine takes; left out: 1 where device is cuda"
    )
    ingress_replicas: int = Field(1, ge=1, description="processes that read and route requests")
    routing: Literal["prefix", "least_loaded"] = Field(
        "prefix",
        description="prefix: to the engine that has the prompt's pages; least_loaded: without a "
        "look at them",
    )
    max_lead: int | None = Field(
        None,
        ge=1,
        description="requests by which an engine may be ahead of the least loaded one and still "
        "be chosen for its pages; left out: half of max_batch_size",
    )


def read_options(args: Mapping[str, Any]) -> tuple[RayOptions, ServerSettings]:
    """Both parts of the arguments. `config` names a YAML file whose server: section gives settings;
    arguments win over it. Values may be texts, as on a command line.

    Raises OptionError naming the key at fault and what is accepted."""
    of_server = server_options()
    options = {name: option for option in of_server for name in option.names}
    # None is a key without a value in a YAML file: its default, as there.
    given = {name.replace("-", "_"): value for name, value in args.items() if value is not None}
    path = given.pop("config", None)
    settings = from_environment(of_server)
    if path is not None:
        settings |= read_config(Path(path), of_server)
    of_ray: dict[str, Any] = {}
    for name, value in given.items():
        if name in RayOptions.model_fields:
            of_ray[name] = value
        else:
            option = _server_option(name, options)
            check = option.check_text if isinstance(value, str) else option.check
            settings[option.field] = check(value, name)
    return _ray_options(of_ray), ServerSettings(**settings)


def _server_option(name: str, options: Mapping[str, Option]) -> Option:
    if name in _OF_RAY:
        raise OptionError(
            f"{name} is not the engines': Ray Serve listens, see `serve start --help` and "
            "http_options of its configuration file"
        )
    if name == "engine_process":
        raise OptionError(f"{name} is not for Ray, which gives each engine a process of its own")
    if name not in options:
        known = [*options, *RayOptions.model_fields, "config"]
        raise OptionError(f"unknown key {name!r}; did you mean {nearest(name, known)!r}?")
    return options[name]


def _ray_options(given: Mapping[str, Any]) -> RayOptions:
    try:
        options = RayOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        raise OptionError(f"{name} is {given[str(name)]!r}: {first['msg']}") from None
    if options.max_replicas is None:
        for name in ("min_replicas", "target_ongoing_requests"):
            if name in given:
                raise OptionError(f"{name} needs max_replicas, which lets the number vary")
    elif "num_replicas" in given:
        raise OptionError("num_replicas is a fixed number; leave it out beside max_replicas")
    elif options.min_replicas > options.max_replicas:
        raise OptionError(
            f"min_replicas is {options.min_replicas}; it should be at most max_replicas, "
            f"{options.max_replicas}"
        )
    return options
