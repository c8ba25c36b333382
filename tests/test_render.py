"""render.py: the text of a specialization, the origin of every line, and errors at the template's line."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cuplate.errors import TemplateError
from cuplate.render import Source, render
from cuplate.specialization import ArrayFacts, AxisFacts, Slot, Specialization
from cuplate.template import Inline, read

GOLDEN = Path(__file__).parent / "golden"

SPECIALIZATION = Specialization(
    function="f",
    entry="f",
    parameters=(("tile", 16), ("relu", True), ("scale", 0.5), ("text", "x;\ny;\nz;"), ("shape", (1, (2, 3)))),
    arrays=(
        ArrayFacts("a", "float32", 2, False, order="C", strides=((0, 40),), aligned=((16, True),)),
        ArrayFacts("out", "float16", 1, True),
        ArrayFacts("bias", "", 0, False, present=False),
    ),
    scalars=(("alpha", "float64"),),
    axes=(AxisFacts("N"), AxisFacts("M", 64, "blockIdx.y"), AxisFacts("K", None, "blockIdx.x")),
    index_type="int",
    arch="sm_90a",
    block=(32, 4, 1),
    slots=(Slot("a", "array", "const float* a", ("const float*",)), Slot("N", "axis", "int N", ("int",))),
)


def source(text: str, anchor: Path | None = None, **changes: object) -> Source:
    """Render an inline template."""
    specialization = dataclasses.replace(SPECIALIZATION, **changes)  # type: ignore[arg-type]
    return render(read(Inline(text), anchor=anchor, function="f"), specialization)


def rendered(text: str, **changes: object) -> str:
    """Return the text of an inline template."""
    return source(text, **changes).text  # type: ignore[arg-type]


def failed(text: str, anchor: Path | None = None, **changes: object) -> TemplateError:
    """Return the error of a render."""
    with pytest.raises(TemplateError) as caught:
        source(text, anchor, **changes)
    return caught.value


def write(folder: Path, **files: str) -> None:
    """Write templates."""
    for name, text in files.items():
        (folder / f"{name}.j2").write_text(text)


# What a template sees

SEEN = [
    ("{{ tile }} {{ relu }} {{ scale }} {{ -tile }}", "16 true 0.5 (-16)"),
    ("{{ shape }} {{ shape[1][0] }}", "{1, {2, 3}} 2"),
    ("{{ [1, relu] }}", "{1, true}"),
    ("{{ a }} {{ a.ctype }} {{ a.dtype }} {{ a.itemsize }} {{ a.ndim }} {{ a.name }}", "a float float32 4 2 a"),
    ("{{ out.ctype }} {{ alpha }} {{ alpha.ctype }} {{ alpha.dtype }}", "__half alpha double float64"),
    ("{{ a.order }} {{ a.stride(0) }} {{ a.aligned(16) }}", "C 40 true"),
    ("{% if bias %}yes{% else %}no{% endif %}{% if a and not bias %}!{% endif %}", "no!"),
    ("{{ bias is defined }} {{ a is defined }} {{ bias is none }} {{ a is none }}", "false true true false"),
    ("{{ N }} {{ M }} {{ M // 2 }} {{ K.tile_index }} {{ M.tile_index }}", "N 64 32 blockIdx.x blockIdx.y"),
    ("{% for i in range(M // 32) %}{{ i }}{% endfor %}", "01"),
    ("{{ index_t }} {{ kernel }}({{ args }}) {{ arch }}", "int f(const float* a, int N) 90"),
    ("{{ block.x }} {{ block.y }} {{ block.z }} {{ block.size }}", "32 4 1 128"),
    ("{% if arch >= 90 %}tma{% endif %}", "tma"),
    ("{{ text | cstr }}", '"x;\\ny;\\nz;"'),
]


@pytest.mark.parametrize(("text", "expected"), SEEN, ids=lambda x: x)
def test_what_a_template_sees(text: str, expected: str) -> None:
    """Parameters, arrays, axes and the launch, as C++."""
    assert rendered(text) == expected


PYTHON_WORDS = [
    ("{{ relu }}", "true"),
    ("{{ relu ~ '_' ~ scale ~ True }}", "true_0.5true"),
    ("{{ relu | string }}", "true"),
    ("{{ [relu, 1.0, none_] | join(',') }}", "true,1.0,x"),
    ("{{ '%s_%s_%d_%g' | format(relu, 1e20, tile, scale) }}", "true_1e+20_16_0.5"),
    ("{{ '%s_%s' % (relu, tile) }}", "true_16"),
    ("{{ '%(x)s' | format(x=relu) }}", "true"),
    ("{{ 7 % 4 }}{{ tile % 5 }}", "31"),
    ("{{ 'x' | replace('x', relu) }}", "true"),
    ("{{ relu | upper }}", "TRUE"),
    ("{{ relu | indent }}", "true"),
    ("{{ 'a\n\n b\n' | indent(2, first=true) }}|{{ ' a b ' | trim }}|{{ 'xax' | trim('x') }}", "  a\n\n   b\n|a b|a"),
    ("{{ relu | cstr }}", '"true"'),
    ("{% set x %}{{ relu }}{% endset %}{{ x }}", "true"),
    ("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(relu) ~ m(false) }}", "truefalse"),
    ("{% filter trim %} {{ relu }} {% endfilter %}", "true"),
    ("{{ 2.7 | int }}{{ '8' | int + 1 }} {{ 1 | float }}", "29 1.0"),
    ("{% print relu %}", "true"),
    ("{{ (1, 2) | list }}", "{1, 2}"),
]


@pytest.mark.parametrize(("text", "expected"), PYTHON_WORDS, ids=lambda x: x)
def test_no_way_of_making_text_prints_pythons_words(text: str, expected: str) -> None:
    """B49: concatenation, join, format, text filters, macros and captures all spell C++."""
    assert rendered(text, parameters=(*SPECIALIZATION.parameters, ("none_", "x"))) == expected


REFUSED = [
    ("\n{{ none }}", "no C++ literal for a NoneType"),
    ("\n{{ 'x' ~ none }}", "no C++ literal for a NoneType"),
    ("\n{{ '%s' | format(none) }}", "no C++ literal for a NoneType"),
    ("\n{% set t = (1, 2) %}{{ t }}", "no C++ literal for a tuple"),
    ("\n{{ {'a': 1} }}", "no C++ literal for a dict"),
    ("\n{{ range }}", "no C++ literal for a type"),
    ("\n{{ shape | map('string') }}", "no C++ literal for a generator"),
    ("\n{{ block }}", "`block` has three sizes"),
    ("\n{{ bias }}", "optional array `bias` was not given"),
    ("\n{{ bias.ctype }}", "optional array `bias` was not given"),
    ("\n{{ a.stride(1) }}", "fact `a.stride(1)`"),
    ("\n{{ a.aligned(8) }}", "fact `a.aligned(8)`"),
    ("\n{{ out.order }}", "fact `out.order`"),
    ("\n{% set b = a %}{{ b.typ }}", "`a.typ` does not exist"),
    ("\n{{ a + 1 }}", "`a` is an array"),
    ("\n{{ a[0] }}", "`a` is an array"),
    ("\n{% if N > 4 %}{% endif %}", "`N` is a run-time size"),
    ("\n{% if N %}{% endif %}", "`N` is a run-time size"),
    ("\n{{ N + 1 }}", "`N` is a run-time size"),
    ("\n{{ 2 * N }}", "`N` is a run-time size"),
    ("\n{{ N | int }}", "`N` is a run-time size"),
    ("\n{% for i in range(N) %}{% endfor %}", "`N` is a run-time size"),
    ("\n{{ '%d' | format(N) }}", "`N` is a run-time size"),
    ("\n{{ N == 3 }}", "`N` is a run-time size"),
    ("\n{% if alpha == 1 %}{% endif %}", "`alpha` is a run-time scalar"),
    ("\n{{ N.tile_index }}", "`N.tile_index` needs tiles="),
    ("\n{{ 'x' | int }}", "`| int` cannot convert 'x'"),
    ("\n{{ shape.x }}", "has no attribute 'x'"),
    ("\n{{ tile // 0 }}", "ZeroDivisionError"),
    ("\n{{ 'a' + relu }}", "TypeError"),
    ("\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end"),
]


@pytest.mark.parametrize(("text", "summary"), REFUSED, ids=lambda x: x.strip())
def test_what_has_no_text_is_refused_at_its_line(text: str, summary: str) -> None:
    """The message has function, file, line, and the parameters of the call."""
    error = failed(text)
    assert summary in error.summary
    assert error.function == "f"
    assert error.facts["template"] == "<inline>:2"
    assert error.facts["called_as"].startswith("f(tile=16, relu=True")


def test_args_without_slots_says_that_the_list_is_matched_by_name() -> None:
    """A kernel with its own list has no `args`."""
    assert "matched by name" in failed("{{ args }}", slots=None).summary
    assert rendered("x", slots=None) == "x"


def test_a_set_is_refused() -> None:
    """B04: the order of a set differs from process to process, so no template gets one."""
    assert "no order" in failed("x", parameters=(("names", frozenset("ab")),)).summary


def test_errors_in_includes_and_macros_name_their_own_file(tmp_path: Path) -> None:
    """The innermost template frame is where the fault is; the cause is chained."""
    write(tmp_path, inc="\n\n{{ tile // 0 }}", mac="{% macro m(x) %}\n{{ x + 'a' }}\n{% endmacro %}")
    error = failed("{% include 'inc.j2' %}", tmp_path)
    assert error.facts["template"] == "inc.j2:3" and isinstance(error.__cause__, ZeroDivisionError)
    assert failed("{% import 'mac.j2' as m %}\n{{ m.m(1) }}", tmp_path).facts["template"] == "mac.j2:2"


def test_a_dynamic_include_is_found_read_once_and_refused_when_missing(tmp_path: Path) -> None:
    """B02: a file named at render time joins the snapshot at its first use."""
    write(tmp_path, relu="{{ tile }}\n")
    template = read(Inline("{% include text %}"), anchor=tmp_path, function="f")
    good = dataclasses.replace(SPECIALIZATION, parameters=(("text", "relu.j2"), ("tile", 1)))
    assert render(template, good).text == "1\n"
    write(tmp_path, relu="changed")
    assert not template.is_current()
    result = render(template, good)
    assert result.text == "1\n" and str(result.origin(1)) == "relu.j2:1"
    with pytest.raises(TemplateError) as caught:
        render(template, dataclasses.replace(good, parameters=(("text", "rely.j2"), ("tile", 1))))
    assert caught.value.facts["template"] == "<inline>:1" and caught.value.facts["try_"] == "relu.j2"
    assert str(tmp_path / "rely.j2") in caught.value.facts["looked_in"]


# The entry


@pytest.mark.parametrize(
    ("entry", "name", "kernel"),
    [
        ("f", "f", "f"),
        ("sgemm<{{ tile }}, {{ relu }}>", "sgemm<16, true>", "sgemm"),
        ("ns::sgemm<{{ a.ctype }}>", "ns::sgemm<float>", "sgemm"),
    ],
)
def test_the_entry_is_a_template_and_kernel_is_its_bare_name(entry: str, name: str, kernel: str) -> None:
    """A name expression selects the instance, the definition has the name alone."""
    result = source("{{ kernel }}", entry=entry)
    assert (result.entry, result.text) == (name, kernel)


# Whitespace


def test_tags_leave_no_lines_behind() -> None:
    """A line with only a tag vanishes; the last line end stays."""
    assert rendered("a\n  {% if relu %}\n  b\n  {% endif %}\n  {{ tile }}\n") == "a\n  b\n  16\n"
    assert rendered("a\r\nb\r\n") == "a\nb\n"
    assert rendered("a\nb") == "a\nb"


# Determinism

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from test_render import SPECIALIZATION, SEEN, source
print(source("\\n".join(text for text, _ in SEEN)).text)
"""


