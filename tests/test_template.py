"""template.py: files are found and read once, and their names are held against the signature."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cuplate.dialect import Dialect
from cuplate.errors import TemplateError
from cuplate.specialization import Fact
from cuplate.template import Inline, Template, check_names, names_in, read, shipped_directory

KNOWN = {
    "a": "array", "bias": "array", "out": "array", "alpha": "scalar", "N": "axis", "M": "axis", "tile": "parameter",
    "relu": "parameter",
}  # fmt: skip


def inline(text: str, anchor: Path | None = None) -> Template:
    """Read an inline template."""
    return read(Inline(text), anchor=anchor, function="f")


def refused(text: str, anchor: Path | None = None) -> TemplateError:
    """Return the error of a read."""
    with pytest.raises(TemplateError) as caught:
        inline(text, anchor)
    return caught.value


def checked(text: str, anchor: Path | None = None, **changes: Any) -> None:
    """Read an inline template and check its names."""
    options: dict[str, Any] = {"known": KNOWN, "parameters": (), "used_elsewhere": (), "function": "f"} | changes
    check_names(inline(text, anchor), **options)


def wrong(text: str, anchor: Path | None = None, **changes: Any) -> TemplateError:
    """Return the error of a check."""
    with pytest.raises(TemplateError) as caught:
        checked(text, anchor, **changes)
    return caught.value


def write(folder: Path, **files: str) -> None:
    """Write templates."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_name(path.name + ".j2")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# Finding


def test_a_name_is_found_beside_the_module(tmp_path: Path) -> None:
    """The directory of the function's module comes first, and is where the compiler looks for headers."""
    write(tmp_path, k="x")
    template = read("k.j2", anchor=tmp_path, function="f")
    assert (template.name, template.path, template.directory) == ("k.j2", tmp_path / "k.j2", tmp_path)
    assert template.sources == {"k.j2": "x"}


def test_a_relative_path_may_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Path is tried beside the module, then where the program runs; an absolute one is taken as it is."""
    write(tmp_path, sub__k="x")
    monkeypatch.chdir(tmp_path)
    for reference in (Path("sub/k.j2"), tmp_path / "sub/k.j2"):
        assert read(reference, anchor=tmp_path / "elsewhere", function="f").path == tmp_path / "sub" / "k.j2"


def test_a_missing_file_lists_where_it_was_looked_for(tmp_path: Path) -> None:
    """Every place is named, and the nearest name that is there."""
    write(tmp_path, saxpy="x")
    with pytest.raises(TemplateError) as caught:
        read("saxpi.j2", anchor=tmp_path, function="f")
    assert str(tmp_path / "saxpi.j2") in str(caught.value)
    assert caught.value.facts["try_"] == "saxpy.j2"
    assert caught.value.function == "f"


def test_the_nearest_name_is_near_without_its_end(tmp_path: Path) -> None:
    """Every template ends in .cu.j2, so that end makes no name near another; a forgotten .j2 does not make one far."""
    write(tmp_path, **{"matmul.cu": "x"})
    for name, near in (("double.cu.j2", None), ("matmul.cu", "matmul.cu.j2"), ("matmol.j2", "matmul.cu.j2")):
        with pytest.raises(TemplateError) as caught:
            read(name, anchor=tmp_path, function="f")
        assert caught.value.facts.get("try_") == near


def test_code_without_a_file_is_told_to_name_a_path() -> None:
    """On standard input or in a notebook no folder is beside the code; a Path starts where the program runs."""
    with pytest.raises(TemplateError) as caught:
        read("k.cu.j2", anchor=None, function="f")
    assert caught.value.facts["try_"].startswith('Path("k.cu.j2")')


def test_a_missing_include_names_the_line_that_asks(tmp_path: Path) -> None:
    """The including file's line is what has to be edited."""
    write(tmp_path, relu="x")
    error = refused("\n{% include 'relo.j2' %}", tmp_path)
    assert error.facts["template"] == "<inline>:2"
    assert error.facts["try_"] == "relu.j2"


