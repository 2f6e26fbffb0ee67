"""scripts/serve.sh with a docker that records its calls."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml
from stub_docker import REPO, Machine

CPU = {"server": {"host": "0.0.0.0", "device": "cpu"}}
GPU = {"server": {"host": "0.0.0.0", "device": "cuda"}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "a machine")


def write(folder: Path, content: dict[str, dict[str, object]], **runtime: object) -> Path:
    """A serve.yaml in a folder whose name has a space, published on a free port."""
    folder = folder / "my models"
    folder.mkdir(exist_ok=True)
    path = folder / "serve.yaml"
    section = {"port": free_port(), **content.get("runtime", {}), **runtime}
    path.write_text(yaml.safe_dump({**content, "runtime": section}))
    path.chmod(0o644)
    return path


def test_init_writes_the_sample_once_and_never_over_a_file(machine: Machine) -> None:
    config = machine.folder / "mine.yaml"
    assert machine.serve_sh("init", config).returncode == 0
    assert config.read_text() == (REPO / "docker" / "serve.yaml").read_text()
    config.write_text("server: {port: 9}\n")
    again = machine.serve_sh("init", config)
    assert again.returncode == 0 and "stays as it is" in again.stdout
    assert config.read_text() == "server: {port: 9}\n"


def test_init_names_a_folder_that_is_not_there(machine: Machine) -> None:
    done = machine.serve_sh("init", machine.folder / "no" / "serve.yaml")
    assert done.returncode == 1 and "mkdir -p" in done.stderr


def test_the_file_is_the_argument_else_the_variable_else_serve_yaml(machine: Machine) -> None:
    named = write(machine.folder, CPU, job_name="named")
    (machine.folder / "serve.yaml").write_text(
        named.read_text().replace("job_name: named", "job_name: here")
    )
    variable = machine.folder / "variable.yaml"
    variable.write_text(named.read_text().replace("job_name: named", "job_name: variable"))
    machine.write("states", "running 0 healthy")
    assert "astrai-server-named:" in machine.serve_sh("status", named).stdout
    assert "astrai-server-here:" in machine.serve_sh("status").stdout
    told = machine.serve_sh("status", SERVE_CONFIG_FILE=str(variable)).stdout
    assert "astrai-server-variable:" in told


def test_up_builds_starts_and_waits_until_it_serves(machine: Machine) -> None:
    config = write(machine.folder, GPU, port=(port := free_port()))
    done = machine.serve_sh("up", config)
    assert done.returncode == 0, done.stderr
    assert machine.compose_calls() == [["build"], ["up", "--detach"]]
    assert ["volume", "create", "astrai-cache"] in machine.calls()
    assert f"astrai-server serves at http://127.0.0.1:{port}" in done.stdout
    service = machine.service()
    assert service["container_name"] == "astrai-server" and service["restart"] == "unless-stopped"
    assert not list(machine.folder.glob("astrai-compose*")), "the project's file is removed"


def test_up_pulls_a_named_image_and_does_not_build(machine: Machine) -> None:
    done = machine.serve_sh("up", write(machine.folder, CPU, image="example/astrai:1"))
    assert done.returncode == 0, done.stderr
    assert machine.compose_calls() == [["pull"], ["up", "--detach"]]
    assert machine.service()["image"] == "example/astrai:1"


@pytest.mark.parametrize("state", ["exited 0", "restarting 1 unhealthy", "running 2 starting"])
def test_up_shows_the_log_of_a_server_that_ends_and_stops_it(machine: Machine, state: str) -> None:
    machine.write("states_after_up", f"running 0 starting\n{state}")
    done = machine.serve_sh("up", write(machine.folder, CPU))
    assert done.returncode == 1
    assert "a line of the server's log" in done.stdout + done.stderr
    assert "restart" in done.stderr and ["stop", "astrai-server"] in machine.calls()


def test_up_gives_up_waiting_but_leaves_the_server(machine: Machine) -> None:
    machine.write("states_after_up", "running 0 starting")
    done = machine.serve_sh("up", write(machine.folder, CPU), SERVE_WAIT_S="1")
    assert done.returncode == 1 and "does not serve yet" in done.stderr
    assert ["stop", "astrai-server"] not in machine.calls()


def test_up_does_not_start_what_was_not_built(machine: Machine) -> None:
    machine.write("fail_build")
    assert machine.serve_sh("up", write(machine.folder, CPU)).returncode == 1
    assert machine.compose_calls() == [["build"]]


def test_run_stays_in_the_foreground_and_does_not_restart(machine: Machine) -> None:
    done = machine.serve_sh("run", write(machine.folder, CPU))
    assert done.returncode == 0, done.stderr
    up = ["up", "--abort-on-container-exit", "--exit-code-from", "server"]
    assert machine.compose_calls() == [["build"], up]
    assert machine.service()["restart"] == "no"


def test_build_builds_alone(machine: Machine) -> None:
    assert machine.serve_sh("build", write(machine.folder, GPU)).returncode == 0
    assert machine.compose_calls() == [["build"]]
    build = machine.service()["build"]
    assert build == {"context": str(REPO), "dockerfile": "docker/Dockerfile.cuda"}


def test_restart_takes_the_file_as_it_is_now_and_its_own_port(machine: Machine) -> None:
    machine.write("states", "running 0 healthy")
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        server = {**CPU["server"], "drain_timeout_s": 30.5}
        config = write(machine.folder, {"server": server}, port=own.getsockname()[1])
        done = machine.serve_sh("restart", config)
    assert done.returncode == 0, done.stderr
    assert machine.compose_calls() == [["up", "--detach", "--force-recreate", "--timeout", "41"]]


def test_down_gives_the_drain_its_time(machine: Machine) -> None:
    server = {**CPU["server"], "drain_timeout_s": 60.0}
    done = machine.serve_sh("down", write(machine.folder, {"server": server}, job_name="b"))
    assert done.returncode == 0, done.stderr
    assert machine.compose_calls() == [["down", "--timeout", "70"]]
    assert machine.service()["container_name"] == "astrai-server-b"


def test_logs_passes_further_words_on(machine: Machine) -> None:
    config = write(machine.folder, CPU)
    done = machine.serve_sh("logs", config, "--follow", "--since", "10 m")
    assert done.stdout == "a line of the server's log\n"
    more = ["--follow", "--since", "10 m"]
    assert machine.calls() == [["logs", "--tail", "200", *more, "astrai-server"]]
    machine.serve_sh("logs", "--follow", cwd=config.parent)
    assert machine.calls()[1] == ["logs", "--tail", "200", "--follow", "astrai-server"]


@pytest.mark.parametrize(
    "state, code, words",
    [
        ("running 0 healthy", 0, "running healthy, 0 restarts, http://127.0.0.1:"),
        ("running 3 unhealthy", 1, "running unhealthy, 3 restarts"),
        ("exited 0", 1, "exited unchecked"),
        (None, 1, "is not there"),
    ],
)
def test_status_says_what_docker_says(
    machine: Machine, state: str | None, code: int, words: str
) -> None:
    if state is not None:
        machine.write("states", state)
    done = machine.serve_sh("status", write(machine.folder, CPU))
    assert done.returncode == code and words in done.stdout + done.stderr


def test_status_without_a_daemon_says_so(machine: Machine) -> None:
    machine.write("no_daemon")
    done = machine.serve_sh("status", write(machine.folder, CPU))
    assert done.returncode == 1 and done.stdout == ""
    assert "no daemon answers" in done.stderr and "is not there" not in done.stderr


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "usage:"),
        (["start"], "usage:"),
        (["up", "a.yaml", "--port", "1"], "takes one file"),
        (["up"], "scripts/serve.sh init"),
        (["status", "no such file.yaml"], "scripts/serve.sh init 'no such file.yaml'"),
    ],
)
def test_bad_arguments_end_with_status_2(machine: Machine, words: list[str], expected: str) -> None:
    done = machine.serve_sh(*words)
    assert done.returncode == 2 and expected in done.stderr
    assert machine.calls() == []


def test_a_bad_file_ends_with_status_2_and_names_the_key(machine: Machine) -> None:
    config = write(machine.folder, {"server": {"prot": 1}})
    done = machine.serve_sh("up", config)
    assert done.returncode == 2 and machine.calls() == []
    assert str(config) in done.stderr and "server.prot" in done.stderr and "'port'" in done.stderr


def test_a_missing_or_old_python_and_a_missing_pyyaml_are_named(machine: Machine) -> None:
    config = write(machine.folder, CPU)
    done = machine.serve_sh("status", config, PYTHON="python9")
    assert done.returncode == 2 and "python9" in done.stderr and "python3-yaml" in done.stderr
    old = (
        "import runpy, sys; sys.version_info = (3, 8); del sys.argv[0]; runpy.run_path(sys.argv[0])"
    )
    machine.install("old-python", f"#!/bin/sh\nexec {{python}} -c '{old}' \"$@\"\n")
    done = machine.serve_sh("status", config, PYTHON="old-python")
    assert done.returncode == 2 and "3.10 or newer" in done.stderr
    machine.install("bare-python", '#!/bin/sh\nexec {python} -S -I "$@"\n')
    done = machine.serve_sh("status", config, PYTHON="bare-python")
    assert done.returncode == 2 and "python3-yaml" in done.stderr


def test_preflight_is_content_with_a_machine_that_has_everything(machine: Machine) -> None:
    config = write(machine.folder, GPU, gpu={"devices": ["GPU-bb22", 0]})
    done = machine.serve_sh("preflight", config)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and machine.compose_calls() == []


@pytest.mark.parametrize(
    "fault, words",
    [
        ("no docker", ["docker: not found", "docs.docker.com"]),
        ("no_daemon", ["Cannot connect to the Docker daemon", "systemctl start docker"]),
        ("no_compose", ["no compose plugin", "docker-compose-plugin"]),
        ("no nvidia-smi", ["no NVIDIA driver", "server.device: cpu"]),
        ("no gpus", ["nvidia-smi fails", "modprobe"]),
        ("old driver", ["driver 535.1 is older", "580"]),
        ("no such gpu", ["no GPU 7 here", "nvidia-smi -L"]),
        ("no runtime", ["no nvidia runtime", "nvidia-ctk runtime configure"]),
    ],
)
def test_preflight_names_what_docker_lacks_and_what_mends_it(
    machine: Machine, fault: str, words: list[str]
) -> None:
    if fault in ("no docker", "no nvidia-smi"):
        machine.remove(fault.partition(" ")[2])
    elif fault == "no gpus":
        (machine.folder / "gpus").unlink()
    elif fault == "old driver":
        machine.write("gpus", "0, GPU-aa11, 535.1")
    elif fault == "no runtime":
        machine.write("runtimes", '{"runc": {}}')
    else:
        machine.write(fault)
    devices = [0, 7] if fault == "no such gpu" else "all"
    done = machine.serve_sh("up", write(machine.folder, GPU, gpu={"devices": devices}))
    assert done.returncode == 1 and machine.compose_calls() == []
    assert all(word in done.stderr for word in words), done.stderr


def test_preflight_lists_everything_at_once(machine: Machine) -> None:
    machine.remove("docker")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = {**CPU["server"], "model": "./nowhere"}
        config = write(machine.folder, {"server": server}, port=port, mounts=["./adapters:/a"])
        done = machine.serve_sh("preflight", config)
    assert done.returncode == 1
    for words in ("docker: not found", "nowhere does not exist", "adapters does not exist"):
        assert words in done.stderr
    assert f"127.0.0.1:{port} is taken" in done.stderr and "ss -ltnp" in done.stderr


@pytest.mark.parametrize("fault", ["docker: not found", "docker: no compose plugin"])
@pytest.mark.parametrize("command", ["build", "up", "down"])
def test_what_is_missing_is_named_by_what_needs_it(
    machine: Machine, command: str, fault: str
) -> None:
    if fault == "docker: not found":
        machine.remove("docker")
    else:
        machine.write("no_compose")
    done = machine.serve_sh(command, write(machine.folder, CPU))
    assert done.returncode == 1 and machine.compose_calls() == []
    assert done.stderr.count("docker: ") == 1 and fault in done.stderr
    assert "https://docs.docker.com/" in done.stderr and "command not found" not in done.stderr


def test_the_compose_plugin_is_missed_without_a_daemon_too(machine: Machine) -> None:
    machine.write("no_daemon")
    machine.write("no_compose")
    done = machine.serve_sh("preflight", write(machine.folder, CPU))
    assert "no compose plugin" in done.stderr and "no daemon answers" in done.stderr


def test_a_cpu_needs_no_gpu_s_things(machine: Machine) -> None:
    machine.remove("nvidia-smi")
    machine.write("runtimes", '{"runc": {}}')
    done = machine.serve_sh("preflight", write(machine.folder, CPU))
    assert done.returncode == 0, done.stderr


def test_an_old_driver_may_run_an_image_for_an_older_cuda(machine: Machine) -> None:
    machine.write("gpus", "0, GPU-aa11, 535.1")
    done = machine.serve_sh("preflight", write(machine.folder, GPU, image="example/astrai:cu126"))
    assert done.returncode == 0, done.stderr
