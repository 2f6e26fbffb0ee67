"""The modules that make pages of the documentation site, importable as they are there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "docs_site"))