def test_an_include_that_may_be_missing_is_no_error(tmp_path: Path) -> None:
    """`ignore missing`, and a list of which one exists, are Jinja's own ways to say so."""
    write(tmp_path, b="x{{ N }}")
    assert "N" not in inline("{% include 'a.j2' ignore missing %}", tmp_path).names
    assert "N" in inline("{% include ['a.j2', 'b.j2'] %}", tmp_path).names
    assert "no template 'a.j2'" in refused("{% include ['a.j2', 'c.j2'] %}", tmp_path).summary


def test_includes_are_found_beside_the_file_that_asks(tmp_path: Path) -> None:
    """Two files of one name in two folders stay apart."""
    write(tmp_path, k="{% include 'sub/k.j2' %}", sub__k="{% include 'p.j2' %}", sub__p="inner", p="outer")
    template = read("k.j2", anchor=tmp_path, function="f")
    assert dict(template.sources)["sub/p.j2"] == "inner"
    assert "p.j2" not in template.sources


def test_the_shipped_templates_are_a_place_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is not beside the module may be one of cuplate's own."""
    write(tmp_path, mine="x")
    monkeypatch.setattr("cuplate.template.shipped_directory", lambda: tmp_path)
    assert read("mine.j2", anchor=None, function="f").name == "mine.j2"


def test_there_is_a_shipped_directory() -> None:
    """An installed package and a source tree both have one."""
    directory = shipped_directory()
    assert directory is None or directory.is_dir()


def test_what_is_not_a_template_is_refused() -> None:
    """A wrong type is an error at decoration."""
    with pytest.raises(TemplateError, match="a name, a Path or an Inline"):
        read(b"k.cu", anchor=None, function="f")  # type: ignore[arg-type]


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The byte is named; nothing is guessed."""
    (tmp_path / "k.j2").write_bytes(b"ab\xff")
    with pytest.raises(TemplateError, match="not UTF-8: byte 2"):
        read("k.j2", anchor=tmp_path, function="f")


# The snapshot


def test_a_template_is_a_snapshot_and_knows_when_it_is_old(tmp_path: Path) -> None:
    """B02: an edit two levels down is noticed, and never mixes with what was read before."""
    write(tmp_path, k="{% include 'a.j2' %}", a="{% include 'b.j2' %}", b="one")
    template = read("k.j2", anchor=tmp_path, function="f")
    assert template.is_current()
    write(tmp_path, b="two")
    assert not template.is_current()
    assert template.sources["b.j2"] == "one"
    again = read("k.j2", anchor=tmp_path, function="f")
    assert again.sources["b.j2"] == "two"
    assert again.digest != template.digest
    assert again != template


def test_a_piece_that_many_include_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its text is the same: importing the shipped kernels read each of their pieces some ten times."""
    parsed: list[str] = []
    parse = Dialect.parse

    def noted(self: Dialect, source: str, name: str | None = None, filename: str | None = None) -> Any:
        parsed.append(str(name))
        return parse(self, source, name, filename)

    monkeypatch.setattr(Dialect, "parse", noted)
    text = f"{{# {tmp_path} #}}{{{{ inner }}}}"
    write(tmp_path, **{"a": "{% include 'piece.j2' %}{{ a }}", "b": "{% include 'piece.j2' %}{{ b }}", "piece": text})
    assert [set(read(Path(f"{name}.j2"), anchor=tmp_path, function="f").names) for name in "ab"] == [
        {"a", "inner"},
        {"b", "inner"},
    ]
    assert parsed.count("piece.j2") == 1
    write(tmp_path, piece=text + "{{ more }}")
    assert set(read(Path("a.j2"), anchor=tmp_path, function="f").names) == {"a", "inner", "more"}
    assert parsed.count("piece.j2") == 2


