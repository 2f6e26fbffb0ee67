"""Changes that break a file: for tests that draw them with hypothesis."""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

from hypothesis import strategies as st

HUGE = [0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def changed_bytes(draw: st.DrawFn, whole: bytes, header_bytes: int) -> bytes:
    """whole with one to three changes in its first header_bytes."""
    broken = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, header_bytes - 8))
        kind = draw(st.sampled_from(["bit", "byte", "u32", "u64", "cut", "insert"]))
        if kind == "bit":
            broken[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte":
            broken[at] = draw(st.integers(0, 255))
        elif kind == "u32":
            struct.pack_into("<I", broken, at, draw(st.sampled_from(HUGE)) & 0xFFFFFFFF)
        elif kind == "u64":
            struct.pack_into("<Q", broken, at, draw(st.sampled_from(HUGE)))
        elif kind == "cut":
            del broken[at : at + draw(st.integers(1, 64))]
        else:
            broken[at:at] = draw(st.binary(min_size=1, max_size=16))
    return bytes(broken[: draw(st.integers(0, len(broken)))] if draw(st.booleans()) else broken)


NESTED: Any = json.loads("[" * 500 + "]" * 500)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*HUGE, -1, -(2**63), 10**400, 0.0, -0.5, 1e300, float("nan"), float("inf")]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([[], {}, [[]], [0, -1], ["a", 7], {"type": "BPE"}, {"a": {"b": []}}]),
    st.just(NESTED),
)


def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """value with one to three of its nodes replaced, removed or added."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        node = changed
        while isinstance(node, dict | list) and node:
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 3)):
                node = node[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del node[key]
            else:
                node[key] = copy.deepcopy(draw(VALUES))
            break
    return changed
