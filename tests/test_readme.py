"""What the README says can be run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click

from fusion_search import cli

ROOT = Path(__file__).resolve().parents[1]


def readme_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_readme_names_only_commands_that_exist() -> None:
    blocks = readme_blocks()
    assert [len(block.strip().splitlines()) for block in blocks[:2]] == [1, 1]
    used = set(re.findall(r"(?:^|[\s/])fusion-search ([a-z]+)", "\n".join(blocks), re.MULTILINE))
    assert used
    assert used <= set(cli.cli.list_commands(click.Context(cli.cli)))


def test_ci_runs_the_second_command_of_the_readme() -> None:
    done = subprocess.run([str(ROOT / ".ci" / "run"), "--print-test-command"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == readme_blocks()[1].strip()