def test_the_digest_depends_on_text_alone(tmp_path: Path) -> None:
    """Neither the directory nor the line ends of a checkout change it."""
    digests = set()
    for number, ends in enumerate(("\n", "\r\n", "\r")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "k.j2").write_bytes(f"a{ends}b{ends}".encode())
        digests.add(read("k.j2", anchor=folder, function="f").digest)
    assert len(digests) == 1


# Names

SCOPES = [
    ("{{ a }}", {"a"}),
    ("{% set b = a %}{{ b }}", {"a"}),
    ("{% set b %}{{ a }}{% endset %}{{ b }}", {"a"}),
    ("{{ b }}{% set b = 1 %}", {"b"}),
    ("{% for i in range(n) %}{{ i }}{{ loop.index }}{% endfor %}", {"n"}),
    ("{% for i in x %}{% set y = 1 %}{% endfor %}{{ i }}{{ y }}", {"x", "i", "y"}),
    ("{% for i in x if i > low %}{% else %}{{ other }}{% endfor %}", {"x", "low", "other"}),
    ("{% for i, j in x %}{{ i }}{{ j }}{% endfor %}", {"x"}),
    ("{% macro m(p, q=a) %}{{ p }}{{ q }}{{ late }}{{ r }}{% endmacro %}{% set late = 1 %}{{ m(1) }}", {"a", "r"}),
    ("{% macro m() %}{{ caller(1) }}{{ varargs }}{% endmacro %}{% call(v) m() %}{{ v }}{{ w }}{% endcall %}", {"w"}),
    ("{% with x = a, y = b %}{{ x }}{{ y }}{% endwith %}{{ x }}", {"a", "b", "x"}),
    ("{% if a %}{% set b = 1 %}{% else %}{% set b = 2 %}{% endif %}{{ b }}", {"a"}),
    ("{% set ns = namespace(x=0) %}{% set ns.x = a %}{{ ns.x }}", {"a"}),
    ("{% filter upper %}{{ a }}{% endfilter %}", {"a"}),
    ("{% block x %}{{ a }}{{ super() }}{% endblock %}{{ self.x() }}", {"a"}),
    ("{{ a if b else c }}{{ d is defined }}{{ [e, {'k': f}] }}{{ g[h] }}{{ i | default(j) }}", set("abcdefghij")),
    ("{% raw %}{{ a }}{% endraw %}{# {% if b %} #}", set()),
]


@pytest.mark.parametrize(("text", "names"), SCOPES, ids=lambda x: x if isinstance(x, str) else "")
def test_names_follow_jinjas_scopes(text: str, names: set[str]) -> None:
    """A name counts when nothing in the template defines it where it is read."""
    assert set(inline(text).names) == names


def test_a_name_that_is_set_on_one_path_counts_as_perhaps_outside() -> None:
    """It satisfies a parameter, and is no error when it is unknown."""
    template = inline("{% if relu %}{% set tile = 8 %}{% endif %}{{ tile }}")
    assert set(template.names) == {"relu"} and template.maybe == {"tile": "<inline>:1"}
    check_names(template, known=KNOWN, parameters=("relu", "tile"), used_elsewhere=(), function="f")
    check_names(template, known={"relu": "parameter"}, parameters=("relu",), used_elsewhere=(), function="f")


def test_includes_see_what_is_bound_where_they_stand(tmp_path: Path) -> None:
    """An include shares the context and the loop around it; its own names carry its own file and line."""
    write(tmp_path, inc="\n{{ i }}{{ b }}{{ tile }}")
    template = inline("{% set b = 1 %}{% for i in range(2) %}{% include 'inc.j2' %}{% endfor %}", tmp_path)
    assert template.names == {"tile": "inc.j2:2"}


