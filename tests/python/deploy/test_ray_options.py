"""The arguments of `serve run`, without Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astrai import env
from astrai.cli.options import OptionError
from astrai.deploy.ray_options import RayOptions, read_options
from astrai.server import ServerSettings

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "ray.md"


def test_without_arguments_everything_has_its_default() -> None:
    options, settings = read_options({})

    assert settings == ServerSettings()
    assert (options.num_replicas, options.routing, options.max_replicas) == (1, "prefix", None)


def test_the_guide_lists_every_option_with_its_default() -> None:
    row = re.compile(r"^\| `(\w+)` \|([^|]*)\|", re.MULTILINE)
    listed = {name: told.strip() for name, told in row.findall(GUIDE.read_text())}

    assert listed == {
        name: "" if field.default is None else str(field.default)
        for name, field in RayOptions.model_fields.items()
    }


def test_texts_are_read_as_on_a_command_line() -> None:
    options, settings = read_options(
        {"num_replicas": "3", "num_cpus": "0.5", "kv-tokens": "4096", "cuda_graph": "false"}
    )

    assert (options.num_replicas, options.num_cpus) == (3, 0.5)
    assert (settings.kv_tokens, settings.cuda_graph) == (4096, False)


def test_keys_without_a_value_have_their_default() -> None:
    assert read_options({"num_replicas": None, "kv_tokens": None}) == read_options({})


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("server:\n  port: 9000\n  page_size: 32\n  max_queue: 7\n")

    _, settings = read_options({"config": str(file), "max_queue": 9})

    assert (settings.page_size, settings.max_queue) == (32, 9)


def test_keys_of_the_environment_guard_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAI_API_KEY", "a,b")
    env.reload()
    try:
        assert read_options({})[1].api_keys == ("a", "b")
    finally:
        monkeypatch.undo()
        env.reload()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"num_replica": 2}, "unknown key 'num_replica'; did you mean 'num_replicas'"),
        ({"kv_tokens": "many"}, "kv_tokens should be a whole number, got 'many'"),
        ({"kv_tokens": 4.5}, "kv_tokens should be a whole number, got 4.5"),
        ({"cuda_graph": "maybe"}, "cuda_graph should be true or false, got 'maybe'"),
        ({"api_key": ""}, "api_key is empty"),
        ({"num_replicas": 0}, "num_replicas is 0: .* greater than or equal to 1"),
        ({"routing": "random"}, "routing is 'random': .*'prefix' or 'least_loaded'"),
        ({"port": 8000}, "port is not the engines': Ray Serve listens"),
        ({"engine_process": "on"}, "engine_process is not for Ray"),
        ({"min_replicas": 2}, "min_replicas needs max_replicas"),
        ({"max_replicas": 2, "num_replicas": 2}, "num_replicas is a fixed number"),
        ({"max_replicas": 2, "min_replicas": 3}, "min_replicas is 3; it should be at most"),
    ],
)
def test_a_wrong_argument_is_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(args)


def test_a_missing_ray_is_named_with_the_command_that_brings_it() -> None:
    code = """
import sys
class NoRay:
    def find_spec(self, name, path=None, target=None):
        if name == "ray" or name.startswith("ray."):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoRay())
try:
    import astrai.deploy.ray
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'astrai[ray]'" in done.stdout


def test_the_engines_deployment_follows_the_options() -> None:
    pytest.importorskip("ray.serve", reason="needs the ray extra")
    from astrai.deploy.ray.application import engine_options

    def deployment(**args: Any) -> dict[str, Any]:
        return engine_options(*read_options({"max_batch_size": 6, "max_queue": 0, **args}))

    fixed = deployment(num_replicas=3, device="cuda", drain_timeout_s=9)
    assert fixed["num_replicas"] == 3 and "autoscaling_config" not in fixed
    assert fixed["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 1}
    assert (fixed["max_ongoing_requests"], fixed["max_queued_requests"]) == (12, 1)
    assert fixed["graceful_shutdown_timeout_s"] > 9
    routing = fixed["request_router_config"].request_router_kwargs
    assert routing == {"max_lead": 3, "follows_pages": True}

    scaled = deployment(max_replicas=4, routing="least_loaded")
    assert "num_replicas" not in scaled
    assert not scaled["request_router_config"].request_router_kwargs["follows_pages"]
    scaling = scaled["autoscaling_config"]
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 4)
    assert scaling.target_ongoing_requests == 6
