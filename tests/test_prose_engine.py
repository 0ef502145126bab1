"""The prose test is tested here, on small notebooks that are right and on every way to be wrong."""

import nbformat
import pytest
from prose import chapter_problems, contradictions, load_facts, page_problems
from quantities import Quantity, quantities
from sentences import sentences

FACTS = {"nvidia-h100": {Quantity(digits="3.35", unit="TB/s")}}
SETUP = "prompt_tokens = 2_048\nn_layers, n_kv_heads, head_dim = 80, 8, 128\n" \
        "kv_bytes = 2 * 2 * n_layers * n_kv_heads * head_dim * prompt_tokens"
PRINT = 'print(fmt(kv_bytes, "MB"))'
CLAIM = 'claim(kv_bytes, "671 MB", "KV cache")'


def code(source, output="", tags=()):
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)] if output else []
    return cell


def chapter(text, *cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text), code(SETUP), *cells])


def problems(text, *cells):
    return chapter_problems(chapter(text, *cells), FACTS)


PRINTED = code(PRINT, "671 MB\n")
CLAIMED = code(CLAIM, "KV cache: 671 MB\n")


@pytest.mark.parametrize("text", [
    "The cache takes 671 MB.", "The cache takes **671 MB** now.", "The cache takes 671\u00a0MB.",
    "A prompt of 2,048 tokens.", "A prompt of $2{,}048\\,\\text{tokens}$.", "# The 671 MB cache",
    "Tens of microseconds, seven times more.",
    "Chapter 3, FP8 on an H100 in 2023, a 2x2 grid, Llama-3.3-70B.",
    "Call `fmt(5, \"GB\")`, see [here](https://example.org/5%20GB).", "```python\nx = '5 GB'\n```",
])
def test_bound_text_passes(text):
    assert problems(text, PRINTED) == []


def test_a_claim_binds():
    assert problems("The cache takes 671 MB.", CLAIMED) == []


def test_a_text_bound_of_a_band_binds():
    cell = code('claim_between(measure(), "5 GB/s", "500 GB/s", "copy")', "copy: between 5 GB/s and 500 GB/s")
    assert problems("Between 5 and 500 GB/s.", cell) == []


@pytest.mark.parametrize("text", [
    "It reads 3.35 TB/s {cite}`nvidia-h100`.", "3,350 GB/s {cite:p}`other,nvidia-h100`.",
])
def test_a_cited_fact_binds(text):
    assert problems(text) == []


@pytest.mark.parametrize("text", [
    "The cache takes 672 MB.", "The cache takes 671 GB.", "The cache takes 671.0 MB.",
    "The cache takes 67 MB.",
])
@pytest.mark.parametrize("cell", [PRINTED, CLAIMED])
def test_a_changed_number_is_caught(text, cell):
    assert any("is not bound" in line for line in problems(text, cell))


@pytest.mark.parametrize("text", [
    "It takes 5 ms.", "# It takes 5 ms", "- It takes 5 ms", "| time |\n|---|\n| 5 ms |",
    "| time (ms) |\n|---|\n| 5 |", "| GPU | ms |\n|---|---|\n| H100 | **5** |",
    "It takes $t = 5\\,\\text{ms}$.", "$$t = \\frac{1}{2}\\,\\mathrm{s} = 5\\ \\text{ms}$$",
    "{math}`5\\,\\text{ms}`", ":::{tip} It takes 5 ms\n:::", ":::{tip}\nIt takes 5 ms.\n:::",
    "```{figure} a.png\n:alt: It takes 5 ms\n```", "```{figure} a.png\nIt takes 5 ms.\n```",
    "[It takes 5 ms](a.md)", "> It takes 5 milliseconds", "a 5-ms step",
    "\\begin{align}t &= 5\\,\\text{ms}\\end{align}", "5\u00a0ms", "5ms", "between 5 and 5 ms", "**5** ms",
    "$5$ ms",
    "```{math}\n:label: eq\nt = 5\\,\\text{ms}\n```", "````{tip}\n```{math}\n5\\,\\text{ms}\n```\n````",
])
def test_an_unbound_number_is_caught_wherever_it_stands(text):
    assert any('"5 ms" is not bound' in line for line in problems(text, PRINTED))


