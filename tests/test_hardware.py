"""Accelerators against the table they were written from, and against figures typed by hand."""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from econ.errors import UnknownName
from econ.hardware import DATA, PROVENANCES, Accelerator, Link, accelerators, load_accelerator
from econ.names import aliases

pytestmark = pytest.mark.core

HERE = Path(__file__).parent
with open(HERE / "data" / "datasheet.csv", encoding="utf-8") as file:
    ROWS = {row["accelerator"].lower().replace("(", "").replace(")", ""): row for row in csv.DictReader(file)}
BOOK_VALUE = {("h100-sxm", "bf16"): 989e12, ("h100-sxm", "fp16"): 989e12}  # the table has 989.4: 0.04 % apart
FP16_ONLY = {"t4", "groq-lpu-v1"}
GIB, MIB = 1024**3, 1024**2


def peaks_of(name, row):
    wide = ("fp16",) if name in FP16_ONLY else ("bf16",) if row["vendor"] == "Google" else ("bf16", "fp16")
    columns = dict.fromkeys(wide, "bf16_fp16_dense_tflops")
    columns |= {"fp8": "fp8_dense_tflops", "int8": "int8_dense_tops", "fp4": "fp4_dense_tflops"}
    table = {p: float(row[column]) * 1e12 for p, column in columns.items() if row[column]}
    return {p: BOOK_VALUE.get((name, p), value) for p, value in table.items()}


def test_one_file_for_every_row_of_the_table():
    assert accelerators() == sorted(ROWS)
    assert len(accelerators()) >= 60


@pytest.mark.parametrize("name", sorted(ROWS))
def test_file_equals_its_row(name):
    row, g = ROWS[name], load_accelerator(name)
    assert dict(g.peaks) == pytest.approx(peaks_of(name, row), rel=1e-12)
    assert g.vendor == row["vendor"]
    assert g.hbm_bytes_per_s == pytest.approx(float(row["mem_bw_gbs"]) * 1e9, rel=1e-12)
    assert (g.link is None) == (not row["interconnect_uni_gbs"])
    if g.link:
        assert g.link.bytes_per_s_each_way == pytest.approx(float(row["interconnect_uni_gbs"]) * 1e9)
        assert 2 * g.link.bytes_per_s_each_way == pytest.approx(float(row["interconnect_bidir_gbs"]) * 1e9)
    assert g.tdp_w == (float(row["tdp_w"].split("-")[-1]) if row["tdp_w"] else None)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_capacity_equals_its_row(name):
    row, g = ROWS[name], load_accelerator(name)
    marketing, note = row["mem_capacity_marketing_gb"], row["mem_capacity_note"]
    if "to" in marketing or marketing == "varies":
        assert g.printed_bytes is None
        return
    in_gib = note.startswith("printed as") and "GiB" in note
    assert g.printed_bytes == pytest.approx(float(marketing) * (GIB if in_gib else 1e9), rel=1e-12)
    mib, gib = re.search(r"(\d+) MiB", note), re.search(r"([\d.]+) GiB", note)
    if mib:
        assert g.visible_bytes == int(mib[1]) * MIB
    elif gib:
        assert g.visible_bytes == pytest.approx(float(gib[1]) * GIB, rel=1e-9)
    elif "usable" not in note:
        assert g.visible_bytes is None


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_table_says_how_it_was_read(name):
    row, g = ROWS[name], load_accelerator(name)
    held = {"compute": g.peaks, "memory": True, "link": g.link, "power": g.tdp_w}
    assert set(g.provenance) == {table for table, present in held.items() if present}
    assert set(g.provenance.values()) <= set(PROVENANCES)
    for table, source in g.sources.items():
        assert source.title
        for piece in filter(None, source.as_printed.split("; ")):
            assert piece in row["as_printed"], f"{name} [{table}] quotes what the table does not"
    if row["provenance"] != "maker":
        assert set(g.provenance.values()) - {"maker"}, f"{name} is {row['provenance']} and no table says so"
    if row["provenance"] == "unverified":
        assert set(g.provenance.values()) == {"unverified"}
    if not row["as_printed"]:
        assert "maker" not in g.provenance.values()


