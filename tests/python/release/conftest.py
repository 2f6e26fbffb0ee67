"""The scripts' shared code is no package of AstrAI: its folder is put on the path here."""

from __future__ import annotations

import sys

from script_folder import SCRIPTS

sys.path.insert(0, str(SCRIPTS))
