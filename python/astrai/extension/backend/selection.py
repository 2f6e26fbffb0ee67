"""Which attention backend a call gets, and why.

Order: the innermost `attn_backend(...)` context, then ASTR_BACKEND, then automatic choice by
priority. The first two are explicit and strict: a call they cannot handle is an error. Automatic
choice takes the first backend that can handle the call and logs once why each better one cannot.

A context belongs to the thread or task that entered it, and a forward runs on the scheduler's
thread. So the choice is captured with `current_selection()` when a request is submitted and
re-entered around its forward with `use_selection()`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from astrai import env
from astrai._C import KernelUnavailableError

from .base import (
    AttentionBackend,
    AttentionBackendFactory,
    AttentionCall,
    given_options,
    selection_stack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

PRIORITY = ("cuda", "flash", "torch_native")


class ATTN_BACKEND(Enum):
    """The backends that come with AstrAI."""

    TORCH_NATIVE = "torch_native"
    CUDA = "cuda"
    FLASH = "flash"


@dataclass(frozen=True, slots=True)
class Selection:
    """An explicit choice and where it was made, or automatic choice when backend is None."""

    backend: AttentionBackend | None
    source: str  # "attn_backend(...)", "ASTR_BACKEND" or "automatic"


def attn_backend(
    backend: ATTN_BACKEND | str | type[AttentionBackend] | AttentionBackend,
) -> AttentionBackend:
    """A context manager that selects a backend strictly: `with attn_backend("cuda"): ...`.

    Takes a member of ATTN_BACKEND, a registered name, a backend class or an instance, and returns
    the backend. Contexts nest; the innermost holds. Raises ValueError on an unknown name and
    TypeError on anything else.
    """
    if isinstance(backend, AttentionBackend):
        return backend
    if isinstance(backend, ATTN_BACKEND):
        return AttentionBackendFactory.create(backend.value)
    if isinstance(backend, str):
        return AttentionBackendFactory.create(backend)
    if isinstance(backend, type) and issubclass(backend, AttentionBackend):
        return backend()
    raise TypeError(
        f"attn_backend: backend is {type(backend).__name__}; accepted are ATTN_BACKEND members, "
        f"names ({', '.join(AttentionBackendFactory.list_registered())}), "
        "AttentionBackend classes and instances"
    )


def current_selection() -> Selection:
    """The choice in force here: captured at submit. ValueError on a bad ASTR_BACKEND."""
    stack = selection_stack.get()
    if stack:
        return Selection(stack[-1], "attn_backend(...)")
    name = env.attention_backend()
    if name:
        return Selection(AttentionBackendFactory.create(name), "ASTR_BACKEND")
    return Selection(None, "automatic")


@contextmanager
def use_selection(selection: Selection) -> Iterator[None]:
    """Re-enter a captured choice on another thread, whatever is selected there."""
    outer = selection_stack.get()
    selection_stack.set(() if selection.backend is None else (selection.backend,))
    try:
        yield
    finally:
        selection_stack.set(outer)


def get_backend(use_default: bool = True) -> AttentionBackend | None:
    """The explicitly selected backend, else the first available one by priority.

    With use_default False None stands for automatic choice, which looks at each call.
    """
    selected = current_selection().backend
    if selected is not None or not use_default:
        return selected
    available = (AttentionBackendFactory.create(name) for name in PRIORITY)
    return next(backend for backend in available if backend.unavailable_reason() is None)


def reads_written_kv() -> bool:
    """Whether every backend that a call here may get takes k and v of None, which says that they
    are in the cache already. The three of automatic choice do."""
    backend = current_selection().backend
    return backend is None or backend.reads_written_kv


def backend_for(call: AttentionCall) -> AttentionBackend:
    """The backend that runs `call`. Raises KernelUnavailableError when there is none."""
    selection = current_selection()
    if selection.backend is None:
        return _automatic(call)
    reason = _refusal(selection.backend, call)
    if reason is not None:
        raise KernelUnavailableError(
            f"attention: backend {selection.backend.name!r}, selected by {selection.source}, "
            f"cannot run {call.describe()}: {reason}. "
            "Select another backend or none, which allows a fallback"
        )
    return selection.backend


def _refusal(backend: AttentionBackend, call: AttentionCall) -> str | None:
    """Why a backend cannot run this call, or None."""
    reason = backend.unavailable_reason()
    if reason is not None:
        return reason
    for name in given_options(call.window, call.soft_cap):
        if name not in backend.options:
            return f"it does not compute {name}"
    return backend.supports(call)


@lru_cache(maxsize=256)  # a model makes a handful of different calls; the answer never changes
def _automatic(call: AttentionCall) -> AttentionBackend:
    refusals = []
    for name in PRIORITY:
        backend = AttentionBackendFactory.create(name)
        reason = _refusal(backend, call)
        if reason is None:
            return backend
        refusals.append(f"{name}: {reason}")
        _log_fallback(name, reason)
    raise KernelUnavailableError(
        f"attention: no backend can run {call.describe()}: {'; '.join(refusals)}"
    )


@lru_cache(maxsize=256)  # once for each reason
def _log_fallback(name: str, reason: str) -> None:
    _log.info("attention backend %s is not used: %s", name, reason)
