"""The header closure: what counts, where it is searched, and what cannot be stored."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from cuplate import headers
from cuplate.headers import Closure, closure, complete


def write(root: Path, **files: str) -> Path:
    """Files below ``root``; ``__`` in a keyword stands for a slash, a trailing ``_h`` for the suffix."""
    for name, text in files.items():
        path = root / (name.replace("__", "/").removesuffix("_h") + ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(found: Closure) -> list[str]:
    """Names of the files in a closure."""
    return [name for name, _ in found.files]


def test_a_source_without_includes_has_an_empty_closure() -> None:
    """Nothing is searched for nothing."""
    assert closure('extern "C" __global__ void k() {}') == Closure()


def test_nested_headers_are_followed(tmp_path: Path) -> None:
    """B02: the kernel includes a, a includes b; both decide the binary."""
    write(tmp_path, a_h='#include "b.h"\n', b_h="int x;\n")
    assert names(closure('#include "a.h"\n', directories=[tmp_path])) == ["a.h", "b.h"]


def test_an_edited_inner_header_changes_the_closure(tmp_path: Path) -> None:
    """B02: an edit two levels down, of the same size and within one clock tick, is seen in the same process."""
    write(tmp_path, a_h='#include "b.h"\n', b_h="int x;\n")
    before = closure('#include "a.h"\n', directories=[tmp_path])
    write(tmp_path, b_h="int y;\n")
    after = closure('#include "a.h"\n', directories=[tmp_path])
    assert before.files[0] == after.files[0]
    assert before.digest != after.digest


def test_a_fresh_file_is_not_remembered(tmp_path: Path) -> None:
    """A file that changed a moment ago may change again within one tick of its clock, and is read each time."""
    write(tmp_path, a_h="int x;\n")
    closure('#include "a.h"\n', directories=[tmp_path])
    assert not [path for path, *_ in headers._scans if path.startswith(str(tmp_path))]


def test_an_old_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has settled is remembered by path, size, times and inode, and not opened again."""
    write(tmp_path, a_h="int x;\n")
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10_000_000_000)
    first = closure('#include "a.h"\n', directories=[tmp_path])
    monkeypatch.setattr("builtins.open", lambda *a, **k: pytest.fail("opened again"))
    assert closure('#include "a.h"\n', directories=[tmp_path]) == first


def test_restored_times_do_not_hide_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the same size whose modification time is put back is still seen."""
    write(tmp_path, a_h="int x;\n")
    status = os.stat(tmp_path / "a.h")
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10_000_000_000)
    before = closure('#include "a.h"\n', directories=[tmp_path])
    time.sleep(0.02)  # one tick of the file system's clock
    write(tmp_path, a_h="int y;\n")
    os.utime(tmp_path / "a.h", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert closure('#include "a.h"\n', directories=[tmp_path]) != before


def test_the_same_content_elsewhere_is_the_same_closure(tmp_path: Path) -> None:
    """No path gets into a closure."""
    one, two = (write(tmp_path / n, a_h='#include "s/b.h"\n', s__b_h="int x;\n") for n in ("one", "two"))
    text = "#include <a.h>\n#include <gone.h>\n"
    assert closure(text, directories=[one]) == closure(text, directories=[two])
    assert str(tmp_path) not in repr(closure(text, directories=[one]))


def test_a_header_finds_its_neighbours_first(tmp_path: Path) -> None:
    """A quoted name in a header means the header's own directory before the include directories."""
    write(tmp_path, s__a_h='#include "b.h"\n', s__b_h="1", b_h="2")
    assert names(closure('#include "s/a.h"\n', directories=[tmp_path])) == ["s/a.h", "s/b.h"]


def test_angle_brackets_do_not_look_beside_the_header(tmp_path: Path) -> None:
    """A name in angle brackets means the include directories only."""
    write(tmp_path, s__a_h="#include <b.h>\n", s__b_h="1", b_h="2")
    assert names(closure('#include "s/a.h"\n', directories=[tmp_path])) == ["s/a.h", "b.h"]


def test_the_order_of_directories_decides(tmp_path: Path) -> None:
    """The first directory that has a name wins; a header that appears before it changes the closure."""
    one, two = write(tmp_path / "one", other_h=""), write(tmp_path / "two", a_h="2")
    before = closure("#include <a.h>\n", directories=[one, two])
    write(one, a_h="1")
    after = closure("#include <a.h>\n", directories=[one, two])
    assert before != after
    assert closure("#include <a.h>\n", directories=[two, one]) == before


