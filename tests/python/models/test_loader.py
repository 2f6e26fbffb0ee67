"""load_model: where a source may be, what comes with the model, and how faults are told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_models import llama, write_gguf

from astrai.models import ModelLoadError, device, load_model, loader, open_checkpoint
from astrai.models.generation_config import check_sampling
from astrai.text import encode_chat

TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


def add_tokenizer(folder: Path, **config: Any) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:90]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab.update({character: n + 3 for n, character in enumerate(alphabet)})
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def load(source: Path | str, **options: Any) -> loader.LoadedModel:
    return load_model(source, **{"device": "cpu", "dtype": "float32", "progress": False, **options})


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_checkpoint_is_opened_without_its_weights(tmp_path: Path, kind: str) -> None:
    model = llama()
    if kind == "gguf":
        source = tmp_path / "tiny.gguf"
        write_gguf(source, model)
    else:
        source = tmp_path
        model.model.embed_tokens.weight.data.fill_(torch.nan)
        model.save_pretrained(source)
        add_tokenizer(source, chat_template=TEMPLATE)

    path, checkpoint = open_checkpoint(str(source), progress=False)

    assert path == source and checkpoint.config.vocab_size == 96
    if kind == "folder":
        assert checkpoint.tokenizer is not None and checkpoint.chat_template is not None
        with pytest.raises(ModelLoadError, match="finite"):
            load(source)  # which reads them
    else:
        assert load(source).config == checkpoint.config


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    for source, told in ((tmp_path, "has no config.json"), (tmp_path / "no", "no")):
        with pytest.raises(ModelLoadError, match=told):
            open_checkpoint(source, progress=False)


def test_a_folder_brings_tokenizer_template_and_summary(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    add_tokenizer(tmp_path, chat_template=TEMPLATE)
    loaded = load(tmp_path)
    assert loaded.tokenizer is not None
    assert loaded.chat_template is not None
    ids = encode_chat(loaded.tokenizer, loaded.chat_template, [{"role": "user", "content": "hi"}])
    assert (ids[0], ids[-1]) == (1, 2)
    assert loaded.tokenizer.vocab_size == loaded.config.vocab_size == 96
    assert loaded.source == str(tmp_path)
    n_parameters = sum(weight.numel() for weight in llama().parameters())
    assert loaded.summary["n_parameters"] == n_parameters
    assert loaded.summary["weight_bytes"] == 4 * n_parameters
    assert loaded.summary["stored_bytes"] == {"F32": 4 * n_parameters}
    assert loaded.summary["template_source"] == "tokenizer_config.json"


def test_a_folder_without_tokenizer_files_serves_ids_only(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert loaded.tokenizer is None
    assert loaded.chat_template is None
    assert loaded.end_ids == (2,)


def test_end_ids_are_those_of_every_file_that_names_them(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    add_tokenizer(tmp_path, eos_token="<unk>")
    change_json(tmp_path / "config.json", eos_token_id=[2, 5])
    change_json(tmp_path / "generation_config.json", eos_token_id=[5, 7, 900])
    assert set(load(tmp_path).end_ids) == {0, 2, 5, 7}  # 900 is beyond the vocabulary


def test_sampling_defaults_are_those_of_generation_config(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    change_json(path, temperature=1, top_k=20, top_p=None, do_sample=True, max_length=9)
    loaded = load(tmp_path)
    assert dict(loaded.sampling) == {"temperature": 1, "top_k": 20}
    checked = check_sampling(loaded.sampling, loaded.source)
    assert checked == {"temperature": 1.0, "top_k": 20}
    assert isinstance(checked["temperature"], float)
    path.unlink()
    assert dict(load(tmp_path).sampling) == {}


@pytest.mark.parametrize("bad", [{"temperature": 9}, {"top_k": 1.5}, {"top_p": "x"}])
def test_a_sampling_default_out_of_range_matters_once_it_is_used(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    llama().save_pretrained(tmp_path)
    change_json(tmp_path / "generation_config.json", **bad)
    loaded = load(tmp_path)
    with pytest.raises(ModelLoadError, match=rf"generation_config\.json: {next(iter(bad))}"):
        check_sampling(loaded.sampling, loaded.source)


def test_a_gguf_file_is_found_by_its_name_or_its_folder(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", llama())
    assert load(tmp_path / "m.gguf").source == load(tmp_path).source
    write_gguf(tmp_path / "n.gguf", llama())
    with pytest.raises(ModelLoadError, match=r"2 \.gguf files"):
        load(tmp_path)


@pytest.mark.parametrize("source", ["no/such/folder", "nothing", "../x", "/none/at all.gguf", ""])
def test_a_source_that_is_nowhere_says_what_is_accepted(source: str, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"(?s)no such file|config\.json"):
        load(source)


@pytest.mark.parametrize("written", ["file://{}", "file://localhost{}", "{}/"])
def test_a_folder_may_be_written_as_a_file_url(tmp_path: Path, written: str) -> None:
    folder = tmp_path / "a b"
    llama().save_pretrained(folder)
    address = written.format(folder)
    if written.startswith("file:"):
        address = address.replace(" ", "%20")
    assert load(address).source == str(folder)


@pytest.mark.parametrize("written", ["~/m", "file://~/m"])
def test_a_tilde_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    llama().save_pretrained(tmp_path / "m")
    assert load(written).source == str(tmp_path / "m")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_refused_by_name_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(ModelLoadError, match=rf"{name}: is a pickle.*safetensors"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_one_file_of_a_folder_names_the_folder(tmp_path: Path, name: str) -> None:
    llama().save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=f"Name its folder, {tmp_path}"):
        load(tmp_path / name)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100000])
def test_a_broken_config_is_named(tmp_path: Path, text: str) -> None:
    llama().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load(tmp_path)


def test_an_unknown_architecture_is_named_with_those_known(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", architectures=["GPT2LMHeadModel"])
    with pytest.raises(ModelLoadError, match=r"config\.json.*GPT2LMHeadModel.*LlamaForCausalLM"):
        load(tmp_path)


def test_code_beside_a_model_is_never_run(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    marker = tmp_path / "executed"
    (tmp_path / "modeling.py").write_text(f"open({str(marker)!r}, 'w')")
    config = tmp_path / "config.json"
    code = {"AutoModelForCausalLM": "modeling.OwnForCausalLM"}
    change_json(config, auto_map=code, trust_remote_code=True)
    load(tmp_path)  # the architecture is one of ours
    change_json(config, architectures=["OwnForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"OwnForCausalLM.*auto_map.*never run"):
        load(tmp_path)
    assert not marker.exists()


def test_sizes_that_belie_the_weights_allocate_nothing(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", num_hidden_layers=2**30, hidden_size=2**30)
    with pytest.raises(ModelLoadError, match="shape"):
        load(tmp_path)
    change_json(tmp_path / "config.json", num_hidden_layers=2**30, hidden_size=64)
    with pytest.raises(ModelLoadError, match=r"model\.layers\.2\."):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("generation_config.json", '{"eos_token_id": "x"}'),
        ("chat_template.jinja", "{% if %}"),
    ],
)
def test_a_broken_file_beside_the_weights_is_named(tmp_path: Path, name: str, text: str) -> None:
    llama().save_pretrained(tmp_path)
    add_tokenizer(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=name):
        load(tmp_path)


def test_max_seq_len_sets_the_positions_served(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    assert load(tmp_path).model.max_len == 128
    assert load(tmp_path, max_seq_len=16).model.max_len == 16
    for outside in (0, 1, 129, 10**9):
        with pytest.raises(ValueError, match=r"max_seq_len is .* takes 2 to 128"):
            load(tmp_path, max_seq_len=outside)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("context", [2**31 - 1, 10**12])
def test_a_context_without_bounds_takes_no_memory(tmp_path: Path, kind: str, context: int) -> None:
    source, model = tmp_path, llama()
    if kind == "gguf":
        source, key = tmp_path / "tiny.gguf", "llama.context_length"
        model.config.max_position_embeddings = min(context, 2**32 - 1)  # a uint32 in the file
        write_gguf(source, model)
    else:
        key = "max_position_embeddings"
        model.save_pretrained(source)
        change_json(source / "config.json", max_position_embeddings=context)
    if context >= 2**31:
        with pytest.raises(ModelLoadError, match=f"{key} must be a whole number"):
            load(source)
        return
    with pytest.raises(ModelLoadError, match=r"context of 2147483647 tokens.*--max-seq-len"):
        load(source)
    assert load(source, max_seq_len=64).model.max_len == 64


def test_a_scaling_factor_without_bounds_takes_no_memory(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    linear = {"rope_type": "linear", "factor": 1e29, "rope_theta": 10000.0}
    change_json(tmp_path / "config.json", rope_parameters=linear)
    with pytest.raises(ModelLoadError, match="rotary table alone"):
        load(tmp_path)


def test_rope_scaling_sets_how_long_texts_may_be(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    change_json(tmp_path / "config.json", rope_parameters=yarn)
    assert load(tmp_path).model.max_len == 512
    assert load(tmp_path, max_seq_len=512).model.max_len == 512
    limit = r"takes 2 to 512 .*max_position_embeddings 128, RoPE scaling yarn by 4.*rope_scaling"
    with pytest.raises(ValueError, match=limit):
        load(tmp_path, max_seq_len=513)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "int8"}, "int8.*bfloat16"),
        ({"dtype": torch.int8}, "int8"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load(tmp_path, **options)


def test_auto_dtype_is_bfloat16_on_a_gpu_alone() -> None:
    assert device.resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert device.resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(("progress", "shown"), [(True, False), (False, False), ("always", True)])
def test_the_bar_shows_on_a_terminal_or_when_asked_for(
    progress: Any, shown: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    llama().save_pretrained(tmp_path)
    capfd.readouterr()
    load(tmp_path, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("100%" in err) == shown


def test_a_load_is_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    llama().save_pretrained(tmp_path)
    with caplog.at_level("INFO", logger="astrai.models"):
        load(tmp_path)
    (line,) = [record.getMessage() for record in caplog.records if "weights" in record.msg]
    assert re.fullmatch(r"0 MB of weights in \d+\.\d\d s, \d+\.\d\d GB/s", line)


def test_importing_text_brings_no_torch() -> None:
    code = "import sys, astrai.text; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