# Typed by hand, not read from any file: dense TFLOP/s, memory GB/s, link GB/s each way.
SPOT = {
    "h100-sxm": ({"bf16": 989, "fp8": 1978.9}, 3350, 450),
    "h100-pcie": ({"bf16": 756.5, "int8": 1513}, 2000, 300),
    "h200-sxm": ({"bf16": 989.5, "fp8": 1979}, 4800, 450),
    "a100-sxm-80": ({"bf16": 312, "int8": 624}, 2039, 300),
    "a100-sxm-40": ({"fp16": 312}, 1555, 300),
    "l4": ({"bf16": 121, "fp8": 242.5}, 300, 32),
    "l40s": ({"bf16": 362.05, "fp8": 733}, 864, 32),
    "t4": ({"fp16": 65, "int8": 130}, 320, 16),
    "a10": ({"bf16": 125}, 600, 32),
    "b200": ({"bf16": 2250, "fp8": 4500, "fp4": 9000}, 7700, 900),
    "gb200": ({"bf16": 2500, "fp4": 10000}, 8000, 900),
    "b300": ({"fp4": 13500, "int8": 153.5}, 7700, 900),
    "mi300x": ({"bf16": 1307.4, "fp8": 2614.9}, 5300, 448),
    "rtx-4090": ({"bf16": 165.2, "fp8": 330.3}, 1008, 32),
    "rtx-3090": ({"bf16": 71}, 936, 56.25),
    "tpu-v5e": ({"bf16": 197, "int8": 393}, 819, 200),
    "gaudi-3": ({"bf16": 1835, "fp8": 1835}, 3670, 600),
    "trainium2": ({"bf16": 667, "fp8": 1299}, 2900, 640),
}


@pytest.mark.parametrize("name", SPOT)
def test_spot_values(name):
    tflops, gb_per_s, link_gb_per_s = SPOT[name]
    g = load_accelerator(name)
    assert {p: g.flop_per_s(p) / 1e12 for p in tflops} == pytest.approx(tflops)
    assert g.hbm_bytes_per_s / 1e9 == pytest.approx(gb_per_s)
    assert g.link.bytes_per_s_each_way / 1e9 == pytest.approx(link_gb_per_s)


def test_the_books_accelerator_is_exact():
    g = load_accelerator("h100-sxm")
    assert (g.flop_per_s("bf16"), g.hbm_bytes_per_s) == (989e12, 3.35e12)
    assert g.link == Link(name="NVLink4", bytes_per_s_each_way=450e9)
    assert g.ridge("bf16") == pytest.approx(295.2238806, rel=1e-9)
    assert g.ridge("fp8") == pytest.approx(590.7, rel=1e-4)
    assert (g.printed_bytes, g.memory_bytes) == (80_000_000_000, 85_520_809_984)


@pytest.mark.parametrize("name, dtype, ridge", [("a100-sxm-80", "bf16", 153.0), ("h200-sxm", "bf16", 206.1),
                                                ("a10", "bf16", 208.3), ("b200", "bf16", 292.2)])
def test_ridge(name, dtype, ridge):
    assert load_accelerator(name).ridge(dtype) == pytest.approx(ridge, abs=0.06)


