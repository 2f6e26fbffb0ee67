"""serve.yaml as the container's tools read it, and the compose project that they make of it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_project import compose_project
from model_location import locate_model, model_problems
from runtime_checks import problems, warnings
from runtime_config import Runtime
from runtime_config import read_runtime as read

from astrai.models.hub import is_hub_id

REPO = Path(__file__).resolve().parents[3]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes serve.yaml into a folder with a space: keys of server: by name, runtime: as one."""

    def write_file(runtime: Any = None, **server: Any) -> Path:
        folder = tmp_path / "a folder"
        folder.mkdir(exist_ok=True)
        path = folder / "serve.yaml"
        content = {"server": {"host": "0.0.0.0", "device": "cpu", **server}, "runtime": runtime}
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        path.chmod(0o644)
        return path

    return write_file


def told(path: Path) -> str:
    """What preflight says of a file, as one text; the port is left out."""
    found = problems(read(path), is_own_port=True)
    return "\n".join(f"{problem.what}: {problem.remedy}" for problem in found)


def service(path: Path) -> Any:
    (found,) = compose_project(read(path))["services"].values()
    return found


def binds(path: Path) -> dict[str, tuple[str, bool]]:
    """Target to source and whether it is read only."""
    return {
        volume["target"]: (volume["source"], volume["read_only"])
        for volume in service(path)["volumes"]
        if volume["type"] == "bind"
    }


def test_the_sample_names_every_key_and_its_default() -> None:
    text = (REPO / "docker" / "serve.yaml").read_text(encoding="utf-8")
    sample = yaml.safe_load(text)
    runtime = read(REPO / "docker" / "serve.yaml")
    assert list(sample["runtime"]) == [
        *("job_name", "address", "port", "image", "paths", "gpu", "mounts", "environment")
    ]
    assert runtime.gpus == () and runtime.container == "astrai-server"
    assert runtime.url == "http://127.0.0.1:8000" and runtime.image is None
    assert runtime.param is None and runtime.cache is None and runtime.mounts == ()


def test_a_file_without_runtime_takes_the_defaults(write: Write) -> None:
    runtime = read(write())
    assert runtime == Runtime(
        config=write(),
        server=runtime.server,
        container="astrai-server",
        address="127.0.0.1",
        port=8000,
        image=None,
        param=None,
        cache=None,
        gpus=None,
        mounts=(),
        environment={},
    )


@pytest.mark.parametrize(
    "runtime, words",
    [
        ([1], ["runtime is [1]", "mapping"]),
        ({"prot": 1}, ["runtime.prot", "'port'"]),
        ({"paths": {"params": "a"}}, ["runtime.paths.params", "'param'"]),
        ({"paths": "a"}, ["runtime.paths is 'a'", "mapping"]),
        ({"port": 0}, ["runtime.port is 0", "65535"]),
        ({"port": True}, ["runtime.port is True"]),
        ({"port": "8000"}, ["runtime.port is '8000'"]),
        ({"address": "localhost"}, ["runtime.address", "IP address"]),
        ({"address": 7}, ["runtime.address is 7"]),
        ({"job_name": "A b"}, ["runtime.job_name", "small letters"]),
        ({"image": " "}, ["runtime.image", "a text"]),
        ({"gpu": {"enabled": 1}}, ["runtime.gpu.enabled is 1", "true or false"]),
        ({"gpu": {"enabled": True}}, ["runtime.gpu.enabled", "server.device is cpu"]),
        ({"gpu": {"devices": [0]}}, ["runtime.gpu.devices", "enabled is false"]),
        ({"mounts": ["a"]}, ["runtime.mounts is 'a'", "HOST:CONTAINER"]),
        ({"mounts": ["a:b"]}, ["runtime.mounts", "absolute"]),
        ({"mounts": ["a:/b:rx"]}, ["runtime.mounts is 'a:/b:rx'"]),
        ({"mounts": "a:/b"}, ["runtime.mounts", "list"]),
        ({"environment": ["A=1"]}, ["runtime.environment", "mapping"]),
        ({"environment": {"A-B": 1}}, ["runtime.environment", "'A-B'"]),
        ({"environment": {"A": [1]}}, ["runtime.environment.A", "a text"]),
    ],
)
def test_a_bad_key_is_named_with_what_it_takes(
    write: Write, runtime: Any, words: list[str]
) -> None:
    path = write(runtime)
    with pytest.raises(ValueError) as info:
        read(path)
    assert all(word in str(info.value) for word in [str(path), *words]), info.value


