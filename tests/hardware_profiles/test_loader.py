"""Profiles load from names and paths, and a wrong file is refused in one line that names file and key."""

from __future__ import annotations

import os
import pathlib

import pytest

from hardware_profiles import DTYPES, ProfileError, load, names, records
from hardware_profiles.loader import MAX_FILE_BYTES

LOCAL = (pathlib.Path(__file__).parents[2] / "hardware_profiles" / "data" / "local.toml").read_text(encoding="utf-8")


def refusal(path: str | os.PathLike[str]) -> str:
    with pytest.raises(ProfileError) as caught:
        load(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.fixture
def x_toml(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return pathlib.Path("x.toml")


def edited(path: pathlib.Path, old: str, new: str) -> str:
    assert old in LOCAL
    path.write_text(LOCAL.replace(old, new, 1), encoding="utf-8")
    return refusal(path)


def test_names_are_sorted_and_load() -> None:
    assert names() == sorted(names())
    assert {"amd-epyc-9654", "local", "nvidia-h100-sxm", "raspberry-pi-5"} <= set(names())
    for name in names():
        profile = load(name)
        assert profile.name == name
        assert profile.dtypes <= set(DTYPES)
        assert profile.dram_bandwidth_bytes_per_s < profile.cache_bandwidth_bytes_per_s < profile.l1_bandwidth_bytes_per_s


def test_only_local_runs_here() -> None:
    assert [name for name in names() if load(name).runs_here] == ["local"]


def test_figures_of_the_h100() -> None:
    h100 = load("nvidia-h100-sxm")
    assert h100.dram_bandwidth_bytes_per_s == 3352.32e9
    assert h100.fast_memory_bytes == 232448
    assert (h100.parallel_units, h100.registers, h100.operand_limit) == (132, 255, 96)


@pytest.mark.parametrize("name", names())
def test_every_figure_has_a_source(name: str) -> None:
    rows = records(name)
    assert len(rows) == 16
    for row in rows:
        assert str(row["source"]).strip(), row
        assert row["kind"] in {"documented", "measured", "derived", "estimate"}
        assert row["profile"] == name


def test_a_path_is_a_file(x_toml: pathlib.Path) -> None:
    x_toml.write_text(LOCAL, encoding="utf-8")
    assert load("x.toml") == load("./x.toml") == load(x_toml) == load("local")
    bare = pathlib.Path("local")
    bare.write_text(LOCAL.replace('"local"', '"mine"', 1), encoding="utf-8")
    assert load(bare).name == "mine"


def test_whole_numbers_serve_as_rates(x_toml: pathlib.Path) -> None:
    x_toml.write_text(LOCAL.replace("value = 36e9", "value = 36_000_000_000"), encoding="utf-8")
    assert load(x_toml) == load("local")


def test_forbidden_combinations(x_toml: pathlib.Path) -> None:
    entry = '[[forbidden]]\nnodes = ["Conv", "Cast"]\nreason = "no fused instruction"\nsource = "vendor"\n'
    x_toml.write_text(f"{LOCAL}\n{entry}", encoding="utf-8")
    (forbidden,) = load(x_toml).forbidden
    assert (forbidden.nodes, forbidden.reason, forbidden.source) == (("Conv", "Cast"), "no fused instruction", "vendor")
    x_toml.write_text(f"{LOCAL}\n{entry.replace('reason', 'why')}", encoding="utf-8")
    assert refusal(x_toml).startswith("x.toml: forbidden[0].why: unknown key (")
    x_toml.write_text(LOCAL + entry.replace('"Cast"', "3"), encoding="utf-8")
    assert refusal(x_toml) == "x.toml: forbidden[0].nodes[1]: expected str, got 3"


def test_unknown_name() -> None:
    text = refusal("nvidia-h100")
    assert text.startswith("unknown hardware profile 'nvidia-h100' (did you mean 'nvidia-h100-sxm'? known profiles: amd-epyc-9654, ")
    assert "did you mean" not in refusal("zzz")
    assert "known profiles: amd-epyc-9654, " in refusal("")


def test_name_with_a_line_break_stays_on_one_line() -> None:
    assert refusal("a\nb\x1b[31m").startswith("unknown hardware profile 'a\\nb\\x1b[31m'")
    assert refusal("a\nb/c\x1b.toml").startswith("a b/c\\x1b.toml: no such file")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("-1", "a number > 0, got -1"),
        ("0", "a number > 0, got 0"),
        ("nan", "a number > 0, got nan"),
        ("inf", "a number > 0, got inf"),
        ("-inf", "a number > 0, got -inf"),
        ('"fast"', "a number > 0, got 'fast'"),
        ("true", "a number > 0, got True"),
        ("[1]", "a number > 0, got [1]"),
        ("2001-01-01", "a number > 0, got datetime.date(2001, 1, 1)"),
        ("1e-300", "a number from 1 to 1e+24, got 1e-300"),
        ("1e300", "a number from 1 to 1e+24, got 1e+300"),
        ("1" + "0" * 400, "a number > 0, got 1" + "0" * 56 + "..."),
    ],
)
def test_bad_rate(x_toml: pathlib.Path, value: str, said: str) -> None:
    assert edited(x_toml, "value = 36e9", f"value = {value}") == f"x.toml: dram_bandwidth_bytes_per_s: expected {said}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value = 2\n", "value = 2.5\n", "parallel_units: expected a whole number > 0, got 2.5"),
        ("value = 2\n", "value = 0\n", "parallel_units: expected a whole number > 0, got 0"),
        ("value = 2\n", f"value = {2**63}\n", f"parallel_units: expected a number from 1 to 4.61169e+18, got {2**63}"),
        ("value = 1.5e-6", "value = -1.5e-6", "launch_overhead_s: expected a number >= 0, got -1.5e-06"),
        ("value = 1.5e-6", "value = inf", "launch_overhead_s: expected a number >= 0, got inf"),
        ("value = 0.8", "value = 1.5", "overlap: expected a number from 0 to 1, got 1.5"),
        ("value = 0.8", "value = nan", "overlap: expected a number from 0 to 1, got nan"),
        ("value = false", 'value = "no"', "grid_sync: expected true or false, got 'no'"),
        ("value = 33554432", "value = 32", "cache_bytes: expected at least one line of 64 bytes, got 32"),
        ("value = 36e9\n", "", "dram_bandwidth_bytes_per_s.value: missing"),
        ('kind = "cpu"', 'kind = "tpu"', "kind: expected one of gpu, cpu, npu, got 'tpu'"),
        (
            'kind = "measured"',
            'kind = "guess"',
            "dram_bandwidth_bytes_per_s.kind: expected one of documented, measured, derived, estimate, got 'guess'",
        ),
        ('name = "local"', "name = 3", "name: expected text, got 3"),
        ('name = "local"', 'name = " "', "name: expected text, got ' '"),
        ("runs_here = true", "runs_here = 1", "runs_here: expected true or false, got 1"),
    ],
)  # fmt: skip
def test_bad_value(x_toml: pathlib.Path, old: str, new: str, said: str) -> None:
    assert edited(x_toml, old, new) == f"x.toml: {said}"


