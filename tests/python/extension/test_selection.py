"""The selection policy: order of sources, strictness, fallback, nesting, threads, capture."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
import torch

from astrai import extension
from astrai._C import KernelUnavailableError
from astrai.extension import (
    ATTN_BACKEND,
    AttentionBackend,
    AttentionBackendFactory,
    FlashAttnBackend,
    TorchNativeBackend,
    attention,
    attn_backend,
    current_selection,
    get_backend,
    use_selection,
)
from astrai.extension.backend import selection


class RecordingBackend(AttentionBackend):
    """Answers with a constant and takes float32 only."""

    name: ClassVar[str] = "recording"

    def unavailable_reason(self):
        return None

    def supports(self, call):
        return None if call.dtype == torch.float32 else f"takes float32, not {call.dtype}"

    def fwd_prefill(self, q, *args, **kwargs):
        return torch.full_like(q, 7.0)

    def fwd_decode(self, q, *args, **kwargs):
        return torch.full_like(q, 8.0)


class AbsentBackend(RecordingBackend):
    name: ClassVar[str] = "absent"

    def unavailable_reason(self):
        return "it was never installed"


@pytest.fixture
def registry(monkeypatch):
    """A registry with the two fakes, forgotten afterwards; automatic choices start fresh."""
    monkeypatch.setattr(AttentionBackendFactory, "_classes", dict(AttentionBackendFactory._classes))
    monkeypatch.setattr(
        AttentionBackendFactory, "_instances", dict(AttentionBackendFactory._instances)
    )
    AttentionBackendFactory.register(RecordingBackend)
    AttentionBackendFactory.register(AbsentBackend)
    selection._automatic.cache_clear()
    selection._log_fallback.cache_clear()
    yield
    selection._automatic.cache_clear()
    selection._log_fallback.cache_clear()


@pytest.fixture
def qkv():
    return torch.randn(3, 1, 4, 2, 8).unbind()


def test_exported_names_are_sorted_and_exist():
    assert extension.__all__ == sorted(extension.__all__)
    assert all(hasattr(extension, name) for name in extension.__all__)


def test_every_enum_member_is_registered():
    assert {member.value for member in ATTN_BACKEND} <= set(
        AttentionBackendFactory.list_registered()
    )


def test_a_backend_is_selected_by_enum_name_class_and_instance():
    shared = AttentionBackendFactory.create("torch_native")

    assert attn_backend(ATTN_BACKEND.TORCH_NATIVE) is shared
    assert attn_backend(" Torch_Native ") is shared
    assert isinstance(attn_backend(TorchNativeBackend), TorchNativeBackend)
    assert attn_backend(shared) is shared


def test_an_unknown_name_is_a_value_error_that_lists_the_names():
    with pytest.raises(ValueError, match="'triton' is unknown; accepted: cuda, flash"):
        attn_backend("triton")


def test_another_type_is_a_type_error():
    with pytest.raises(TypeError, match="backend is int"):
        attn_backend(3)


def test_the_context_selects_and_ends(registry, qkv):
    with attn_backend("recording"):
        assert attention(*qkv).eq(7).all()
        assert attention(*qkv, fwd="prefill").eq(7).all()
    assert not attention(*qkv).eq(7).any()


def test_the_same_instance_nests_and_is_reused(registry):
    backend = attn_backend("recording")
    other = attn_backend("torch_native")

    with backend:
        with backend:
            with other:
                assert get_backend() is other
            assert get_backend() is backend
        assert get_backend() is backend
    assert get_backend(use_default=False) is None
    with backend:
        assert get_backend() is backend


def test_an_exception_leaves_the_context(registry):
    with pytest.raises(ZeroDivisionError), attn_backend("recording"):
        raise ZeroDivisionError
    assert current_selection().backend is None


def test_contexts_left_out_of_order_are_an_error(registry):
    backend, other = attn_backend("recording"), attn_backend("torch_native")
    token = selection.selection_stack.set(())
    backend.__enter__()
    other.__enter__()
    with pytest.raises(RuntimeError, match=r"leaving 'recording', but the entered backends are"):
        backend.__exit__(None, None, None)
    selection.selection_stack.reset(token)


def test_explicit_selection_is_strict_and_names_what_it_got(registry, qkv):
    q, k, v = (x.bfloat16() for x in qkv)

    with attn_backend("recording"), pytest.raises(KernelUnavailableError) as error:
        attention(q, k, v)

    for part in ("'recording'", "attn_backend(...)", "head_dim=8", "torch.bfloat16", "float32"):
        assert part in str(error.value)


def test_an_unavailable_explicit_backend_gives_its_reason(registry, qkv):
    with (
        attn_backend("absent"),
        pytest.raises(RuntimeError, match=r"'absent'.*it was never installed"),
    ):
        attention(*qkv)


def test_automatic_choice_follows_priority_and_logs_each_reason_once(
    registry, qkv, monkeypatch, caplog
):
    monkeypatch.setattr(selection, "PRIORITY", ("absent", "recording", "torch_native"))
    q, k, v = (x.bfloat16() for x in qkv)

    with caplog.at_level(logging.INFO, logger=selection.__name__):
        assert attention(*qkv).eq(7).all()
        for _ in range(3):
            assert not attention(q, k, v).eq(7).any()

    assert [record.getMessage() for record in caplog.records] == [
        "attention backend absent is not used: it was never installed",
        "attention backend recording is not used: takes float32, not torch.bfloat16",
    ]


def test_without_any_backend_every_reason_is_named(registry, qkv, monkeypatch):
    monkeypatch.setattr(selection, "PRIORITY", ("absent", "recording"))
    q, k, v = (x.bfloat16() for x in qkv)

    with pytest.raises(KernelUnavailableError, match=r"absent: .*; recording: takes float32"):
        attention(q, k, v)


def test_a_selection_belongs_to_its_thread(registry):
    seen = []
    with attn_backend("recording"):
        thread = threading.Thread(target=lambda: seen.append(current_selection().backend))
        thread.start()
        thread.join()

    assert seen == [None]


def test_a_captured_selection_is_re_entered_on_another_thread(registry, qkv):
    with attn_backend("recording"):
        captured = current_selection()
    results = []

    def forward():
        with use_selection(captured):
            results.append(attention(*qkv))
        results.append(current_selection().backend)

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()

    assert results[0].eq(7).all()
    assert results[1] is None


def test_equal_choices_give_equal_selections(registry):
    with attn_backend("recording"):
        first = current_selection()
    with attn_backend("recording"):
        second = current_selection()

    assert first == second and hash(first) == hash(second)


def test_a_captured_automatic_choice_hides_the_threads_own_context(registry):
    automatic = current_selection()

    with attn_backend("recording"):
        with use_selection(automatic):
            assert current_selection().backend is None
        assert current_selection().backend is attn_backend("recording")


def test_the_default_is_the_first_available_backend(registry, monkeypatch):
    monkeypatch.setattr(selection, "PRIORITY", ("absent", "recording", "torch_native"))

    assert get_backend() is attn_backend("recording")


def test_flash_states_why_it_cannot_run_here(qkv):
    reason = FlashAttnBackend().unavailable_reason()
    if reason is None:
        pytest.skip("flash-attn is installed here")

    with attn_backend("flash"), pytest.raises(KernelUnavailableError, match="flash-attn"):
        attention(*qkv)


def test_cuda_states_why_it_cannot_run_here(qkv):
    with attn_backend("cuda"), pytest.raises(KernelUnavailableError, match="backend 'cuda'"):
        attention(*qkv)


@pytest.mark.parametrize("fwd", ["Decode", "train", ""])
def test_an_unknown_fwd_is_refused(qkv, fwd):
    with pytest.raises(ValueError, match="fwd is"):
        attention(*qkv, fwd=fwd)


def test_a_packed_tensor_without_a_cache_is_refused(qkv):
    q, k, v = (x[0] for x in qkv)

    with pytest.raises(ValueError, match=r"without a kv_cache all are \[batch, seq_len"):
        attention(q, k, v)


SCRIPT = """
from astrai.extension import attn_backend, current_selection, get_backend
print(current_selection().source, get_backend().name)
with attn_backend("torch_native"):
    print(current_selection().source, get_backend().name)
"""


def run_with_env(value: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ASTR_BACKEND": value}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_environment_selects_and_the_context_beats_it():
    result = run_with_env("flash")

    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == [
        "ASTR_BACKEND flash",
        "attn_backend(...) torch_native",
    ]


def test_a_bad_environment_value_is_an_error_that_lists_the_names():
    result = run_with_env("tpu")

    assert result.returncode != 0
    last_line = result.stderr.strip().split("\n")[-1]
    assert last_line.startswith("ValueError") and "ASTR_BACKEND" in last_line
    assert all(name in last_line for name in ("cuda", "flash", "torch_native"))