@pytest.mark.parametrize("text, name", [
    ("A rate of 3.35 TB/s.", "3.35 TB/s"), ("About 7x faster.", "7 x"), ("7× faster", "7 x"),
    ("290 times", "290 x"), ("It costs \\$1.71.", "$1.71"), ("A share of 3.8 %.", "3.8 %"),
    ("3.8% of it", "3.8 %"), ("9 µs", "9 us"), ("70.6 billion parameters", "70.6 B params"),
    ("23.7 tokens per second", "23.7 tok/s"), ("640 MiB", "640 MiB"),
    ("$989 \\times 10^{12}\\,\\text{FLOP/s}$", "989e12 FLOP/s"), ("$10^{12}\\,\\text{B}$", "1e12 B"),
    ("$3.35\\,\\mathrm{TB}/\\mathrm{s}$", "3.35 TB/s"),
    ("291.49 TFLOP", "291.49 TFLOP"),
    ("13-46 us", "13 us"), ("13–46 us", "46 us"), ("1,831 FLOP/B", "1831 FLOP/B"),
    ("430,626 tokens", "430626 tokens"),
])
def test_every_unit_is_scanned(text, name):
    assert any(f'"{name}" is not bound' in line for line in problems(text))


def test_a_claim_whose_text_has_vanished_is_caught():
    assert problems("It is large.", CLAIMED) == ['cell 3: claims "671 MB", which the text does not say']


def test_a_claim_that_has_not_run_is_caught():
    assert "not in its stored output" in problems("It takes 671 MB.", code(CLAIM))[0]


@pytest.mark.parametrize("source", [
    'print("671 MB")', 'print(f"{671} MB")', 'x = 671_088_640\nprint(fmt(671e6, "MB"))',
    'print(0.671 * 1000, "MB")',
])
def test_a_printed_literal_is_caught(source):
    assert "its source contains the digits" in problems("It takes 671 MB.", code(source, "671 MB"))[0]


def test_a_literal_printed_through_another_cell_is_caught():
    cells = code('text = "671 MB"'), code("print(text)", "671 MB")
    assert "stands as text" in problems("It takes 671 MB.", *cells)[0]


@pytest.mark.parametrize("value, before", [
    ("671_088_640", ""), ("671 * 10**6", ""), ("671 * M", ""), ("x", "x = 671e6"), ("y", "x = 671e6\ny = x"),
    ("int(x)", "x = 671e6"), ("x[0]", "x = [671e6]"), ("x", "x, y = 671e6, 2"), ("-(-671e6)", ""),
    ("x['a']", "x = {'a': 671e6}"), ("x", "for x in [671e6]: pass"), ("(x := 671e6)", ""),
])
def test_a_claim_on_a_literal_is_caught(value, before):
    cell = code(f'claim({value}, "671 MB", "KV cache")', "KV cache: 671 MB")
    assert any("is a literal" in line for line in problems("It takes 671 MB.", code(before), cell))


def test_a_name_that_is_also_computed_is_not_a_literal():
    cells = code("x = 1"), code("x = kv_bytes"), code('claim(x, "671 MB", "KV cache")', "KV cache: 671 MB")
    assert problems("It takes 671 MB.", *cells) == []


def test_a_cell_whose_output_is_ignored_binds_nothing():
    cell = code(PRINT, "671 MB", tags=["nbval-ignore-output"])
    assert "tagged nbval-ignore-output" in problems("It takes 671 MB.", cell)[0]


