#!/usr/bin/env bash
# The server in a container, from one YAML file (docs/developer/docker-serving.md).
#   scripts/serve.sh init|preflight|build|up|run|down|restart|logs|status [CONFIG]
# CONFIG: default $SERVE_CONFIG_FILE, else ./serve.yaml.
#   init       write a sample CONFIG, unless there is one       up       check, build, start, wait until it serves
#   preflight  say what is missing and what mends it            run      the same in the foreground, until Ctrl-C
#   build      build the image, or pull runtime.image           down     drain, stop and remove the container
#   status     state, health and address; 0 when healthy        restart  check, then stop and start with CONFIG as it is now
#   logs       the last 200 lines; further words go to docker logs: logs CONFIG --follow
# Environment: PYTHON (default python3; needs PyYAML), SERVE_WAIT_S (default 900: what up and restart wait).
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
cuda_driver=580  # least major version that runs the image's CUDA 13

fail() {
  printf 'serve.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}

# ---- the file --------------------------------------------------------------------------------------------------------
runtime() { "$python" "$repo/docker/serve_runtime.py" "$@"; }

init() {
  if [ -e "$config" ]; then
    echo "$config is there already and stays as it is"
    return
  fi
  [ -d "$(dirname "$config")" ] || fail "there is no folder $(dirname "$config"): mkdir -p '$(dirname "$config")'"
  cp "$repo/docker/serve.yaml" "$config"
  echo "wrote $config: name the model in it, then: scripts/serve.sh up '$config'"
}

read_config() {
  [ -f "$config" ] || fail "there is no $config; make one: scripts/serve.sh init '$config'" 2
  command -v "$python" >/dev/null || fail "there is no $python, which reads $config: apt-get install python3 python3-yaml" 2
  local exports
  exports=$(runtime exports "$config") || exit 2
  eval "$exports"  # quoted by shlex
}

# ---- checks ----------------------------------------------------------------------------------------------------------
missing=0
lacks() {
  missing=$((missing + 1))
  printf -- '- %s\n    %s\n' "$1" "$2" >&2
}

has_docker() {
  command -v docker >/dev/null && return
  lacks "docker: not found" "install Docker Engine 23 or newer with its compose plugin: https://docs.docker.com/engine/install/"
  return 1
}

has_compose() {
  docker compose version >/dev/null 2>&1 && return  # which asks no daemon
  lacks "docker: no compose plugin" "sudo apt-get install docker-compose-plugin, or see https://docs.docker.com/compose/install/"
  return 1
}

has_daemon() {
  local reason
  reason=$(docker info 2>&1 >/dev/null) && return
  lacks "docker: no daemon answers: ${reason##*$'\n'}" "sudo systemctl start docker; for its rights: sudo usermod -aG docker \$USER, then log in again"
  return 1
}

check_docker() {
  has_docker || return 1
  has_compose || true  # one of what preflight lists
  has_daemon
}

check_gpus() {
  if ! command -v nvidia-smi >/dev/null; then
    lacks "gpu: no NVIDIA driver here (nvidia-smi not found)" "install the driver, or serve on the CPU: server.device: cpu and server.dtype: auto in $config"
    return
  fi
  local listed version gpu
  if ! listed=$(nvidia-smi --query-gpu=index,uuid,driver_version --format=csv,noheader 2>&1); then
    lacks "gpu: nvidia-smi fails: ${listed##*$'\n'}" "load the driver (sudo modprobe nvidia) or reinstall it"
    return
  fi
  version=$(head -n 1 <<<"$listed" | awk -F ', *' '{print $3}')
  if [ -z "$SERVE_IMAGE" ] && [ "${version%%.*}" -lt "$cuda_driver" ]; then
    lacks "gpu: driver $version is older than CUDA 13 needs ($cuda_driver)" "update the driver, or set runtime.image to an image for an older CUDA"
  fi
  for gpu in $SERVE_GPUS; do
    [ "$gpu" = all ] || awk -F ', *' -v gpu="$gpu" '$1 == gpu || $2 == gpu {found = 1} END {exit !found}' <<<"$listed" ||
      lacks "gpu: there is no GPU $gpu here" "see nvidia-smi -L, and correct runtime.gpu.devices"
  done
  if ! docker info --format '{{json .Runtimes}}' | grep -q '"nvidia"' && ! command -v nvidia-container-runtime-hook >/dev/null; then
    lacks "gpu: docker has no nvidia runtime" "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
  fi
}

is_running() { [ "$(docker inspect --format '{{.State.Running}}' "$SERVE_CONTAINER" 2>/dev/null)" = true ]; }

preflight() {
  local own_port=()
  if check_docker; then
    [ "$SERVE_GPUS" = none ] || check_gpus
    if is_running; then own_port=(--own-port); fi
  fi
  runtime preflight "$config" ${own_port[@]+"${own_port[@]}"} || missing=$((missing + 1))
  [ "$missing" -eq 0 ] || fail "preflight: mend what is listed above"
  echo "preflight: $config is ready for $SERVE_CONTAINER"
}

# ---- docker ----------------------------------------------------------------------------------------------------------
project=
remove_project() { [ -z "$project" ] || rm -f "$project"; }
trap remove_project EXIT

compose() {
  has_compose || exit 1
  if [ -z "$project" ]; then
    project=$(mktemp -t astrai-compose.XXXXXX)
    runtime compose "$config" ${once[@]+"${once[@]}"} >"$project"
  fi
  docker compose --file "$project" "$@"
}

build() {
  if [ -n "$SERVE_IMAGE" ]; then compose pull; else compose build; fi
}

up() {
  [ -z "$SERVE_VOLUME" ] || docker volume create "$SERVE_VOLUME" >/dev/null  # one for all jobs; stays as it is
  compose up "$@"
}

# Status, restarts and health of the container in one line.
state() {
  docker inspect --format '{{.State.Status}} {{.RestartCount}} {{if .State.Health}}{{.State.Health.Status}}{{end}}' \
    "$SERVE_CONTAINER" 2>/dev/null
}

start() {
  up --detach "$@"
  echo "$SERVE_CONTAINER is started; waiting until it serves"
  local began=$SECONDS status restarts health
  while [ $((SECONDS - began)) -lt "${SERVE_WAIT_S:-900}" ]; do
    read -r status restarts health < <(state) || true
    if [ "$health" = healthy ]; then
      echo "$SERVE_CONTAINER serves at $SERVE_URL"
      return
    fi
    if [ "$status" != running ] || [ "$restarts" != 0 ]; then
      docker logs --tail 50 "$SERVE_CONTAINER" >&2 || true
      docker stop "$SERVE_CONTAINER" >/dev/null || true  # else it would restart for ever
      fail "$SERVE_CONTAINER ended; its last lines are above. After mending: scripts/serve.sh restart '$config'"
    fi
    sleep 1
  done
  fail "$SERVE_CONTAINER does not serve yet; see scripts/serve.sh logs '$config' --follow"
}

status() {
  local status restarts health
  read -r status restarts health < <(state) || true
  if [ -z "$status" ]; then  # docker prints an empty line for a container that is not there
    has_daemon || exit 1
    fail "$SERVE_CONTAINER is not there; start it: scripts/serve.sh up '$config'"
  fi
  echo "$SERVE_CONTAINER: $status ${health:-unchecked}, $restarts restarts, $SERVE_URL"
  [ "$health" = healthy ]
}

command=${1:-}
shift $(($# > 0))
config=${SERVE_CONFIG_FILE:-serve.yaml}
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  config=$1
  shift
fi
case $command in
  init | preflight | build | up | run | down | restart | status)
    [ $# -eq 0 ] || fail "$command takes one file, and got also: $*" 2 ;;
  logs) ;;
  *) fail "usage: scripts/serve.sh init|preflight|build|up|run|down|restart|logs|status [CONFIG]" 2 ;;
esac
[ "$command" = init ] || read_config
case $command in build | down | logs | status) has_docker || exit 1 ;; esac  # the others begin with preflight
once=()
case $command in
  init) init ;;
  preflight) preflight ;;
  build) build ;;
  up)
    preflight
    build
    start
    ;;
  run)
    once=(--once)
    preflight
    build
    up --abort-on-container-exit --exit-code-from server
    ;;
  restart)
    preflight
    start --force-recreate --timeout "$SERVE_STOP_S"
    ;;
  down) compose down --timeout "$SERVE_STOP_S" ;;
  logs) docker logs --tail 200 "$@" "$SERVE_CONTAINER" ;;
  status) status ;;
esac