def test_an_imported_macro_sees_nothing_from_outside_without_context(tmp_path: Path) -> None:
    """The error says that the name is known, and how it gets there."""
    write(tmp_path, m="{% macro go(x) %}{{ x }}{{ tile }}{% endmacro %}")
    error = wrong("{% import 'm.j2' as m %}{{ m.go(1) }}", tmp_path)
    assert error.facts["template"] == "m.j2:1" and "with context" in error.facts["try_"]
    checked("{% import 'm.j2' as m with context %}{{ m.go(1) }}", tmp_path, parameters=("tile",))
    checked("{% from 'm.j2' import go as g with context %}{{ g(1) }}", tmp_path, parameters=("tile",))


def test_a_child_sets_names_for_the_template_it_extends(tmp_path: Path) -> None:
    """Blocks and parents read the child's assignments."""
    write(tmp_path, base="{{ width }}{% block body %}{% endblock %}{{ tile }}")
    template = inline(
        "{% extends 'base.j2' %}{% set width = 4 %}{% block body %}{{ width }}{{ N }}{% endblock %}", tmp_path
    )
    assert set(template.names) == {"tile", "N"}


def test_files_that_include_themselves_end(tmp_path: Path) -> None:
    """Recursion is legal in Jinja, and reading it terminates."""
    write(tmp_path, r="{% if tile > 1 %}{% include 'r.j2' %}{% endif %}")
    assert set(inline("{% include 'r.j2' %}", tmp_path).names) == {"tile"}


# Facts


def test_facts_are_found_where_they_are_spelled() -> None:
    """What a template reads of an array is part of the specialization."""
    template = inline("{{ a.aligned(16) }}{% if a.stride(0) == 1 %}{% endif %}{{ b['order'] }}{{ a.ctype }}")
    assert template.facts == {Fact("a", "aligned", 16), Fact("a", "stride", 0), Fact("b", "order")}
    assert template.whole == frozenset()
    assert set(template.attributes["a"]) == {"aligned", "stride", "ctype"}


def test_facts_are_found_in_includes_and_imports_with_context(tmp_path: Path) -> None:
    """Facts follow names into other files."""
    write(tmp_path, i="{{ a.order }}", m="{% macro x() %}{{ a.stride(1) }}{% endmacro %}")
    template = inline("{% include 'i.j2' %}{% import 'm.j2' as m with context %}", tmp_path)
    assert template.facts == {Fact("a", "order"), Fact("a", "stride", 1)}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("{{ a }}{{ a ~ 'x' }}{% if a and not b %}{% endif %}{{ a is defined }}{{ a if b else b }}", set()),
        ("{% macro m(x) %}{{ x.order }}{% endmacro %}{{ m(a) }}", {"a"}),
        ("{% set b = a %}{{ b.order }}", {"a"}),
        ("{% for d in range(2) %}{{ a.stride(d) }}{% endfor %}", {"a"}),
        ("{% for x in [a, b] %}{{ x.order }}{% endfor %}", {"a", "b"}),
        ("{% set s = a.stride %}{{ s(0) }}", {"a"}),
        ("{% macro m(a) %}{{ a.order }}{% endmacro %}", set()),
    ],
)
def test_an_array_that_is_passed_on_is_reported_whole(text: str, whole: set[str]) -> None:
    """Where its facts cannot be seen in the text, the caller is told."""
    assert inline(text).whole == whole


@pytest.mark.parametrize(
    ("text", "reads"),
    [("blockIdx.x", True), ("{{ 'blockIdx.x' }}", True), ("{# blockIdx.x #}", False), ("threadIdx.x", False)],
)
def test_block_indices_are_looked_for_outside_comments(text: str, reads: bool, tmp_path: Path) -> None:
    """In included files as well; a template that reads none may have its long axes folded."""
    write(tmp_path, i=text)
    assert inline("{% include 'i.j2' %}", tmp_path).reads_block_index is reads