def test_the_working_directory_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header in the working directory is not found unless the directory is named."""
    monkeypatch.chdir(write(tmp_path, a_h="1"))
    assert closure('#include "a.h"\n').absent == ("a.h",)


def test_include_next_counts_every_copy(tmp_path: Path) -> None:
    """Which copy ``#include_next`` means depends on where it stands, so all of them decide, in order."""
    one, two = write(tmp_path / "one", a_h="#include_next <a.h>\n"), write(tmp_path / "two", a_h="int x;\n")
    both = closure("#include <a.h>\n", directories=[one, two])
    assert names(both) == ["a.h", "a.h"]
    assert both != closure("#include <a.h>\n", directories=[two, one])


def test_conditionals_are_ignored(tmp_path: Path) -> None:
    """An include that ``#if 0`` takes out still counts: too much is safe."""
    write(tmp_path, a_h="1")
    assert names(closure('#if 0\n#include "a.h"\n#endif\n', directories=[tmp_path])) == ["a.h"]


def test_a_cycle_ends(tmp_path: Path) -> None:
    """Two headers that include each other are each read once."""
    write(tmp_path, a_h='#include "b.h"\n', b_h='#include "a.h"\n')
    assert names(closure('#include "a.h"\n', directories=[tmp_path])) == ["a.h", "b.h"]


def test_a_chain_of_any_length_is_followed(tmp_path: Path) -> None:
    """Two thousand headers in a row do not overflow the stack."""
    for i in range(2000):
        (tmp_path / f"h{i}.h").write_text(f'#include "h{i + 1}.h"\n')
    assert len(closure('#include "h0.h"\n', directories=[tmp_path]).files) == 2000


@pytest.mark.parametrize(
    "line",
    [
        '#include "a.h"',
        "#include <a.h>",
        '  #  include   "a.h"',
        '%:include "a.h"',
        '#inc\\\nlude "a.h"',
        '#include \\\n "a.h"',
        '# /* c */ include /* d\n e */ "a.h"',
        '/* one\n two */ #include "a.h"',
        '#include "a.h" // not "b.h"',
        '#include "./s/../a.h"',
        'const char* s = "/*"; \n#include "a.h"\n/* */',
        "char c = '\"';\n#include \"a.h\"\nchar d = '\"';",
        "int n = 1'000'000; // don't\n#include \"a.h\"",
        'auto r = R"x(")" /* )x";\n#include "a.h"\n',
        '#error it\'s over\n#include "a.h"',
        '#if __has_include("a.h")\n#endif',
        "#if defined(__has_include) && __has_include(<a.h>)\n#endif",
        '#ifdef __has_include\n#if __has_include( "a.h" )\n#endif\n#endif',
        '\r\n#include "a.h"\r\n',
        '#embed "a.h"',
        '#include_next "a.h"',
        '\f#include "a.h"',
        '#\vinclude "a.h"',
        '#include\f"a.h"',
        '??=include "a.h"',
        '#inc??/\nlude "a.h"',
        '// a backslash with a blank behind it \\ \n#include "a.h"',
        'auto s = FOOR"(x";\n#include "a.h"\nauto t = "y)";',
    ],
)
def test_every_spelling_is_seen(line: str, tmp_path: Path) -> None:
    """Spacing, comments, splices, digraphs and strings around an include hide nothing."""
    write(tmp_path, a_h="1", s__x_h="")
    found = closure(line + "\n", directories=[tmp_path])
    assert names(found) == ["a.h"]
    assert found.storable


