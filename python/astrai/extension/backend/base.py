"""The interface of an attention backend, its registry, and the stack of explicit selections.

Holds no policy: `selection.py` says which backend a call gets. Backends are stateless and shared;
what one computes once per step lives in `KVCache.scratch`. Safe from any thread: the selection
stack is a context variable and the registry is only written while modules are imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

if TYPE_CHECKING:
    from astrai.kvcache import KVCache

# Backends entered with `with`, innermost last. A tuple and not reset tokens: the same instance may
# be entered again, on any number of threads and tasks.
selection_stack: ContextVar[tuple[AttentionBackend, ...]] = ContextVar(
    "astrai_attention_backends", default=()
)


class AttentionCall(NamedTuple):
    """What a capability check may look at. Hashable, so that automatic choices are remembered."""

    fwd: str | None  # "prefill", "decode" or None (dense)
    q_rank: (
        int  # 3 packed [total_q, n_heads, head_dim], 4 dense [batch, seq_len, n_heads, head_dim]
    )
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device_type: str
    has_cache: bool
    has_mask: bool
    needs_grad: bool
    window: int | None = None
    soft_cap: float | None = None

    def describe(self) -> str:
        """Shape and dtype for error messages and logs."""
        return (
            f"fwd={self.fwd} rank={self.q_rank} n_heads={self.n_heads} "
            f"n_kv_heads={self.n_kv_heads} head_dim={self.head_dim} dtype={self.dtype} "
            f"device={self.device_type} kv_cache={'yes' if self.has_cache else 'no'} "
            f"attn_mask={'yes' if self.has_mask else 'no'} "
            f"window={self.window} soft_cap={self.soft_cap}"
        )


def given_options(window: int | None, soft_cap: float | None) -> dict[str, Any]:
    """Those of the two that are given: a backend without them need not have the parameters."""
    options = {"window": window, "soft_cap": soft_cap}
    return {name: value for name, value in options.items() if value is not None}


class AttentionBackend(ABC):
    """Cache I/O and attention for one way of computing it.

    As a context manager an instance becomes the explicit, strict selection of the enclosed calls.
    """

    name: ClassVar[str]
    # Whether k and v may be None with a kv_cache: a fused kernel has written them to it already.
    # A model passes None only where every backend that may be chosen says True.
    reads_written_kv: ClassVar[bool] = False
    # Which of "window" and "soft_cap" the fwd methods take. A call that asks for another one is
    # refused before `supports` is asked, so a backend that knows of neither never ignores them.
    options: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """Why no call at all can run here (not built, not installed, no device), or None."""

    @abstractmethod
    def supports(self, call: AttentionCall) -> str | None:
        """Why this call cannot run here, or None when it can. Depends on `call` alone."""

    @abstractmethod
    def fwd_prefill(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Attend any number of new tokens per request; dense tensors when kv_cache is None.

        Arguments, result and effects as `astrai.extension.attention`.
        """

    def fwd_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Attend exactly one new token per request. Arguments as `fwd_prefill`.

        To be overridden where decode has a way of its own: here it is the ragged batch that it is.
        Raises ValueError without a kv_cache.
        """
        if kv_cache is None:
            raise ValueError("attention: fwd is 'decode' without a kv_cache; pass the step's cache")
        options = given_options(window, soft_cap)
        return self.fwd_prefill(
            q, k, v, kv_cache, layer_id, attn_mask, is_causal, sm_scale, **options
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None = None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        fwd: str | None = None,
        sm_scale: float | None = None,
        **options: Any,
    ) -> Tensor:
        """Dispatch on fwd: "decode", or "prefill" and None. Raises ValueError on other values.

        options: window and soft_cap, where the call has them."""
        if fwd == "decode":
            forward = self.fwd_decode
        elif fwd in ("prefill", None):
            forward = self.fwd_prefill
        else:
            raise ValueError(f'attention: fwd is {fwd!r}; it must be "prefill", "decode" or None')
        return forward(q, k, v, kv_cache, layer_id, attn_mask, is_causal, sm_scale, **options)

    @staticmethod
    def supports_graph() -> bool:
        """Whether a forward may be captured in a CUDA graph. The engine captures those of the
        backend that automatic choice takes."""
        return False

    def __enter__(self) -> Self:
        selection_stack.set((*selection_stack.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        stack = selection_stack.get()
        if not stack or stack[-1] is not self:
            entered = [backend.name for backend in stack]
            raise RuntimeError(
                f"attn_backend: leaving {self.name!r}, but the entered backends are {entered}; "
                "leave contexts in the reverse order of entering them, in the same task"
            )
        selection_stack.set(stack[:-1])


class AttentionBackendFactory:
    """Names of the backend classes, and one shared instance of each."""

    _classes: ClassVar[dict[str, type[AttentionBackend]]] = {}
    _instances: ClassVar[dict[str, AttentionBackend]] = {}

    @classmethod
    def register(cls, backend: type[AttentionBackend]) -> type[AttentionBackend]:
        """Class decorator: registers a backend under its `name`. ValueError if that is taken."""
        if backend.name in cls._classes:
            raise ValueError(f"AttentionBackendFactory: {backend.name!r} is already registered")
        cls._classes[backend.name] = backend
        return backend

    @classmethod
    def create(cls, name: str) -> AttentionBackend:
        """The shared instance of a registered backend. ValueError naming those that exist."""
        key = name.strip().lower()
        if key not in cls._classes:
            accepted = ", ".join(cls.list_registered())
            raise ValueError(f"attention backend {name!r} is unknown; accepted: {accepted}")
        if key not in cls._instances:
            cls._instances[key] = cls._classes[key]()
        return cls._instances[key]

    @classmethod
    def list_registered(cls) -> list[str]:
        """Registered names, sorted."""
        return sorted(cls._classes)