def test_writes_args_says_whether_the_list_is_ours() -> None:
    """A kernel that never says `args` writes its own parameter list."""
    assert inline("{{ kernel }}({{ args }})").writes_args
    assert not inline("void k(float* a) {} // args").writes_args


def test_a_computed_include_makes_the_template_dynamic(tmp_path: Path) -> None:
    """Its names cannot be known, so an unused parameter is not reported."""
    write(tmp_path, e="{{ relu }}")
    checked("{% include tile %}", tmp_path, parameters=("tile", "relu"))
    assert inline("{% include tile %}").dynamic
    assert not inline("{% include 'e.j2' if tile else 'e.j2' %}", tmp_path).dynamic


# check_names


def test_an_unknown_name_is_refused_with_line_and_nearest_name() -> None:
    """B48: a misspelt name never renders as nothing."""
    error = wrong("\n{% if rleu %}x{% endif %}", parameters=("relu",))
    assert (error.function, error.facts["template"], error.facts["try_"]) == ("f", "<inline>:2", "relu")
    assert "`rleu`" in error.summary


def test_even_a_test_for_definedness_does_not_excuse_an_unknown_name() -> None:
    """B48: `x is defined` on a misspelt name would switch a feature off unseen."""
    assert "`rleu`" in wrong("{% if rleu is defined %}x{% endif %}").summary


def test_an_unused_parameter_is_refused() -> None:
    """B48: what the template does not use changes nothing, so passing it is a mistake."""
    error = wrong("{{ til }}", known={"til": "axis", **KNOWN}, parameters=("tile",))
    assert "`tile`" in error.summary and error.facts["try_"] == "til"


def test_a_parameter_used_in_an_expression_counts_as_used() -> None:
    """block=, grid= and require= are uses."""
    checked("{{ N }}", parameters=("tile",), used_elsewhere=("tile",))


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("{{ a.ctyp }}", "ctype"),
        ("{{ N.tileindex }}", "tile_index"),
        ("{{ block.w }}", None),
        ("{{ alpha.typ }}", None),
    ],
)
def test_an_unknown_attribute_is_refused(text: str, nearest: str | None) -> None:
    """Arrays, axes, scalars and the block have a closed list of attributes."""
    error = wrong(text)
    assert error.facts["template"] == "<inline>:1" and "allowed" in error.facts
    assert nearest is None or error.facts["try_"] == nearest


def test_builtins_are_always_known() -> None:
    """kernel, args, index_t, block and arch need no declaration."""
    checked("{{ kernel }}({{ args }}) {{ index_t }} {{ block.x }} {{ arch }}", known=())


def test_names_in_reads_a_name_expression() -> None:
    """`entry=` is a small template of its own."""
    assert names_in("sgemm<{{ tile }}, {{ range(2) | first }}>", function="f") == {"tile"}
    assert names_in("sgemm", function="f") == frozenset()
    with pytest.raises(TemplateError):
        names_in("sgemm<{{ tile>", function="f")


# The header comment

HEADER = """{#
kernel      saxpy: y <- a*x + y
parameters  tile   int   threads, 32 to 1024,
                         multiple of 32
            relu   bool
arguments   N  int64   elements, >= 0
            a  float[N]  read
            out, bias    device
launch      block (tile, 1, 1)
requires    sm_80
#}
{{ tile }}{{ relu }}"""


def test_the_header_comment_is_read() -> None:
    """House style's form gives names with their descriptions; continuation lines are indented."""
    header = inline(HEADER).header
    assert header is not None and header.kernel == "saxpy: y <- a*x + y" and header.requires == "sm_80"
    assert [(e.name, e.line) for e in header.parameters or ()] == [("tile", 3), ("relu", 5)]
    assert [e.name for e in header.arguments or ()] == ["N", "a", "out", "bias"]
    assert header.source is None and "block (tile" in (header.launch or "")