def test_two_processes_render_the_same_bytes() -> None:
    """B01, B04: nothing depends on the salt of hashes, on addresses or on what ran before."""
    here = Path(__file__).parent
    outputs = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM, str(here)]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 1
    assert b"const float* a" in outputs.pop()


def test_state_in_an_imported_file_does_not_outlive_a_render(tmp_path: Path) -> None:
    """B01: Jinja caches imported modules; equal specializations still render to equal text."""
    write(
        tmp_path,
        count="{% set ns = namespace(n=0) %}{% macro up() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}",
    )
    template = read(Inline("{% import 'count.j2' as c %}{{ c.up() }}{{ c.up() }}"), anchor=tmp_path, function="f")
    assert [render(template, SPECIALIZATION).text for _ in range(2)] == ["12", "12"]


def test_a_template_cannot_change_a_parameter_for_the_next_render() -> None:
    """Lists are made anew for each render."""
    template = read(Inline("{% set _ = shape.append(9) %}{{ shape }}"), anchor=None, function="f")
    assert [render(template, SPECIALIZATION).text for _ in range(2)] == ["{1, {2, 3}, 9}"] * 2


def test_threads_share_a_template(tmp_path: Path) -> None:
    """Renders and origins from several threads at once give what one thread gives."""
    write(tmp_path, inc="{{ tile }} of {{ N }}\n")
    template = read(Inline("{% for i in range(3) %}\n{% include text %}{% endfor %}"), anchor=tmp_path, function="f")

    def work(tile: int) -> tuple[str, list[str]]:
        result = render(template, dataclasses.replace(SPECIALIZATION, parameters=(("tile", tile), ("text", "inc.j2"))))
        return result.text, [str(origin) for origin in result.origins]

    with ThreadPoolExecutor(8) as pool:
        for tile, (text, origins) in enumerate(pool.map(work, range(64))):
            assert text == f"{tile} of N\n" * 3 and origins == ["inc.j2:1"] * 3