def test_no_launch_cost_is_a_profile(x_toml: pathlib.Path) -> None:
    x_toml.write_text(LOCAL.replace("value = 1.5e-6", "value = 0"), encoding="utf-8")
    assert load(x_toml).launch_overhead_s == 0.0


def test_empty_source(x_toml: pathlib.Path) -> None:
    path = "x.toml: dram_bandwidth_bytes_per_s.source: expected text, got ' '"
    line = next(line for line in LOCAL.splitlines() if line.startswith("source"))
    assert edited(x_toml, line, 'source = " "') == path
    assert edited(x_toml, f"{line}\n", "") == "x.toml: dram_bandwidth_bytes_per_s.source: missing (expected text)"


def test_missing_key(x_toml: pathlib.Path) -> None:
    x_toml.write_text(LOCAL[: LOCAL.index("[overlap]")], encoding="utf-8")
    assert refusal(x_toml) == "x.toml: overlap: missing (expected a table with value (a number from 0 to 1), source and kind)"


def test_unknown_key(x_toml: pathlib.Path) -> None:
    text = edited(x_toml, "runs_here", "run_here")
    assert text.startswith("x.toml: run_here: unknown key (did you mean 'runs_here'? known keys: name, ")
    text = edited(x_toml, "note =", "notes =")
    assert text.startswith("x.toml: dram_bandwidth_bytes_per_s.notes: unknown key (did you mean 'note'? known keys: ")


def test_number_without_a_source(x_toml: pathlib.Path) -> None:
    x_toml.write_text(f"overlap = 0.5\n{LOCAL[: LOCAL.index('[overlap]')]}", encoding="utf-8")
    assert refusal(x_toml) == "x.toml: overlap: expected a table with value (a number from 0 to 1), source and kind, got 0.5"


def test_dtypes(x_toml: pathlib.Path) -> None:
    text = edited(x_toml, '"float32"', '"flaot32"')
    assert text.startswith("x.toml: dtypes: unknown dtype 'flaot32' (did you mean 'float32'? known dtypes: float64, ")
    line = next(line for line in LOCAL.splitlines() if line.startswith("value = ["))
    assert edited(x_toml, line, "value = []") == "x.toml: dtypes: expected a list of names, got []"
    assert edited(x_toml, line, "value = [3]") == "x.toml: dtypes: expected a list of names, got [3]"


def test_toml_syntax_names_the_line(x_toml: pathlib.Path) -> None:
    x_toml.write_text('name = "a"\nkind =\n', encoding="utf-8")
    text = refusal(x_toml)
    assert text.startswith("x.toml: not TOML: ")
    assert "line 2" in text


@pytest.mark.parametrize("content", ["a = " + "[" * 20_000, "a = " + "9" * 10_000])
def test_toml_that_the_parser_gives_up_on(x_toml: pathlib.Path, content: str) -> None:
    x_toml.write_text(content, encoding="utf-8")
    assert refusal(x_toml).startswith("x.toml: not TOML: ")


def test_files_that_cannot_be_read(x_toml: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert refusal(x_toml).startswith("x.toml: no such file (known profiles: amd-epyc-9654, ")
    assert refusal(tmp_path) == f"{tmp_path}: not a file"
    assert refusal("x.toml/y.toml").startswith("x.toml/y.toml: no such file")
    x_toml.write_bytes(b"name = '\xff'")
    assert refusal(x_toml) == "x.toml: not UTF-8 text: byte 8"
    assert refusal("x.toml/y.toml") == "x.toml/y.toml: cannot be read: Not a directory"
    x_toml.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert refusal(x_toml) == f"x.toml: expected at most {MAX_FILE_BYTES} bytes, got {MAX_FILE_BYTES + 1}"
    assert refusal("a\0b.toml").startswith("a\\x00b.toml: cannot be read: ")
    os.mkfifo("pipe.toml")
    assert refusal("pipe.toml") == "pipe.toml: not a file"
