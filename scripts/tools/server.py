#!/usr/bin/env python3
"""Starts the server: the same program as the `astrai-serve` console script."""

from __future__ import annotations

import sys

from astrai.cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
