"""What importing costs, and that everything can be imported."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

PACKAGES = ("hardware_profiles", "costmodels", "fusion_search")


def loaded_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported(package: str) -> None:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        importlib.import_module(module.name)


def test_help_answers_without_the_heavy_packages() -> None:
    asked = "import contextlib, io, fusion_search.cli as c\nwith contextlib.redirect_stdout(io.StringIO()): assert c.main({}) == 0"
    for words in (["--help"], ["run", "--help"], ["demo", "--help"], ["tune", "--help"], ["sweep", "--help"]):
        assert not loaded_after(asked.format(words)) & {"numba", "onnx", "optuna", "scipy", "networkx"}, words


@pytest.mark.parametrize("package", ["hardware_profiles", "costmodels"])
def test_profiles_and_prices_import_nothing_heavy(package: str) -> None:
    names = f"[m.name for m in pkgutil.walk_packages({package}.__path__, '{package}.')]"
    loaded = loaded_after(f"import importlib, pkgutil, {package}\nfor name in {names}: importlib.import_module(name)")
    assert not loaded & {"fusion_search", "numba", "onnx", "optuna", "click", "rich"}
