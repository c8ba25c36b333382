"""Commands that change a store, or carry kernels elsewhere: what goes, what stays, and what is asked first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cuplate.cache import DiskTier
from cuplate.cache.layers import Layer
from cuplate.cache.listing import is_kernel
from tests.cache.entries import put
from tests.cli.conftest import Command

pytest.importorskip("diskcache")


def stored(directory: Path) -> set[str]:
    """Keys of the kernels in a cache."""
    return {
        listed.key.hex() for listed in DiskTier(str(directory), write_wait_s=20.0).listing() if is_kernel(listed.tag)
    }


# ---- prune -----------------------------------------------------------------------------------------------------------


def test_prune_removes_orphans_and_says_what_is_left(command: Command, keys: dict[str, str], directory: Path) -> None:
    """The numbers are those of the library, as text and as JSON."""
    for name in ("one.val", "two.val"):
        (directory / "v1" / name).write_bytes(bytes(10))
    told = command("prune", "--json").json
    assert (told["removed_orphans"], told["removed_entries"], told["entries"], told["within"]) == (2, 0, 4, True)
    done = command("prune")
    assert (done.code, done.lines[0]) == (0, "removed  0 entries (0 bytes), 0 orphans")


def test_prune_where_nothing_is_stored_is_fine(command: Command, directory: Path) -> None:
    """And it makes no store."""
    directory.mkdir(mode=0o700)
    assert command("prune", "-d", directory).code == 0
    assert os.listdir(directory) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_prune_of_what_cannot_be_written_is_3(command: Command, keys: dict[str, str], directory: Path) -> None:
    """With the reason."""
    (directory / "v1").chmod(0o500)
    done = command("prune")
    (directory / "v1").chmod(0o700)
    assert done.code == 3


# ---- clear -----------------------------------------------------------------------------------------------------------


def test_clear_asks_first(command: Command, keys: dict[str, str], directory: Path) -> None:
    """With what would go; "no" leaves all and is code 1, "yes" removes all, notes too."""
    done = command("clear", answer="n\n")
    assert (done.code, done.out) == (1, "")
    assert re.search(rf"Remove 4 entries \([\d.]+ KiB\) from {directory}\?", done.err)
    assert stored(directory) == {*keys.values()}
    done = command("clear", answer="y\n")
    assert (done.code, done.out) == (0, f"removed 4 entries from {directory}.\n")
    assert command("info", "--json").json["entries"] == 0


def test_clear_without_a_terminal_needs_yes(command: Command, keys: dict[str, str], directory: Path) -> None:
    """A script that forgot it removes nothing; code 2."""
    done = command("clear")
    assert (done.code, done.out) == (2, "")
    assert "--yes" in done.err
    assert stored(directory) == {*keys.values()}
    assert command("clear", "--yes").code == 0
    assert stored(directory) == set()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--kernel g", "f host"),
        ("--arch sm_* --yes", "host"),
        ("--arch host", "f g"),
        ("--newer-than 1h", ""),
        ("--kernel f --arch sm_90", "g host"),
    ],
)
def test_clear_removes_what_is_chosen(
    command: Command, keys: dict[str, str], directory: Path, options: str, left: str
) -> None:
    """As ls lists it with the same options; what the library notes stays."""
    chosen = {
        entry["key"] for entry in command("ls", "--json", *options.removesuffix(" --yes").split()).json["entries"]
    }
    told = command("clear", "--yes", "--json", *options.split()).json
    assert told["removed_entries"] == len(chosen) > 0
    assert stored(directory) == {*keys.values()} - chosen == {keys[name] for name in left.split()}
    assert command("info", "--json").json["entries"] == len(left.split()) + 1


def test_clear_of_a_choice_that_nothing_meets_is_1(command: Command, keys: dict[str, str], directory: Path) -> None:
    """It asks nothing, and removes nothing."""
    done = command("clear", "--older-than", "30d")
    assert (done.code, done.out) == (1, "")
    assert "no entry meets the choice" in done.err
    assert stored(directory) == {*keys.values()}


def test_clear_and_prune_leave_layers_alone(
    command: Command, keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are only read; with nothing else it is code 3."""
    command("export", tmp_path / "layer")
    monkeypatch.setenv("CUPLATE_LAYERS", str(tmp_path / "layer"))
    assert command("clear", "--yes").code == 0
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    assert command("clear", "--yes").code == command("prune").code == 3
    assert len([key for key, tag, _ in Layer(tmp_path / "layer").all() if is_kernel(tag)]) == 3


