"""Where the scripts are."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