def test_equal_specializations_give_equal_sources() -> None:
    """A Source is a value: what it carries for messages does not enter comparisons."""
    one, two = source("{{ tile }}"), source("{{ tile }}")
    assert one == two and hash(one) == hash(two)
    assert one != source("{{ tile }}", parameters=(("tile", 17),))


# Origins


def lines(result: Source) -> list[str]:
    """Return each line with its origin."""
    return [f"{text} <- {origin}" for text, origin in zip(result.text.splitlines(), result.origins, strict=True)]


def test_every_line_has_its_origin_through_include_macro_loop_and_conditional(tmp_path: Path) -> None:
    """B51: a compiler's line is the line of the template where the text stands."""
    write(
        tmp_path,
        inc="// inc\n{% if relu %}\nrelu;\n{% endif %}\nlast;",
        mac="{#\n a\n comment #}\n{% macro load(x) %}\nfirst {{ x }};\n\n  second;\n{% endmacro %}\n",
    )
    text = (
        "{# c #}\n{% import 'mac.j2' as m %}\nvoid f() {\n  {% for i in range(2) %}\n  x{{ i }};\n  {% endfor %}\n"
        "{{ m.load('A') }}\n{% include 'inc.j2' %}\n\n{{ text }}\n  {{ tile }}{{\n scale\n}} tail\n}"
    )
    assert lines(source(text, tmp_path)) == [
        "void f() { <- <inline>:3",
        "  x0; <- <inline>:5",
        "  x1; <- <inline>:5",
        "first A; <- mac.j2:5",
        " <- mac.j2:6",
        "  second; <- mac.j2:7",
        " <- <inline>:7",
        "// inc <- inc.j2:1",
        "relu; <- inc.j2:3",
        "last; <- inc.j2:5",
        "x; <- <inline>:10",
        "y; <- <inline>:10",
        "z; <- <inline>:10",
        "  160.5 tail <- <inline>:11",
        "} <- <inline>:14",
    ]


