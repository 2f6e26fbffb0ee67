"""Where the container finds the model that serve.yaml names, and whether its files are all there.

The same sources as the loader's: a folder with config.json and safetensors, whole or in shards; a
.gguf file, or a folder with one; a hub id; nothing, which is the default model. Only names and
first bytes are read: whether the tensors fit is the loader's to say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from runtime_config import MODEL_TARGET, Mount, Runtime, host_path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the command or edit that mends it."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Model:
    """What to tell docker and the server.

    mount: of the model's files, None where a mount of the user's has them or nothing is mounted.
    argument: of --model inside the container, None to leave it to serve.yaml. path: on this
    machine, None for a hub id, the default model and none.
    """

    mount: Mount | None = None
    argument: str | None = None
    path: Path | None = None


def locate_model(runtime: Runtime) -> Model:
    """Where the model lies. Does not look whether it is there, but tells a hub id from a path."""
    name = runtime.server.model
    if runtime.param is None and (name is None or name == "none"):
        return Model()
    if runtime.param is None and name is not None:
        mounted = _in_a_mount(name, runtime.mounts)
        if mounted is not None:
            return Model(path=mounted)
        path = host_path(runtime.config, name)
        if not path.exists() and _HUB_ID.match(name):
            return Model()
    else:
        assert runtime.param is not None
        path = runtime.param
    path = Path(os.path.abspath(path))
    # The hub's cache: files of a snapshot are links to ../../blobs, so both have to be mounted.
    folder = path.parent.parent if path.parent.name == "snapshots" else path
    target = f"{MODEL_TARGET}/{folder.name}"
    inside = path.relative_to(folder)
    return Model(
        mount=Mount(folder, target),
        argument=str(Path(target) / inside),
        path=path,
    )


def _in_a_mount(name: str, mounts: tuple[Mount, ...]) -> Path | None:
    """The file of this machine that an absolute path of the container stands for."""
    for mount in mounts:
        if Path(name).is_absolute() and Path(name).is_relative_to(mount.target):
            return mount.source / Path(name).relative_to(mount.target)
    return None


def model_problems(model: Model) -> list[Problem]:
    """Everything that is missing of a model on this machine."""
    path = model.path
    if path is None:
        return []
    if not path.exists():
        remedy = (
            "name a folder, a .gguf file or a hub id in server.model, or fetch it: "
            f"hf download OWNER/NAME --local-dir {shlex.quote(str(path))}"
        )
        return [Problem(f"model: {path} does not exist", remedy)]
    if path.is_file():
        return _gguf_problems(path)
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and not (path / "config.json").is_file():
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs)
            return [Problem(f"model: {path} has several .gguf files: {names}", "name one of them")]
        return _gguf_problems(ggufs[0])
    return _folder_problems(path, model.mount)


def _gguf_problems(path: Path) -> list[Problem]:
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        return [_lfs_pointer(path)]
    if start[:4] != b"GGUF":
        return [Problem(f"model: {path} is no GGUF file", "name a model folder or a .gguf file")]
    return []


def _folder_problems(folder: Path, mount: Mount | None) -> list[Problem]:
    fetch = f"hf download OWNER/NAME --local-dir {shlex.quote(str(folder))}"
    if not (folder / "config.json").is_file():
        what = f"model: {folder} has neither config.json nor a .gguf file"
        return [Problem(what, f"name another folder, or fetch the model: {fetch}")]
    if (folder / _WHOLE).is_file():
        weights = [folder / _WHOLE]
    elif (folder / _INDEX).is_file():
        shards = _shards(folder / _INDEX)
        if isinstance(shards, Problem):
            return [shards]
        weights = [folder / name for name in shards]
    else:
        what = f"model: {folder} has neither {_WHOLE} nor {_INDEX}"
        return [Problem(what, f"fetch the safetensors files: {fetch}")]
    found = []
    for path in [folder / "config.json", *weights]:
        if not path.is_file():
            found.append(Problem(f"model: {path} is missing", f"fetch every shard: {fetch}"))
        elif mount is not None and not path.resolve().is_relative_to(mount.source.resolve()):
            copy = f"cp -rL {shlex.quote(str(folder))} COPY"
            what = f"model: {path} is a link to {path.resolve()}, outside the mounted folder"
            found.append(Problem(what, f"name a copy without links: {copy}"))
        elif path.stat().st_size < 1024 and path.read_bytes().startswith(_LFS_POINTER):
            found.append(_lfs_pointer(path))
    return found


def _shards(index: Path) -> list[str] | Problem:
    """The file names in an index of shards."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return sorted({str(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Problem(f"model: {index} is no index of shards", "fetch it again")


def _lfs_pointer(path: Path) -> Problem:
    folder = shlex.quote(str(path.parent))
    return Problem(f"model: {path} is a Git LFS pointer, not the file", f"git -C {folder} lfs pull")