@pytest.mark.parametrize(
    "server, runtime, words",
    [
        ({"host": "127.0.0.1"}, {}, ["server.host", "0.0.0.0"]),
        ({"host": None}, {}, ["server.host is 127.0.0.1", "0.0.0.0"]),
        ({"port": 0}, {}, ["server.port is 0"]),
        ({"device": "cuda"}, {"gpu": {"enabled": False}}, ["server.device is cuda"]),
        ({"device": "cuda:2"}, {"gpu": {"devices": [4, 5]}}, ["cuda:2", "2 GPUs"]),
        ({"device": "cuda"}, {"gpu": {"devices": []}}, ["at least one"]),
        ({"device": "cuda"}, {"gpu": {"devices": [1, 1]}}, ["each GPU once"]),
        ({"device": "cuda"}, {"gpu": {"devices": [-1]}}, ["-1", "nvidia-smi -L"]),
        ({"device": "cuda"}, {"gpu": {"devices": "first"}}, ["'first'"]),
        ({"model": "a/b"}, {"paths": {"param": "m"}}, ["server.model", "keep one"]),
    ],
)
def test_the_two_sections_have_to_fit(
    write: Write, server: Any, runtime: Any, words: list[str]
) -> None:
    with pytest.raises(ValueError) as info:
        read(write(runtime, **server))
    assert all(word in str(info.value) for word in words), info.value


def test_gpus_are_all_of_them_or_those_listed(write: Write) -> None:
    def devices(runtime: Any) -> Any:
        found = service(write(runtime, device="cuda"))
        return found["deploy"]["resources"]["reservations"]["devices"]

    request = {"driver": "nvidia", "capabilities": ["gpu"]}
    assert devices(None) == [{**request, "count": "all"}]
    listed = {"gpu": {"devices": [1, "GPU-0a-b1"]}}
    assert devices(listed) == [{**request, "device_ids": ["1", "GPU-0a-b1"]}]
    assert devices({"gpu": {"devices": 3}}) == [{**request, "device_ids": ["3"]}]
    assert "deploy" not in service(write())


def test_the_published_port_leads_to_the_server_s(write: Write) -> None:
    path = write({"port": 9100, "address": "::"}, port=7000)
    (port,) = service(path)["ports"]
    assert port == {"target": 7000, "published": "9100", "host_ip": "::", "protocol": "tcp"}
    assert read(path).url == "http://127.0.0.1:9100"
    assert read(write({"address": "::1"})).url == "http://[::1]:8000"


def test_mounts_are_absolute_and_read_only_unless_said(write: Write, tmp_path: Path) -> None:
    path = write({"mounts": ["./my adapters:/adapters/", f"{tmp_path}:/logs:rw"]})
    assert binds(path) == {
        "/run/astrai/serve.yaml": (str(path), True),
        "/adapters": (str(path.parent / "my adapters"), True),
        "/logs": (str(tmp_path), False),
    }


def test_the_cache_is_one_volume_or_a_folder(write: Write) -> None:
    volumes = service(write())["volumes"]
    assert {"type": "volume", "source": "cache", "target": "/cache"} in volumes
    external = {"cache": {"name": "astrai-cache", "external": True}}
    assert compose_project(read(write()))["volumes"] == external
    path = write({"paths": {"cache": "./cache"}})
    assert "volumes" not in compose_project(read(path))
    assert binds(path)["/cache"] == (str(path.parent / "cache"), False)


def test_variables_reach_the_container_as_they_are_written(write: Write) -> None:
    variables = {"HF_TOKEN": None, "A": "pa$$word ${B}", "N": 4, "ON": True}
    assert service(write({"environment": variables}))["environment"] == {
        "HF_TOKEN": None,
        "A": "pa$$$$word $${B}",  # compose makes one $ of two
        "N": "4",
        "ON": "true",
    }


def test_the_stop_outlasts_the_drain(write: Write) -> None:
    assert service(write(drain_timeout_s=20.5))["stop_grace_period"] == "31s"


# ---- the model -----------------------------------------------------------------------------------