def test_a_header_that_agrees_is_accepted() -> None:
    """Axes may be listed among the arguments."""
    checked(HEADER, parameters=("tile", "relu"), arguments=("a", "out", "bias"))


def test_a_header_that_lists_too_much_or_too_little_is_refused_at_its_line() -> None:
    """Documentation cannot rot."""
    error = wrong(HEADER.replace("            relu   bool", "            rleu   bool"), parameters=("tile", "relu"))
    assert error.facts["template"] == "<inline>:5" and error.facts["try_"] == "relu"
    error = wrong(HEADER.replace("            relu   bool\n", ""), parameters=("tile", "relu"))
    assert error.facts["template"] == "<inline>:3" and "`relu`" in error.summary
    error = wrong(HEADER, parameters=("tile", "relu"), arguments=("a", "out", "bias", "alpha"))
    assert error.facts["template"] == "<inline>:6" and "`alpha`" in error.summary


@pytest.mark.parametrize("text", ["{# kernel that does things #}x", "{# templates/k.cu.j2 #}", "x{# a #}", ""])
def test_other_comments_are_no_header(text: str) -> None:
    """Prose stays prose."""
    assert inline(text).header is None


# Braces and other syntax


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('x\nasm("mma {%0, %1}, {%2};");', 2),
        ('x\nasm("{%%r1}");', 2),
        ('x\nasm("mov {%laneid}");', 2),
        ("x\nint a[2][2] = {{1,2},{3,4}};", 2),
        ("x\nint a[1][2] = {{1,2}};", 2),
        ("x\nint a[1][2] = {{1,\n2}};", 2),
        ("x\nfloat a[1][1] = {{0.0f}};", 2),
        ("x\nint a[1][1] = {{0}};", 2),
        ("x\nint a[1][1] = {{-1}};", 2),
        ("x\nfloat a[1][1] = {{%0}};", 2),
        ("x\n#define F(x) {#x}\n", 2),
        ("x\n#define F(x) {#x}\n{# a comment #}", 2),
        ("x\ny {{ tile\nz", 2),
    ],
)
def test_braces_of_cpp_and_ptx_are_explained(text: str, line: int) -> None:
    """Where Jinja reads a tag by accident, the message shows what to write, at the line that opened it."""
    error = refused(text)
    assert error.facts["template"] == f"<inline>:{line}"
    assert "{ {1, 2}" in error.facts["try_"], error


def test_braces_with_spaces_and_raw_blocks_are_plain_text() -> None:
    """What the messages recommend works."""
    text = 'asm("{ %0, %1 }"); int a[1][2] = { {1,2} }; {% raw %}{{1,2}} {%0}{% endraw %} #define F(x) { #x }'
    assert inline(text).names == {}


def test_a_misspelt_tag_names_the_nearest() -> None:
    """Not everything is PTX."""
    assert "`if`" in refused("{% iff x %}").summary


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("\n{{ tile | sting }}", "no filter is named `sting`"),
        ("\n{{ tile | tojson }}", "no filter is named `tojson`"),
        ("\n{% if tile is od %}{% endif %}", "no test is named `od`"),
        ("\n{% if tile %}", "end of template|Unexpected end"),
        ("\n{% autoescape true %}{% endautoescape %}", "autoescape"),
        ("\n{{ '{}'.format(relu) }}", "Python's words"),
        ("\n{{ tile + }}", "cannot read"),
    ],
)
def test_other_mistakes_name_their_line(text: str, match: str) -> None:
    """Every fault of a template is a TemplateError with file and line, at decoration."""
    error = refused(text)
    assert error.facts["template"] == "<inline>:2"
    assert re.search(match, error.summary), error.summary


def test_a_block_that_is_defined_twice_is_a_template_error() -> None:
    """What only Jinja's compiler notices is reported alike."""
    with pytest.raises(TemplateError, match="defined twice"):
        inline("{% block x %}{% endblock %}\n{% block x %}{% endblock %}").compiled()
