"""HTTP server: OpenAI and Anthropic protocols over an engine. JSON shapes live here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrai.server.app import create_app
    from astrai.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]


def __getattr__(name: str) -> Any:
    # The command line reads the settings alone; FastAPI is imported when an app is made.
    if name == "create_app":
        from astrai.server.app import create_app

        return create_app
    if name == "ServerSettings":
        from astrai.server.settings import ServerSettings

        return ServerSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
