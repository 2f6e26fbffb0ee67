"""What the release scripts share: wheels as files, GPU code in binaries, package indices.

Imported by scripts/build_wheel and its siblings, and by their tests.
"""
