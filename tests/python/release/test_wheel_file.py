"""Wheels as files: names, local versions, comparison."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from script_folder import SCRIPTS
from small_wheel import write_wheel

from release.wheel_file import (
    contents,
    metadata_field,
    parse_name,
    record_digest,
    with_local_version,
)


def test_a_name_is_read_and_written_back() -> None:
    name = "astrai-0.1.0+cu130-cp311-cp311-manylinux_2_35_x86_64.whl"
    parsed = parse_name(Path("dist") / name)
    assert (parsed.version, parsed.local) == ("0.1.0+cu130", "cu130")
    assert str(parsed) == name


@pytest.mark.parametrize("name", ["astrai-0.1.0.tar.gz", "astrai-0.1.0-py3-none.whl"])
def test_what_is_no_wheel_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no NAME-VERSION-PYTHON-ABI-PLATFORM"):
        parse_name(Path(name))


def test_a_local_version_changes_the_name_and_one_line_of_metadata(tmp_path: Path) -> None:
    public = write_wheel(tmp_path)
    local = with_local_version(public, "cu130", tmp_path)

    assert local.name == "astrai-0.1.0+cu130-py3-none-any.whl"
    assert metadata_field(local, "Version") == "0.1.0+cu130"
    before, after = contents(public), contents(local)
    assert before["astrai/__init__.py"] == after["astrai/__init__.py"]
    assert {name.replace("0.1.0", "0.1.0+cu130") for name in before} == after.keys()
    old, new = (
        files[f"astrai-{version}.dist-info/METADATA"].splitlines()
        for files, version in ((before, "0.1.0"), (after, "0.1.0+cu130"))
    )
    assert [line for line in new if line not in old] == [b"Version: 0.1.0+cu130"]


def test_record_describes_every_file_after_the_change(tmp_path: Path) -> None:
    files = contents(with_local_version(write_wheel(tmp_path), "cpu", tmp_path))
    rows = csv.reader(io.StringIO(files["astrai-0.1.0+cpu.dist-info/RECORD"].decode()))
    recorded = {name: (digest, size) for name, digest, size in rows}
    assert recorded.keys() == files.keys()
    assert recorded.pop("astrai-0.1.0+cpu.dist-info/RECORD") == ("", "")
    for name, told in recorded.items():
        assert told == (record_digest(files[name]), str(len(files[name]))), name


def test_pip_installs_a_wheel_with_a_local_version(tmp_path: Path) -> None:
    wheel = with_local_version(write_wheel(tmp_path), "cpu", tmp_path)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run([*command, "--target", tmp_path / "site"], check=True)
    assert (tmp_path / "site" / "astrai-0.1.0+cpu.dist-info").is_dir()


@pytest.mark.parametrize("local", ["", "CPU", "cu-130"])
def test_a_local_version_of_another_form_is_refused(local: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot get the local version"):
        with_local_version(write_wheel(tmp_path), local, tmp_path)


def compare(first: Path, second: Path) -> tuple[int, str]:
    command = [sys.executable, SCRIPTS / "compare_wheels", first, second]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_wheels_of_the_same_files_are_the_same(tmp_path: Path) -> None:
    first, second = write_wheel(tmp_path / "a"), write_wheel(tmp_path / "b")
    assert compare(first, second) == (0, "the same 4 files\n")


def test_each_difference_of_two_wheels_is_told(tmp_path: Path) -> None:
    first = write_wheel(tmp_path / "a")
    second = write_wheel(tmp_path / "b", module=b"changed = True\n")
    status, told = compare(first, second)
    assert status == 1
    assert "different contents: astrai/__init__.py" in told
    assert "different contents: astrai-0.1.0.dist-info/RECORD" in told