def test_text_that_came_out_of_a_value_points_at_its_expression() -> None:
    """B51: the second line of a string parameter stands in no template; its {{ }} does."""
    result = source("a\n{{ text }} b {{ tile }}\n")
    origins = result.origins
    assert [(o.line, o.kind, o.expression) for o in origins if o] == [
        (1, "text", ""), (2, "value", "text"), (2, "value", "text"), (2, "text", ""),
    ]  # fmt: skip


def test_origins_survive_extends_blocks_captures_calls_and_filters(tmp_path: Path) -> None:
    """Text keeps its place when it is captured, and takes it where it is printed."""
    write(tmp_path, base="top\n{% block body %}\nbase body\n{% endblock %}\nbottom\n")
    text = (
        "{% extends 'base.j2' %}\n{% block body %}\n{{ super() }}\n{% set s %}\ncaptured\n{% endset %}\n{{ s }}\n"
        "{% macro wrap() %}\nbegin\n{{ caller() }}\nend\n{% endmacro %}\n{% call wrap() %}\ninside\n{% endcall %}\n"
        "{% filter indent(2) %}\none\n\ntwo\n{% endfilter %}\n{% endblock %}\n"
    )
    found = [line for line in lines(source(text, tmp_path)) if not line.startswith(" <-")]
    assert found == [
        "top <- base.j2:1", "base body <- base.j2:3", "captured <- <inline>:5", "begin <- <inline>:9",
        "inside <- <inline>:14", "end <- <inline>:11", "one <- <inline>:17", "  two <- <inline>:19",
        "bottom <- base.j2:5",
    ]  # fmt: skip


