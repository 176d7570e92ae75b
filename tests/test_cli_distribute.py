"""`--distribute` on the command line: what it prints, and a plan file that knows about it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from fusion_search import cli
from tests.frontends.modeling import info, model, node, random


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Three joined convolutions with a map behind them, and joined maps whose sum takes a map in."""
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"p{k}"], pads=[1, 1, 1, 1]) for k in range(3)]
    nodes += [node("Concat", ["p0", "p1", "p2"], ["c"], axis=1), node("Relu", ["c"], ["y"])]
    nodes += [node("Tanh", ["z"], ["t"]), node("Concat", ["t", "z"], ["d"], axis=1)]
    nodes += [node("Exp", ["d"], ["e"]), node("ReduceSum", ["e"], ["s"])]
    shapes = [info(f"x{k}", ["batch", 8, 256, 256]) for k in range(3)] + [info("z", ["batch", 5])]
    constants = {f"w{k}": random((8, 8, 3, 3), k) for k in range(3)}
    where = tmp_path / "small.onnx"
    onnx.save(model(nodes, shapes, ["y", "s"], constants=constants), where)
    return str(where)


GOLDEN = """\
maps on the parts of concats
concat parts maps J before J after change outcome
n_c 3 n_y # # -# adopted
distributed 1 of 2 concats with maps behind them; 1 tried
not tried 1: no kernel would be spared
small, batch=1 on local, exact
"""


def plainly(text: str) -> str:
    """Times as #, lines as words, rules left out."""
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)? (us|ms|ns|s)\b", "#", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and "\u2500" not in line)


def test_what_is_printed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", path, "--dim", "batch=1", "--distribute"]) == 0
    out, err = capsys.readouterr()
    assert plainly(out).startswith(GOLDEN)
    assert "Concat, written by its producers" in out
    assert "distribute maps over concats: " in err
    assert cli.main(["plan", path, "--dim", "batch=1"]) == 0
    assert "distributed" not in capsys.readouterr().out


def test_json_and_the_plan_file(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "plan.json")
    assert cli.main(["plan", path, "--dim", "batch=1", "--distribute", "--json", "--save", saved]) == 0
    facts = json.loads(capsys.readouterr().out)
    adopted, passed = sorted(facts["distributed"], key=lambda site: not site["adopted"])
    assert (adopted["concat"], adopted["maps"], adopted["parts"], adopted["why"]) == ("n_c", ["n_y"], 3, "")
    assert adopted["after_s"] == facts["cost_s"] < adopted["before_s"]
    assert (passed["maps"], passed["adopted"], passed["before_s"]) == (["n_e"], False, None)
    for command in (["check", path, saved], ["replay", path, saved], ["run", path, "--distribute", "--pairs", "1"]):
        assert cli.main([*command, "--dim", "batch=1"]) == 0, command
        assert "mismatch" not in capsys.readouterr().out


def test_help_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "run", "explain", "demo", "tune"):
        assert cli.main([command, "--help"]) == 0
        assert "--distribute" in capsys.readouterr().out
