"""The programs in examples/ run as their users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import astrai

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PACKAGE_FOLDER = Path(astrai.__file__).parents[1]  # the installed package, or the source tree's

pytestmark = pytest.mark.model


def run(*argv: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)},
    )


@pytest.mark.parametrize("end", ["\n", ""], ids=["an empty line", "the input's end"])
def test_chat_answers_until_the_end(default_model_path: Path, end: str) -> None:
    question = "Name one colour in one word.\n"
    done = run(EXAMPLES / "chat.py", default_model_path, typed=question + end)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.replace(">", "").strip()) > 2


def test_batch_answers_each_line_of_a_file(default_model_path: Path, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text("Name a colour.\n\nName a river.\nName a city.\n")
    done = run(EXAMPLES / "batch.py", prompts, answers, default_model_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [r["prompt"] for r in records] == ["Name a colour.", "Name a river.", "Name a city."]
    assert all(record["answer"].strip() for record in records)
    assert "3/3" in done.stderr


def test_batch_without_files_says_how_it_is_used() -> None:
    done = run(EXAMPLES / "batch.py")
    assert done.returncode != 0 and "PROMPTS.txt ANSWERS.jsonl" in done.stderr


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