def make_folder(folder: Path, shards: int = 0, missing: int = 0) -> Path:
    """A model folder whose weights are names alone."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    names = [f"model-{i:05}-of-{shards:05}.safetensors" for i in range(1, shards + 1)]
    if names:
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names[: shards - missing] or (["model.safetensors"] if not shards else []):
        (folder / name).write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("shards", [0, 1, 3])
def test_whole_and_sharded_checkpoints_are_mounted_where_the_server_looks(
    write: Write, shards: int
) -> None:
    path = write(model="./my model")
    folder = make_folder(path.parent / "my model", shards)
    assert told(path) == ""
    assert binds(path)["/models/my model"] == (str(folder), True)
    config = ["--config", "/run/astrai/serve.yaml"]
    assert service(path)["command"] == [*config, "--model", "/models/my model"]


def test_gguf_files_and_folders_with_one_are_accepted(write: Write) -> None:
    path = write(model="tiny.gguf")
    file = path.parent / "tiny.gguf"
    file.write_bytes(b"GGUF\3\0\0\0")
    assert told(path) == "" and binds(path)["/models/tiny.gguf"] == (str(file), True)
    assert told(write(model=str(path.parent))) == ""
    (path.parent / "other.gguf").write_bytes(b"GGUF")
    assert "other.gguf, tiny.gguf: name one" in told(write(model=str(path.parent)))


def test_param_is_another_name_for_the_model_s_path(write: Write) -> None:
    path = write({"paths": {"param": "./params"}})
    make_folder(path.parent / "params")
    assert told(path) == "" and service(path)["command"][-1] == "/models/params"


@pytest.mark.parametrize("model", [None, "none", "HuggingFaceTB/SmolLM2-360M-Instruct"])
def test_what_is_not_of_this_machine_is_left_to_the_server(write: Write, model: Any) -> None:
    path = write(model=model)
    assert told(path) == "" and "--model" not in service(path)["command"]
    assert list(binds(path)) == ["/run/astrai/serve.yaml"]


@pytest.mark.parametrize(
    "name", ["a/b", "A-1/b.c_d", "a", "a/b/c", "./a", "/a/b", "a/../b", "~a/b"]
)
def test_a_hub_id_is_what_the_loader_takes_for_one(write: Write, name: str) -> None:
    is_hub = locate_model(read(write(model=name))).path is None
    assert is_hub == is_hub_id(name)


def test_a_path_of_the_container_is_checked_in_its_mount(write: Write, tmp_path: Path) -> None:
    make_folder(tmp_path / "store" / "good")
    mounts = {"mounts": [f"{tmp_path}/store:/store"]}
    assert told(write(mounts, model="/store/good")) == ""
    assert list(binds(write(mounts, model="/store/good"))) == ["/run/astrai/serve.yaml", "/store"]
    assert f"{tmp_path}/store/bad does not exist" in told(write(mounts, model="/store/bad"))


def test_a_snapshot_of_the_hub_s_cache_is_mounted_with_its_files(write: Write) -> None:
    path = write(model="./models--a--b/snapshots/c0ffee")
    repo = path.parent / "models--a--b"
    snapshot = make_folder(repo / "snapshots" / "c0ffee")
    (repo / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(repo / "blobs" / "1")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1")
    assert told(path) == ""
    assert binds(path)["/models/models--a--b"] == (str(repo), True)
    assert service(path)["command"][-1] == "/models/models--a--b/snapshots/c0ffee"


def damage_of(kind: str, folder: Path) -> None:
    if kind == "no config.json":
        (folder / "config.json").unlink()
    elif kind == "pointer":
        (folder / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github")
    elif kind == "no index":
        (folder / "model.safetensors.index.json").unlink()
    elif kind == "broken index":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": 1}')
    elif kind == "link":
        shard = folder / "model-00001-of-00002.safetensors"
        shard.rename(folder.parent / "elsewhere")
        shard.symlink_to("../elsewhere")
    elif kind == "shard":
        (folder / "model-00002-of-00002.safetensors").unlink()


@pytest.mark.parametrize(
    "kind, words",
    [
        ("no config.json", ["neither config.json nor a .gguf", "hf download"]),
        ("pointer", ["Git LFS pointer", "lfs pull"]),
        ("no index", ["neither model.safetensors nor", "hf download"]),
        ("broken index", ["no index of shards"]),
        ("link", ["outside the mounted folder", "cp -rL"]),
        ("shard", ["model-00002-of-00002.safetensors is missing", "every shard"]),
    ],
)
def test_what_a_model_folder_lacks_is_named(write: Write, kind: str, words: list[str]) -> None:
    path = write(model="./m")
    damage_of(kind, make_folder(path.parent / "m", shards=2))
    assert all(word in told(path) for word in words), told(path)


@pytest.mark.parametrize(
    "content, words", [(b"version https://git-lfs", "LFS pointer"), (b"PK\3\4", "no GGUF file")]
)
def test_what_is_no_gguf_is_named(write: Write, content: bytes, words: str) -> None:
    path = write(model="m.gguf")
    (path.parent / "m.gguf").write_bytes(content)
    assert words in told(path)


def test_the_goldens_pass_as_the_loader_takes_them(write: Write) -> None:
    tiny = REPO / "tests" / "goldens" / "tiny"
    for name in ("llama_llama3", "llama_tied"):  # in six shards, and whole
        assert model_problems(locate_model(read(write(model=str(tiny / name))))) == []


# ---- what the container's user may do ------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder", "config"])
def test_what_the_container_s_user_cannot_read_is_named(write: Write, what: str) -> None:
    path = write(model="./m")
    folder = make_folder(path.parent / "m")
    closed = {"file": folder / "model.safetensors", "folder": folder, "config": path}[what]
    closed.chmod(0o700 if what == "folder" else 0o600)
    text = told(path)
    assert "cannot read" in text and str(closed) in text
    assert ("chgrp" if what == "config" else "chmod -R o+rX") in text


def test_rights_of_the_container_s_own_group_are_enough(write: Write) -> None:
    path = write()
    path.chmod(0o640)
    if os.geteuid() != 0:
        pytest.skip("only root may give a file to another group")
    os.chown(path, -1, 10001)
    assert told(path) == ""


def test_a_cache_that_cannot_be_written_is_named(write: Write) -> None:
    path = write({"paths": {"cache": "./cache"}})
    assert "is no folder" in told(path) and "mkdir -p" in told(path)
    cache = path.parent / "cache"
    cache.mkdir(mode=0o755)
    assert "cannot write" in told(path) and "sudo chown 10001:10001" in told(path)
    cache.chmod(0o777)
    assert told(path) == ""


def test_certificates_have_to_be_mounted(write: Write, tmp_path: Path) -> None:
    files = {"ssl_certfile": "/certs/a.pem", "ssl_keyfile": "/keys/a.pem"}
    (tmp_path / "certs").mkdir()
    text = told(write({"mounts": [f"{tmp_path}/certs:/certs"]}, **files))
    assert "server.ssl_keyfile" in text and "server.ssl_certfile" not in text


def test_a_taken_port_and_a_foreign_address_are_named(write: Write) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (taken,) = problems(read(write({"port": port})), is_own_port=False)
        assert f"127.0.0.1:{port} is taken" in taken.what
        assert problems(read(write({"port": port})), is_own_port=True) == []
    (foreign,) = problems(read(write({"address": "192.0.2.1"})), is_own_port=False)
    assert "no address of this machine" in foreign.what


def test_an_open_port_without_a_key_is_warned_of(write: Write) -> None:
    assert warnings(read(write())) == []
    (warning,) = warnings(read(write({"address": "0.0.0.0"})))
    assert "no API key" in warning
    key = {"environment": {"ASTRAI_API_KEY": None}}
    assert warnings(read(write({"address": "0.0.0.0", **key}))) == []
    assert warnings(read(write({"address": "0.0.0.0"}, api_keys="a"))) == []


# ---- compose's own schema ------------------------------------------------------------------------


def test_compose_accepts_the_template_and_what_is_made_of_it(
    write: Write, tmp_path: Path, tool: Callable[[str, str], str]
) -> None:
    full = {
        "job_name": "b",
        "address": "::1",
        "gpu": {"devices": [0, 1]},
        "mounts": ["a:/a:rw"],
        "environment": {"A": None, "B": "b"},
        "paths": {"cache": "c", "param": "m"},
    }
    files = [REPO / "docker" / "compose.yaml"]
    for i, path in enumerate([write(), write(full, device="cuda:1"), write({"image": "a/b:1"})]):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(json.dumps(compose_project(read(path))))
    check = tool("check-jsonschema", "check-jsonschema")
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", *map(str, files)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_template_alone_agrees_with_the_sample() -> None:
    template = yaml.safe_load((REPO / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    made = service(REPO / "docker" / "serve.yaml")
    server = template["services"]["server"]
    for key in ("command", "deploy", "image", "restart", "read_only", "stop_grace_period"):
        assert server[key] == made[key]
    assert server["ports"] == [
        "${ASTRAI_ADDRESS:-127.0.0.1}:${ASTRAI_PORT:-8000}:${ASTRAI_CONTAINER_PORT:-8000}"
    ]
    assert template["services"]["server-cpu"]["profiles"] == ["cpu"]


# ---- its page ------------------------------------------------------------------------------------


def test_the_page_tells_keys_and_messages_that_exist() -> None:
    page = (REPO / "docs" / "developer" / "docker-serving.md").read_text(encoding="utf-8")
    keys = set(re.findall(r"^\| `([a-z_.]+)` \| ", page, re.MULTILINE))
    sample = yaml.safe_load((REPO / "docker" / "serve.yaml").read_text(encoding="utf-8"))
    expected = set()
    for name, value in sample["runtime"].items():
        is_section = name in ("paths", "gpu")
        expected |= {f"{name}.{key}" for key in value} if is_section else {name}
    commands = {"init", "preflight", "build", "up", "run", "down", "restart", "logs", "status"}
    assert keys - commands == expected and commands <= keys
    table = page.partition("## What preflight says")[2].partition("## The images")[0]
    sources = [*(REPO / "docker").glob("*.py"), REPO / "scripts" / "serve.sh"]
    said = re.sub(r"[{}]", "", "\n".join(file.read_text() for file in sources))
    for words in re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.M))):
        parts = re.split(r"\b(?:PATH|ADDRESS:PORT|X|10001)\b|server\.ssl_certfile", words)
        assert all(part.strip(" :()") in said for part in parts), words