def test_no_sparse_rate_is_stored():
    """Sparse rates printed by makers, TFLOP/s. None may turn up as a stored peak of the same part."""
    sparse = {"h100-sxm": {"bf16": 1979, "fp8": 3958}, "a100-sxm-40": {"bf16": 624, "int8": 1248},
              "h200-sxm": {"bf16": 1979, "fp8": 3958}, "l4": {"bf16": 242, "fp8": 485},
              "rtx-4090": {"bf16": 330.4, "fp8": 660.6, "int8": 1321.2}, "rtx-5090": {"fp4": 3352},
              "b200": {"fp4": 18000, "fp8": 9000, "bf16": 4500}, "h100-pcie": {"bf16": 1513, "fp8": 3026},
              "dgx-spark-gb10": {"fp4": 1000}, "mi300x": {"bf16": 2614.9, "fp8": 5229.8}}
    for name, rates in sparse.items():
        for precision, tflops in rates.items():
            ratio = tflops * 1e12 / load_accelerator(name).flop_per_s(precision)
            assert ratio == pytest.approx(2, rel=0.01), (name, precision)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_narrower_precisions_gain_no_more_than_the_hardware_can(name):
    """A sparse figure in a narrow column only would exceed these factors over 16 bit."""
    peaks = load_accelerator(name).peaks
    wide = peaks.get("bf16", peaks.get("fp16"))
    limits = {"fp8": 3.8, "int8": 4.05, "fp4": 8.05}  # Trainium3's MX fp8 is 3.75 x its bf16
    assert all(peaks[p] <= limit * wide for p, limit in limits.items() if p in peaks)


def test_aliases_lead_to_the_part_they_name():
    expected = {"H100": "h100-sxm", "H100-80GB-(form-factor-not-stated)": "h100-sxm",
                "A100-80": "a100-sxm-80", "H200": "h200-sxm",
                "A100-80GB-(form-factor-not-stated)": "a100-sxm-80", "RX-7900-XTX": "radeon-rx-7900-xtx",
                "DGX Spark": "dgx-spark-gb10", "DGX-Spark-(GB10)": "dgx-spark-gb10", "RTX 3090": "rtx-3090",
                "Apple-M1-Pro-14c": "apple-m1-pro", "Ryzen-AI-Max+-395-(8060S)": "ryzen-ai-max+-395",
                "GH200-144 (900W)": "gh200-144", "A10-24GB": "a10", "Tesla T4": "t4", "H800": "h800-sxm",
                "NVIDIA H100 80GB HBM3": "h100-sxm", "A100-PCIe-80 NVLink (8x)": "a100-pcie-80"}
    assert {spelling: load_accelerator(spelling).name for spelling in expected} == expected
    assert set(aliases("accelerators").values()) <= set(accelerators())


def test_parts_with_another_bandwidth_are_not_aliases():
    for name in ("Apple-M3-Max-30c", "Apple-M4-Max-32c", "A100", "A10G", "MI250X-1GCD"):
        with pytest.raises(UnknownName):
            load_accelerator(name)


def test_the_same_object_comes_back():
    g = load_accelerator("h100-sxm")
    assert load_accelerator(g) is g
    assert load_accelerator("H100_SXM") is g
    assert hash(g) == hash(load_accelerator("h100-sxm"))


@pytest.mark.parametrize("name, suggestion", [("h100-smx", "h100-sxm"), ("rtx4090", "rtx-4090"),
                                              ("spark-gb10", "dgx-spark-gb10")])
def test_unknown_name_suggests_the_nearest(name, suggestion):
    with pytest.raises(UnknownName, match=suggestion) as error:
        load_accelerator(name)
    assert "\n" not in str(error.value) and isinstance(error.value, ValueError)


@pytest.mark.parametrize("name", [None, 3, "", "no/such/file.toml"])
def test_what_is_not_a_name_is_refused(name):
    with pytest.raises(UnknownName):
        load_accelerator(name)


def test_precisions():
    g = load_accelerator("b200")
    assert g.flop_per_s("nvfp4") == g.flop_per_s("mxfp4") == g.flop_per_s("FP4") == 9e15
    with pytest.raises(ValueError, match="t4 has no bf16 rate: it has fp16, int8"):
        load_accelerator("t4").flop_per_s("bf16")
    with pytest.raises(ValueError, match="unknown precision 'fp6'; use one of bf16, fp16, fp8, int8, fp4"):
        g.flop_per_s("fp6")
    with pytest.raises(ValueError, match="apple-m1 has no bf16 rate"):
        load_accelerator("apple-m1").ridge("bf16")


