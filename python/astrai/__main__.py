"""`python -m astrai`: the command `astrai`."""

from __future__ import annotations

import sys

from astrai.cli.main import main

sys.exit(main())