# ---- export, import --------------------------------------------------------------------------------------------------


def test_an_export_is_imported_elsewhere(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """All kernels, or the chosen ones; equal keys stay as they are."""
    done = command("export", tmp_path / "all")
    assert (done.code, done.out.startswith("3 kernels, ")) == (0, True)
    assert command("export", tmp_path / "some", "--arch", "sm_80", "--json").json["kernels"] == 1
    assert command("export", tmp_path / "one", "--key", keys["f"][:8], "--key", keys["g"]).out.startswith("2 kernels")
    assert command("export", tmp_path / "one", "--key", keys["f"][:8], "--kernel", "g").code == 1

    other = tmp_path / "other"
    told = command("import", tmp_path / "some", "-d", other, "--json").json
    assert (told["kernels"], told["present"], told["unread"]) == (1, 0, 0)
    assert "2 kernels" in command("import", tmp_path / "all", "-d", other).out
    assert stored(other) == {*keys.values()}
    assert command("import", tmp_path / "all", "-d", other, "--json").json["present"] == 3
    assert command("verify", "-d", other).code == 0


def test_a_cache_directory_is_imported_too(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path
) -> None:
    """A plain copy of one, sources and all."""
    assert "3 kernels" in command("import", directory, "-d", tmp_path / "other").out
    assert command("show", keys["f"], "--source", "-d", tmp_path / "other").code == 0


def test_seals_are_changed_on_the_way(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """Each side has a key of its own; with the wrong one nothing is read, and that is code 1."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.write_text("theirs\n")
    mine.write_text("mine")
    assert command("export", tmp_path / "layer", "--seal-file", theirs).code == 0
    done = command("import", tmp_path / "layer", "-d", tmp_path / "other", "--secret-file", mine)
    assert (done.code, "3 of 3 cannot be read" in done.err) == (1, True)
    assert "compiled by" not in done.out
    done = command("import", tmp_path / "layer", "-d", tmp_path / "other", "--secret-file", mine, "--seal-file", theirs)
    assert (done.code, "3 kernels" in done.out) == (0, True)
    assert command("verify", "-d", tmp_path / "other", "--secret-file", mine).code == 0
    assert command("verify", "-d", tmp_path / "other").code == 1


def test_an_export_tells_what_it_could_not_read(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """What is damaged does not go along unnoticed."""
    (tmp_path / "other").write_text("other")
    done = command("export", tmp_path / "layer", "--secret-file", tmp_path / "other")
    assert (done.code, "3 of 3 cannot be read" in done.err) == (1, True)


def test_export_of_nothing_is_1_and_makes_nothing(command: Command, directory: Path, tmp_path: Path) -> None:
    """An empty layer would only hide a mistake."""
    directory.mkdir(mode=0o700)
    assert command("export", tmp_path / "layer", "-d", directory).code == 1
    assert not (tmp_path / "layer").exists()


def test_import_of_what_is_no_export(command: Command, tmp_path: Path, directory: Path) -> None:
    """A directory of something else is 3, none at all is 2."""
    (tmp_path / "else").mkdir()
    done = command("import", tmp_path / "else", "-d", directory)
    assert (done.code, "holds neither" in done.err) == (3, True)
    assert command("import", tmp_path / "none", "-d", directory).code == 2
    assert not directory.exists()


def test_an_export_to_where_nothing_can_be_made_is_3(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """With the system's reason."""
    (tmp_path / "file").write_text("x")
    done = command("export", tmp_path / "file")
    assert done.code == 3
    assert str(tmp_path / "file") in done.err


def test_what_does_not_fit_is_told(
    command: Command, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import into a store that refuses an entry is code 1."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    put(tier, 1, source="x" + os.urandom(2_200_000).hex())  # above an eighth of the smallest limit
    tier.close()
    monkeypatch.setenv("CUPLATE_DISK_BYTES", "16000000")
    done = command("import", directory, "-d", tmp_path / "other")
    assert (done.code, "1 could not be stored" in done.out) == (1, True)
    assert "above an eighth of the limit" in done.err
