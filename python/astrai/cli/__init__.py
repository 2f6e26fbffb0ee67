"""Command line programs. Nothing imports this package."""