def test_where_marks_would_change_the_text_the_map_is_coarser_and_right() -> None:
    """A template that compares a macro's text renders the same; its lines point at the call."""
    text = "{% macro m() %}\nx\ny\n{% endmacro %}\n{% if m() | length == 4 %}\n{{ m() }}\n{% endif %}\nend\n"
    assert [line for line in lines(source(text)) if line[0] != " "] == [
        "x <- <inline>:6",
        "y <- <inline>:6",
        "end <- <inline>:8",
    ]


def test_text_that_holds_private_characters_has_no_map() -> None:
    """No map is better than a wrong one."""
    result = source("\U000f0001\n")
    assert result.text == "\U000f0001\n" and result.origin(1) is None


def test_lines_outside_the_text_have_no_origin() -> None:
    """A compiler may report line 0 or a line of an appended check."""
    result = source("a\n")
    assert result.origin(0) is None and result.origin(2) is None and result.origin(1) is not None


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_line_ends_do_not_shift_lines(ends: str, last: str) -> None:
    """Windows' line ends, old Mac's, and a missing last one count alike."""
    text = ("a\n{% if relu %}\nb\n{% endif %}\n\n{{ tile }}" + last).replace("\n", ends)
    assert lines(source(text)) == ["a <- <inline>:1", "b <- <inline>:3", " <- <inline>:5", "16 <- <inline>:6"]


WRAP = "{% macro w(x) %}@\n{{ caller() ~ '!\n?' }}{% endmacro %}"

LEAVES = (
    ["@\n", "@", "\n", " \n", "{{ tile }}\n", "{{ text }}\n", "{{ text }} @\n", "{# c\n\n#}\n", "{#- c -#}\n"],
    ["{% set q = 1 %}\n", "  {%- set q = 1 -%}\n\n", "{{\n tile }}@\n", "{%- raw %}\n@ {{ x }}\n{% endraw -%}\n@\n"],
    ["{%+ if relu %}\n@\n{%+ endif %}\n", "{{- tile -}}\n\n@\n", "{% print tile\n %}@\n"],
    ["@ {{ text | indent(2) }}\n", "{{ text | trim }}@\n"],
)

PIECES = st.recursive(
    st.sampled_from([leaf for leaves in LEAVES for leaf in leaves]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        inner.map(lambda text: "{% for i in range(2) %}\n" + text + "{% endfor %}\n"),
        inner.map(lambda text: "  {%- if relu %}\n" + text + "  {%- else %}\n@\n{% endif %}"),
        inner.map(lambda text: "{% macro m() -%}\n" + text + "{% endmacro %}\n{{ m() }}@\n{{ m() | indent(3) }}\n"),
        inner.map(lambda text: "{% set s %}" + text + "{% endset %}\n@{{ s }}"),
        inner.map(lambda text: "{% filter upper %}\n" + text + "{% endfilter %}\n"),
        inner.map(
            lambda text: (
                "{% macro w(x) %}@\n{{ caller() ~ '!\n?' }}{% endmacro %}{% call w(1) %}\n" + text + "{% endcall %}"
            )
        ),
        inner.map(lambda text: "{% with z = 1 %}" + text + "{% endwith %}"),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=PIECES)
def test_any_text_that_says_its_own_line_is_right(pieces: str) -> None:
    """Templates whose text is its own line number: the map says the same of every line that starts with text."""
    numbered = "\n".join(line.replace("@", f"@{number};") for number, line in enumerate(pieces.split("\n"), 1))
    result = source(numbered)
    assert len(result.origins) == len(result.text.removesuffix("\n").split("\n")) * bool(result.text)
    for text, origin in zip(result.text.split("\n"), result.origins, strict=False):
        said = re.match(r"\s*@(\d+);", text)
        assert origin is not None
        if said:
            assert (origin.line, origin.kind) == (int(said[1]), "text"), (numbered, text)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=PIECES)