@pytest.mark.parametrize(
    "line",
    [
        '// #include "a.h"',
        '/*\n#include "a.h"\n*/',
        'auto r = R"(\n#include "a.h"\n)";',
        '// one \\\n#include "a.h"',
        "/* this\n#include BELOW\nis prose */",
        'const char* s = "__TIME__";',
        "// compiled at __DATE__",
        "// say include or import and nothing happens",
        "#ifdef __has_include\n#endif",
        "#if defined(__has_include)\n#endif",
    ],
)
def test_comments_and_strings_ask_for_nothing(line: str, tmp_path: Path) -> None:
    """What is not code is not followed, and does not make a source unstorable."""
    write(tmp_path, a_h="1")
    assert closure(line + "\n", directories=[tmp_path]) == Closure()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#include HEADER\n", r"includes a name that a macro makes \(HEADER\)"),
        ("#define A <x.h>\n#include A\n", r"macro makes \(A\)"),
        ("#define H __has_include\n#if H(<a.h>)\n#endif\n", "probes with __has_include"),
        ("#if __has_include(NAME)\n#endif\n", "probes with __has_include"),
        ("auto t = __TIME__;\n", r"reads the clock \(__TIME__\)"),
        ("auto t = __DATE__ __TIMESTAMP__;\n", r"reads the clock \(__DATE__\)"),
        ("#include <clock.h>\n", r"clock.h reads the clock"),
        ("#include <deep.h>\n", r"computed.h includes a name that a macro makes"),
    ],
)
def test_what_cannot_be_told_is_not_stored(text: str, reason: str, tmp_path: Path) -> None:
    """A name that only the preprocessor knows, and the clock, make a source unstorable, with the reason."""
    write(tmp_path, clock_h="#define NOW __TIME__\n", deep_h='#include "computed.h"\n', computed_h="#include X\n")
    found = closure(text, directories=[tmp_path])
    assert not found.storable
    assert re.search(reason, found.reason or "")


def test_absent_names_count(tmp_path: Path) -> None:
    """A probed header that appears later changes the closure."""
    text = '#if __has_include("late.h")\n#endif\n'
    before = closure(text, directories=[tmp_path])
    assert before.absent == ("late.h",)
    write(tmp_path, late_h="")
    assert closure(text, directories=[tmp_path]).digest != before.digest


def test_a_directory_is_not_a_header(tmp_path: Path) -> None:
    """A folder of the name is passed over, as a compiler does."""
    one, two = tmp_path / "one", write(tmp_path / "two", a_h="2")
    (one / "a.h").mkdir(parents=True)
    assert names(closure("#include <a.h>\n", directories=[one, two])) == ["a.h"]


def test_bytes_that_are_no_text_are_digested(tmp_path: Path) -> None:
    """A header in Latin-1 is no obstacle."""
    (tmp_path / "a.h").write_bytes(b"// \xe9\n#include <b.h>\n")
    write(tmp_path, b_h="1")
    assert names(closure("#include <a.h>\n", directories=[tmp_path])) == ["a.h", "b.h"]


def test_the_toolkit_is_asked_only_for_what_is_missing(tmp_path: Path) -> None:
    """A source whose headers are all the user's never looks for a toolkit."""
    write(tmp_path, a_h="1")
    found, added = complete('#include "a.h"\n', [tmp_path], lambda: pytest.fail("asked"))
    assert (names(found), added) == (["a.h"], ())


def test_toolkit_headers_count_by_content_in_one_digest(tmp_path: Path) -> None:
    """The toolkit's files are one digest; the user's stay listed by name."""
    mine, toolkit = (
        write(tmp_path / "m", a_h="#include <t.h>\n"),
        write(tmp_path / "t", t_h='#include "u.h"\n', u_h="1"),
    )
    before, added = complete('#include "a.h"\n', [mine], lambda: (toolkit,))
    assert (names(before), added, before.absent) == (["a.h"], (toolkit,), ())
    write(toolkit, u_h="2")
    after, _ = complete('#include "a.h"\n', [mine], lambda: (toolkit,))
    assert before.files == after.files
    assert before.toolkit != after.toolkit


def test_a_computed_include_in_the_toolkit_brings_in_its_directory(tmp_path: Path) -> None:
    """Any file of that directory may be meant, so each decides, and the source stays storable."""
    toolkit = write(tmp_path, t_h="\n#include CHOSEN\n", one_h="1")
    before = closure("#include <t.h>\n", toolkit=[toolkit])
    write(toolkit, one_h="2")
    headers._trees.clear()
    after = closure("#include <t.h>\n", toolkit=[toolkit])
    assert before.storable
    assert before.toolkit != after.toolkit


def test_a_toolkit_named_by_the_user_is_a_toolkit(tmp_path: Path) -> None:
    """``include="/usr/local/cuda/include"`` does not make thrust's computed includes unstorable."""
    toolkit = write(tmp_path, cuda_runtime_api_h="", t_h="\n#include CHOSEN\n")
    found = closure("#include <t.h>\n", directories=[toolkit])
    assert found.storable
    assert found.files == ()