def test_a_digit_in_a_format_specification_is_not_a_literal():
    assert problems("It takes 3 MB.", code('print(f"{x / y:.3f} MB")', "3 MB")) == []


@pytest.mark.parametrize("text", ["It takes 2 s.", "It takes 2 GB.", "2 FLOP"])
def test_an_input_binds_only_where_its_name_says_what_it_is(text):
    assert any("is not bound" in line for line in problems(text, code("k = 2\nn_layers = 2e9")))


def test_a_scenario_input_binds_in_any_prefix():
    cell = code("bandwidth = 3.35e12\ntime_on(work, h100, budget_s=0.05)\nshare_frac = 0.038")
    assert problems("It reads 3.35 TB/s within 50 ms, 3.8 % of it.", cell) == []


@pytest.mark.parametrize("text", [
    "It reads 3.35 TB/s {cite}`amd-mi300`.", "It reads 3.36 TB/s {cite}`nvidia-h100`.",
    "3.35 GB {cite}`nvidia-h100`.", "It reads 3.35 TB/s. Another sentence {cite}`nvidia-h100`.",
    "| 3.35 TB/s |\n| {cite}`nvidia-h100` |",
])
def test_a_wrong_source_or_value_is_caught(text):
    assert any("is not bound" in line for line in problems(text))


def test_a_bare_dollar_is_caught():
    assert 'write "\\$"' in problems("It costs $1.71 a day.", code("x_usd = 1.71"))[0]


def test_the_definition_of_a_unit_is_free_and_its_value_is_not():
    found = problems("1 GB = 1,000,000,000 B, 1 token at a time.")
    assert len(found) == 1 and found[0].startswith('cell 1: "1000000000 B" is not bound: no output prints it')


@pytest.mark.parametrize("text, found", [
    ("−2.1 %", "-2.1 %"), ("$1.71-$2.50 or $3", "$1.71|$2.50|$3"), ("128k tokens", "128 k tokens"),
    ("8x7B, 2x2, 4×H100, 3 x 5", ""), ("the 1990s, a 70B model, A100-80GB, TP4, 10 minutes, v1.2 s", ""),
    ("12 per cent", "12 %"), ("5 GB of 80 GB", "5 GB|80 GB"), ("2 kB/token", "2 kB/token"),
])
def test_quantities(text, found):
    assert "|".join(map(str, quantities(text))) == found


def test_citations_belong_to_their_sentence():
    found = list(sentences("One {cite}`a`. Two {cite:t}`b, c`.\n\nThree, e.g. four."))
    assert [sorted(sentence.sources) for sentence in found] == [["a"], ["b", "c"], []]


def claiming(*texts):
    return chapter("", *(code(f'claim(kv_bytes, "{text}", "KV cache")') for text in texts))


def test_one_label_has_one_value():
    assert contradictions({"a": claiming("671 MB"), "b": claiming("671.1 MB", "640 MiB")}) == []
    assert contradictions({"a": claiming("671 MB"), "b": claiming("672 MB")}) == [
        '"KV cache" is 671 MB in a: cell 3 and 672 MB in b: cell 3']


def test_a_page_is_bound_by_any_chapter(tmp_path):
    page, books = tmp_path / "README.md", {"a": chapter("", CLAIMED)}
    page.write_text("The cache takes 671 MB.")
    assert page_problems(page, books, FACTS) == []
    page.write_text("The cache takes 672 MB.")
    assert len(page_problems(page, books, FACTS)) == 1


def test_facts_are_read_with_their_units(tmp_path):
    rows = ["source,value,unit,where", 'k,"1,979",TFLOP/s,table 1', "k,2.5,$/h,list", "k,8,heads,list"]
    (tmp_path / "facts.csv").write_text("\n".join(rows))
    quoted = {Quantity(digits="1979", unit="TFLOP/s"), Quantity(digits="2.5", unit="$")}
    assert load_facts(tmp_path / "facts.csv") == {"k": quoted}