@example(pieces="@\n{% for i in range(2) %}\n{% filter upper %}\n@\n{% endfilter %}\n{% endfor %}\n")
def test_the_coarse_map_is_right_as_well(pieces: str) -> None:
    """With marks only outside captured text, a line points at itself or at the expression that printed it."""
    numbered = "\n".join(line.replace("@", f"@{number};") for number, line in enumerate(pieces.split("\n"), 1))
    measured = "{% macro z() %}x{% endmacro %}{% if z() | length == 1 %}" + numbered + "{% endif %}"
    result = source(measured)
    for text, origin in zip(result.text.split("\n"), result.origins, strict=False):
        said = re.findall(r"@(\d+);", text)
        if said and origin is not None and origin.kind == "text":
            assert str(origin.line) in said, (numbered, text)


# Excerpts and #line


def test_an_excerpt_marks_the_line() -> None:
    """Two lines before and after, numbered as an editor numbers them."""
    result = source("a\nb\n{{ tile }}\nd\n")
    origin = result.origin(3)
    assert origin is not None
    assert result.excerpt(origin, context=1) == "  2 | b\n> 3 | {{ tile }}\n  4 | d"
    assert result.excerpt(origin) == "  1 | a\n  2 | b\n> 3 | {{ tile }}\n  4 | d"


def test_line_directives_name_the_templates_lines(tmp_path: Path) -> None:
    """One directive where the count breaks, none where it runs on."""
    write(tmp_path, inc="i\n")
    result = source("a\nb\n{% include 'inc.j2' %}\n{{ text }}\nc\n", tmp_path)
    assert result.text_with_lines() == (
        '#line 1 "<inline>"\na\nb\n#line 1 "inc.j2"\ni\n#line 4 "<inline>"\nx;\n#line 4 "<inline>"\ny;\n'
        '#line 4 "<inline>"\nz;\nc\n'
    )
    assert f'#line 1 "{tmp_path / "inc.j2"}"' in result.text_with_lines(absolute=True)


def test_line_directives_stay_out_of_places_where_they_would_break() -> None:
    """Comments, raw strings, continued lines and parentheses keep their lines together."""
    loop = "{% for i in range(2) %}\n@\n{% endfor %}\n"
    text = (
        "/*\n" + loop + '*/ R"x(\n' + loop + ')x";\n#define F \\\n{{ tile }}\\\n' + "\nf(\n" + loop + ");\n'(';\nend\n"
    )
    result = source(text)
    directed = result.text_with_lines()
    assert re.sub(r"#line .*\n", "", directed) == result.text
    after = [
        line for before, line in zip(directed.split("\n"), directed.split("\n")[1:], strict=False) if "#line" in before
    ]
    assert "@" not in after and "16\\" not in after
    assert after[-1] == "'(';"


# Golden cases


RELU = "value > 0 ? value : 0"


class Epilogue(Enum):
    RELU = RELU


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.cu.j2")), ids=lambda path: path.name)
def test_golden(path: Path) -> None:
    """The renderer's own small cases, byte for byte."""
    specialization = dataclasses.replace(
        SPECIALIZATION,
        parameters=(
            ("tile", 16), ("relu", True), ("epilogue", Epilogue.RELU), ("low", -math.inf), ("weights", (0.25, 0.5)),
            ("half", np.float32(0.1)), ("vector", 4),
        ),
    )  # fmt: skip
    result = render(read(path, anchor=None, function="f"), specialization)
    assert result.text == path.with_name(path.name.removesuffix(".j2")).read_text()
    assert all(origin is not None for origin in result.origins)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{% if mode == "value > 0 ? value : 0" %}yes{% else %}no{% endif %}', "yes"),
        ('{% if mode in ("a", "value > 0 ? value : 0") %}yes{% else %}no{% endif %}', "yes"),
        ('{% if mode != "a" and mode == mode and mode.name == "RELU" %}yes{% else %}no{% endif %}', "yes"),
        ("{{ mode }}|{{ mode.value }}|{{ 'x' ~ mode }}", "|".join((RELU, RELU, f"x{RELU}"))),
    ],
)
def test_an_enum_member_equals_its_value(text: str, expected: str) -> None:
    """B48: a template compares with the value, as expressions do, and no branch is off without a word."""
    assert rendered(text, parameters=(("mode", Epilogue.RELU),)) == expected


@pytest.mark.parametrize("value", ["/* \0 */", "/* \ud800 */"])
def test_text_that_no_compiler_reads_to_its_end_is_refused(value: str) -> None:
    """NUL would cut the source off, checks included; a lone surrogate cannot be encoded."""
    assert "rendered text holds" in str(failed("{{ text }}", parameters=(("text", value),)))