def test_varying_memory_must_be_stated():
    mac = load_accelerator("apple-m2-ultra")
    with pytest.raises(ValueError, match="printed_bytes"):
        _ = mac.memory_bytes
    assert dataclasses.replace(mac, printed_bytes=192 * 10**9).memory_bytes == 192 * 10**9
    with pytest.raises(ValueError, match="hbm_bytes_per_s = -1"):
        dataclasses.replace(mac, hbm_bytes_per_s=-1)


GOOD = '''
name = "Mine"
vendor = "Me"

[compute]
bf16 = 100e12
provenance = "unverified"
source = "a guess"

[memory]
printed_bytes = 24e9
hbm_bytes_per_s = 1e12
provenance = "maker"
source = "sticker on the box"
as_printed = "24 GB, 1 TB/s"

[link]
name = "rope"
bytes_per_s_each_way = 1e9
provenance = "unverified"
source = "a guess"
'''


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_bring_your_own_file(tmp_path):
    path = write(tmp_path, GOOD)
    for given in (path, str(path)):
        g = load_accelerator(given)
        assert isinstance(g, Accelerator)
        assert (g.name, g.ridge("bf16"), g.memory_bytes, g.tdp_w) == ("mine", 100.0, 24_000_000_000, None)


BAD = {
    "unknown key": ('[memory]', '[memory]\nspeed = 1.0', r"\[memory\] has an unknown key 'speed'"),
    "unknown table": ('[link]', '[links]', "unknown key 'links'"),
    "unknown precision": ('bf16 = 100e12', 'fp6 = 100e12', r"\[compute\] has an unknown key 'fp6'"),
    "missing bandwidth": ('hbm_bytes_per_s = 1e12\n', '', r"\[memory\] lacks the key 'hbm_bytes_per_s'"),
    "missing vendor": ('vendor = "Me"\n', '', "lacks the key 'vendor'"),
    "missing source": ('source = "sticker on the box"\n', '', r"\[memory\] lacks the key 'source'"),
    "missing link name": ('name = "rope"\n', '', r"\[link\] lacks the key 'name'"),
    "no rate": ('bf16 = 100e12\n', '', r"\[compute\] needs a rate"),
    "negative": ('100e12', '-100e12', r"\[compute\] bf16 = -1"),
    "zero": ('24e9', '0', r"\[memory\] printed_bytes = 0 must be positive"),
    "infinite": ('24e9', 'inf', r"\[memory\] printed_bytes = inf must be positive and finite"),
    "text for a number": ('100e12', '"100e12"', r"\[compute\] bf16 = '100e12' is not a number"),
    "true for a number": ('100e12', 'true', r"\[compute\] bf16 = True is not a number"),
    "number for a text": ('"rope"', '4', r"\[link\] name = 4 must be a text"),
    "unknown provenance": ('"maker"', '"rumour"', r"\[memory\] provenance = 'rumour'; use one of maker"),
    "quotation without a maker": ('"maker"', '"secondary"', r"\[memory\] as_printed quotes the maker"),
    "key of another table": ('[link]\nname = "rope"', '[power]\n', r"\[power\] has an unknown key"),
    "not TOML": ('[memory]', '[memory', "not a TOML file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_name_the_file_and_the_key(tmp_path, case):
    old, new, message = BAD[case]
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as error:
        load_accelerator(path)
    assert "mine.toml" in str(error.value) and "\n" not in str(error.value)


def test_a_table_must_be_a_table(tmp_path):
    with pytest.raises(ValueError, match=r"\[power\] must be a table, not 3"):
        load_accelerator(write(tmp_path, "power = 3\n" + GOOD))


def test_nothing_but_toml_files_in_the_folder():
    assert all(path.suffix == ".toml" for path in (DATA / "accelerators").iterdir())
