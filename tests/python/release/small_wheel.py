"""A valid wheel of one module, for tests of what is done with wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

from release.wheel_file import record_digest

MODULE = b'"""A stand-in for the package."""\n'


def write_wheel(
    folder: Path,
    version: str = "0.1.0",
    requires_python: str = ">=3.10",
    distribution: str = "astrai",
    module: bytes = MODULE,
) -> Path:
    """Writes and returns DISTRIBUTION-VERSION-py3-none-any.whl."""
    info = f"{distribution}-{version}.dist-info"
    files = {
        f"{distribution}/__init__.py": module,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            f"Requires-Python: {requires_python}\n\nVersion: of the description\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},{record_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{distribution}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path
