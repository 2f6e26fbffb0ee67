"""AstrAI on Ray Serve: `serve run astrai.deploy.ray:app`.

Needs the `ray` extra; nothing else of astrai imports it.
"""

from __future__ import annotations

try:
    import ray.serve  # noqa: F401 - the import is the check
except ImportError as error:
    raise ImportError(
        f"astrai.deploy.ray needs Ray Serve ({error}); pip install 'astrai[ray]'"
    ) from error

from astrai.deploy.ray.application import app

__all__ = ["app"]
