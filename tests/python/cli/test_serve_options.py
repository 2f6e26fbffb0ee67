"""Flags, the YAML file, their precedence, and errors that name the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from astrai import env
from astrai.cli.options import OptionError, server_options
from astrai.cli.serve import main, parse_settings
from astrai.server import ServerSettings

REPO = Path(__file__).resolve().parents[3]


def write(folder: Path, text: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_without_arguments_the_defaults_hold() -> None:
    settings = parse_settings([])
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.max_batch_size) == ("127.0.0.1", 8000, 16)


@pytest.mark.parametrize("flag", ["--max-batch-size", "--max_batch_size"])
def test_flags_take_dashes_and_underscores(flag: str) -> None:
    assert parse_settings([flag, "3"]).max_batch_size == 3
    assert parse_settings([f"{flag}=4"]).max_batch_size == 4


def test_values_keep_their_underscores() -> None:
    assert parse_settings(["--param_path", "my_model"]).model == "my_model"
    assert parse_settings(["--model=a_b"]).model == "a_b"


def test_the_context_has_two_names(tmp_path: Path) -> None:
    assert parse_settings(["--max-model-len", "64"]).max_seq_len == 64
    assert parse_settings(["-c", write(tmp_path, "server: {max_model_len: 32}")]).max_seq_len == 32


def test_explicit_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "server:\n  port: 9000\n  host: 0.0.0.0\n  max_queue: 3\n")
    settings = parse_settings(["--config", path, "--port", "9001"])
    assert (settings.port, settings.host, settings.max_queue) == (9001, "0.0.0.0", 3)
    # A flag equal to the default is explicit too.
    assert parse_settings(["--port", "8000", "-c", path]).port == 8000


def test_every_setting_has_a_key_and_a_flag(tmp_path: Path) -> None:
    samples = {str: "auto", int: 64, float: 2.5, bool: True}
    for option in server_options():
        value = option.choices[0] if option.choices else samples[option.kind]
        if option.field == "max_logprobs":
            value = 5
        if option.field == "gpu_memory_utilization":
            value = 0.5
        if option.field == "max_body_bytes" or option.field == "max_tools_bytes":
            value = 4096
        text = str(value).lower() if option.kind is bool else value
        want = (value,) if option.many else value
        from_file = parse_settings(["-c", write(tmp_path, f"server: {{{option.flag}: {text}}}")])
        assert getattr(from_file, option.field) == want, option.field
        flag = "--" + option.flag.replace("_", "-")
        from_flag = parse_settings([flag] if option.kind is bool else [flag, str(value)])
        assert getattr(from_flag, option.field) == want, option.field


def test_null_keys_and_empty_files_mean_defaults(tmp_path: Path) -> None:
    for text in ("", "server:\n", "server: {max_seq_len: null, port: null}\n", "runtime: {x: 1}\n"):
        assert parse_settings(["-c", write(tmp_path, text)]) == ServerSettings()


def test_keys_may_be_given_several_times(tmp_path: Path) -> None:
    assert parse_settings(["--api-key", "a", "--api_key", "b"]).api_keys == ("a", "b")
    path = write(tmp_path, "server:\n  api_key: [c, d]\n  metrics-public: true\n")
    assert parse_settings(["-c", path]).api_keys == ("c", "d")
    assert parse_settings(["-c", path]).metrics_public
    overridden = parse_settings(["-c", path, "--api-key", "e", "--no-metrics-public"])
    assert overridden.api_keys == ("e",) and not overridden.metrics_public
    assert parse_settings(["--api-key", "a, b", "--api-key=c"]).api_keys == ("a", "b", "c")
    assert parse_settings(["--cors-origin", "https://a,https://b"]).cors_origins == (
        "https://a",
        "https://b",
    )
    assert parse_settings(["-c", write(tmp_path, "server: {api_key: 'a,b'}")]).api_keys == (
        "a",
        "b",
    )


def test_keys_come_from_the_environment_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAI_API_KEY", "one,two")
    env.reload()
    try:
        assert parse_settings([]).api_keys == ("one", "two")
        assert parse_settings(["--api-key", "three"]).api_keys == ("three",)
        path = write(tmp_path, "server: {api_keys: [four]}")
        assert parse_settings(["-c", path]).api_keys == ("four",)
        monkeypatch.setenv("ASTRAI_API_KEY", "one,,two")
        env.reload()
        with pytest.raises(OptionError, match="ASTRAI_API_KEY is empty"):
            parse_settings([])
    finally:
        monkeypatch.undo()
        env.reload()


def test_a_yaml_merge_is_no_duplicate(tmp_path: Path) -> None:
    text = "runtime: &base {port: 1}\nserver:\n  <<: *base\n  port: 2\n"
    assert parse_settings(["-c", write(tmp_path, text)]).port == 2


def test_the_docker_sample_is_the_specification_s() -> None:
    settings = parse_settings(["-c", str(REPO / "docker" / "serve.yaml")])
    assert settings == ServerSettings(host="0.0.0.0", device="cuda", dtype="bfloat16")


@pytest.mark.parametrize(
    "text, words",
    [
        ("server: {max_batchsize: 3}", ["server.max_batchsize", "'max_batch_size'"]),
        ("sever: {port: 1}", ["'sever'", "'server'"]),
        ("server: [1]", ["mapping"]),
        ("[1]", ["mapping"]),
        ("server: {port: '80'}", ["server.port", "whole number", "'80'"]),
        ("server: {port: true}", ["server.port", "whole number"]),
        ("server: {port: 70000}", ["server.port", "65535"]),
        ("server: {max_batch_size: 0}", ["at least 1"]),
        ("server: {dtype: int8}", ["int8", "bfloat16"]),
        ("server: {metrics_public: 1}", ["true or false"]),
        ("server: {api_keys: 5}", ["list of texts"]),
        ("server: {api_keys: ['a', '']}", ["server.api_keys", "empty"]),
        ("server: {host: ''}", ["server.host", "empty"]),
        ("server: {model: a, param_path: b}", ["twice"]),
        ("server: {port: 1, host: a, port: 2}", ["'port' is given twice", "line 1"]),
        ("server: {port: 1}\nserver: {host: a}", ["'server' is given twice", "line 2"]),
        ("server: {api_key: 'a,,b'}", ["server.api_key", "empty"]),
        ("server: {port: 1", ["not valid YAML"]),
        ("server: !!python/object/apply:os.getcwd []", ["not valid YAML"]),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_key(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(OptionError) as info:
        parse_settings(["--config", write(tmp_path, text)])
    assert all(word in str(info.value) for word in words), info.value


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--prot", "1"], ["--prot", "--port"]),
        (["--max_sequence_len", "1"], ["--max-seq-len"]),
        (["--hlep"], ["--help"]),
        (["model-folder"], ["--model"]),
        (["--config", "/nowhere.yaml"], ["/nowhere.yaml"]),
    ],
)
def test_a_bad_argument_is_an_error_with_a_remedy(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("astrai-serve: error: ") and all(word in message for word in words)


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "x"],
        ["--port", "-1"],
        ["--dtype", "int8"],
        ["--api-key="],
        ["--api-key", "a,,b"],
        ["--model", ""],
        ["--log-format", "xml"],
        ["--request-timeout-s", "0"],
    ],
)
def test_a_bad_value_ends_with_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(argv)
    assert info.value.code == 2


def test_help_has_groups_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for group in ("model:", "engine:", "network:", "logs:", "limits:"):
        assert f"\n{group}\n" in text
    assert "(default 8000)" in text and "--param-path" in text


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("port", "9000", 9000),
        ("itl_target_ms", "12.5", 12.5),
        ("itl_target_ms", "12", 12.0),
        ("cuda_graph", "False", False),
        ("model", "7", "7"),
        ("api_key", "a, b", ("a", "b")),
    ],
)
def test_a_text_is_read_as_its_option_s_kind(key: str, text: str, value: object) -> None:
    option = next(option for option in server_options() if key in option.names)
    read = option.check_text(text, key)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("port", "many", "port should be a whole number, got 'many'"),
        ("port", "1.0", "port should be a whole number, got '1.0'"),
        ("port", "70000", "port is 70000; it should be at most 65535"),
        ("itl_target_ms", "nan", "it should be at least 0.1"),
        ("itl_target_ms", "inf", "it should be at most 100000"),
        ("itl_target_ms", "", "should be a number, got ''"),
        ("cuda_graph", "1", "cuda_graph should be true or false, got '1'"),
        ("kv_mode", "both", "accepted are paged, contiguous"),
        ("model", "", "model is empty"),
        ("api_key", "a,,b", "api_key is empty"),
    ],
)
def test_a_text_that_spells_no_value_is_refused_by_name(key: str, text: str, message: str) -> None:
    option = next(option for option in server_options() if key in option.names)
    with pytest.raises(OptionError, match=message):
        option.check_text(text, key)
