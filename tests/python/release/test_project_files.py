"""The files that describe the project to others agree with each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from script_folder import SCRIPTS

ROOT = SCRIPTS.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
THIRD_PARTY = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")


def workflow(name: str) -> dict[str, object]:
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    loaded: dict[str, object] = yaml.safe_load(text)
    return loaded


def classified_pythons() -> list[str]:
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)


def test_every_dependency_has_its_licence_told_and_no_other_has() -> None:
    block = re.search(r"^dependencies = \[\n(.*?)^\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    needed = re.findall(r'^ *"([\w-]+)', block.group(1), re.MULTILINE)
    beside = THIRD_PARTY.partition("## What pip installs beside it")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([\w-]+) \| [^|]+ \|$", beside, re.MULTILINE)
    assert [name for name in told if name not in ("package", "---")] == needed


def test_a_wheel_carries_the_licences() -> None:
    assert 'license-files = ["LICENSE", "THIRD_PARTY.md"]' in PYPROJECT
    assert "Redistributions in binary form must reproduce" in THIRD_PARTY  # pybind11's terms


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_the_workflows_cover_every_python_that_is_claimed(name: str) -> None:
    jobs = workflow(name)["jobs"]
    assert isinstance(jobs, dict)
    matrices = [job["strategy"]["matrix"] for job in jobs.values() if "strategy" in job]
    pythons = [matrix["python"] for matrix in matrices if "python" in matrix]
    assert pythons
    assert all(listed == classified_pythons() for listed in pythons)


def test_the_oldest_python_is_the_one_required() -> None:
    assert f'requires-python = ">={classified_pythons()[0]}"' in PYPROJECT


def subject_status(tmp_path: Path, message: str) -> int:
    file = tmp_path / "message"
    file.write_text(message)
    script = SCRIPTS / "lib" / "commit_subject.sh"
    return subprocess.run([script, file], capture_output=True, check=False).returncode


def test_a_commit_subject_needs_an_area_and_at_most_72_columns(tmp_path: Path) -> None:
    assert subject_status(tmp_path, "core: keep LRU order\n\nA body.\n") == 0
    assert subject_status(tmp_path, "multiple updates\n") == 1
    assert subject_status(tmp_path, "core: " + "x" * 67 + "\n") == 1


def test_the_subject_check_knows_the_areas_of_contributing() -> None:
    script = (SCRIPTS / "lib" / "commit_subject.sh").read_text()
    checked = re.search(r'areas="([\w|]+)"', script)
    told = re.search(r"Areas: ([\w,\s]+)\.", (ROOT / "CONTRIBUTING.md").read_text())
    assert checked is not None and told is not None
    assert re.split(r",\s+", told.group(1)) == checked.group(1).split("|")
