"""A wheel as a file: its name, its contents, and how it gets a local version.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WheelName:
    distribution: str
    version: str  # with its local part, such as 0.1.0+cpu
    python: str
    abi: str
    platform: str  # tags with dots between them

    def __str__(self) -> str:
        return f"{self.distribution}-{self.version}-{self.python}-{self.abi}-{self.platform}.whl"

    @property
    def local(self) -> str:
        """The local version, "" for a wheel that a public index takes."""
        return self.version.partition("+")[2]

    @property
    def dist_info(self) -> str:
        return f"{self.distribution}-{self.version}.dist-info"


def parse_name(wheel: Path) -> WheelName:
    """Raises ValueError for a file that is not named like a wheel without a build number."""
    parts = wheel.name.removesuffix(".whl").split("-")
    if wheel.suffix != ".whl" or len(parts) != 5:
        raise ValueError(f"{wheel.name} is no NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    return WheelName(*parts)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def metadata(wheel: Path) -> bytes:
    return read_member(wheel, f"{parse_name(wheel).dist_info}/METADATA")


def metadata_field(wheel: Path, field: str) -> str:
    """One field of METADATA, "" when it is not there."""
    return HeaderParser().parsestr(metadata(wheel).decode())[field] or ""


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of the wheel by name; their times and order left out."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        return {name: archive.read(name) for name in names}


def with_local_version(wheel: Path, local: str, folder: Path) -> Path:
    """Write the wheel into `folder` again under VERSION+local and return its path.

    Only the name, METADATA and RECORD change, so that variants of one build hold the same code.
    local: letters and digits (PEP 440). Raises ValueError where the wheel has a local version.
    """
    old = parse_name(wheel)
    if old.local or not re.fullmatch(r"[a-z0-9]+", local):
        raise ValueError(f"{wheel.name} cannot get the local version '{local}'")
    new = replace(old, version=f"{old.version}+{local}")
    changed = _with_version(metadata(wheel), old.version, new.version)
    target = folder / str(new)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as archive:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename == f"{old.dist_info}/METADATA":
                content = changed
            elif entry.filename == f"{old.dist_info}/RECORD":
                content = _moved_record(content, old, new, changed)
            entry.filename = entry.filename.replace(old.dist_info, new.dist_info, 1)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return target


def _with_version(content: bytes, old: str, new: str) -> bytes:
    before, after = f"\nVersion: {old}\n".encode(), f"\nVersion: {new}\n".encode()
    if content.count(before) != 1:
        raise ValueError(f"METADATA has no single line 'Version: {old}'")
    return content.replace(before, after)


def _moved_record(content: bytes, old: WheelName, new: WheelName, changed: bytes) -> bytes:
    """RECORD under the new name of dist-info, with the hash and size of the changed METADATA."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, digest, size in csv.reader(io.StringIO(content.decode())):
        if name == f"{old.dist_info}/METADATA":
            digest, size = record_digest(changed), str(len(changed))
        writer.writerow([name.replace(old.dist_info, new.dist_info, 1), digest, size])
    return rows.getvalue().encode()


def record_digest(content: bytes) -> str:
    """How RECORD writes a SHA-256."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
