"""Commands that look: what they print, in tables and as JSON, and what they say of what is damaged."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuplate import cache
from cuplate.cache import DiskTier
from cuplate.cache.files import FilesTier
from cuplate.cache.layers import Layer
from cuplate.cache.packing import export
from cuplate.cubin import encode
from tests.cache.entries import SOURCE, image, kernel, put
from tests.cli.conftest import Command
from tests.servers import Served

pytest.importorskip("diskcache")

ENTRY_FIELDS = {
    *("key", "kind", "function", "parameters", "kernel", "arch", "toolchain", "compile_s", "size_bytes", "code_bytes"),
    *("stored_unix_s", "used_unix_s", "uses", "layer", "registers", "spill_store_bytes", "spill_load_bytes"),
    *("stack_bytes", "static_shared_bytes", "constant_bytes", "barriers", "max_threads"),
}


def damage(directory: Path, key: str) -> None:
    """Flip the last byte of an entry of a database."""
    with sqlite3.connect(directory / "v1" / "cache.db") as database:
        ((value,),) = database.execute("SELECT value FROM Cache WHERE key = ?", (bytes.fromhex(key),))
        changed = value[:-1] + bytes([value[-1] ^ 1])
        database.execute("UPDATE Cache SET value = ? WHERE key = ?", (changed, bytes.fromhex(key)))
    database.close()


# ---- info, path ------------------------------------------------------------------------------------------------------


def test_info_tells_what_the_library_knows(command: Command, keys: dict[str, str], directory: Path) -> None:
    """Both sizes, orphans, and every value of the policy with its source."""
    (directory / "v1" / "stray.val").write_bytes(b"1")
    known, told = cache.info(), command("info", "--json").json
    assert (told["directory"], told["state"]) == (str(directory), "on")
    assert (told["entries"], told["kernels"]) == (4, 3) == (known.disk_entries, 3)
    assert told["entry_bytes"] == known.disk_entry_bytes
    assert (told["file_bytes"], told["orphans"]) == (known.disk_file_bytes, known.disk_orphans)
    assert told["orphans"] == 1
    assert told["limit_bytes"] == 1 << 30
    policy = told["policy"]
    assert [(name, value["source"]) for name, value in policy.items()] == [(n, s) for n, _, s in known.policy.rows()]
    assert (policy["memory_kernels"]["value"], policy["time_to_live_s"]["value"]) == (256, None)
    assert (policy["secret"]["value"], policy["layers"]["value"]) == (False, [])
    shown = command("info").out
    assert "4, 3 of them kernels" in shown
    assert "1 orphans" in shown
    assert f"CUPLATE_CACHE_DIR  {directory}" in shown


def test_info_lists_the_layers(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels and compilers, or why one is not used."""
    export(DiskTier(str(directory), write_wait_s=20.0), tmp_path / "layer")
    monkeypatch.setenv("CUPLATE_LAYERS", f"{tmp_path / 'layer'}:{tmp_path / 'none'}")
    good, absent = command("info", "--json").json["layers"]
    assert (good["kernels"], "nvrtc 13.5.37" in good["toolchains"]) == (3, True)
    assert "holds neither" in absent["state"]
    assert "3 kernels" in command("info").out


def test_info_of_what_is_not_there(command: Command, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """No store yet, and memory only, are answers; nothing is made."""
    assert command("info", "-d", directory, "--json").json["entries"] == 0
    assert not directory.exists()
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    told = command("info", "--json").json
    assert (told["directory"], told["state"]) == (None, "off: CUPLATE_CACHE_DIR")
    assert "memory only" in command("info").out


def test_path_prints_the_directory_alone(command: Command, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """For a shell's substitution; where there is none stdout is empty and the code is that of `ls`."""
    done = command("path", "-d", directory)
    assert (done.code, done.out, done.err) == (0, f"{directory}\n", "")
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")
    done = command("path")
    assert (done.code, done.out) == (command("ls").code, "") == (3, "")
    assert "there is no cache directory" in done.err


@pytest.mark.skipif(sys.platform == "darwin", reason="its names are text")
def test_path_prints_any_name(tmp_path: Path) -> None:
    """Byte for byte, as the shell is to have it."""
    name = os.fsencode(tmp_path) + b"/\xff"
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"cuplate", b"cache", b"path", b"-d", name],
        capture_output=True,
        check=True,
    )
    assert done.stdout == name + b"\n"


# ---- ls --------------------------------------------------------------------------------------------------------------


def test_ls_lists_kernels_newest_first(command: Command, keys: dict[str, str]) -> None:
    """One line each, whole, with the first digits of the key; a host build is shown as one."""
    done = command("ls")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].split() == ["KEY", "ARCH", "REGS", "SIZE", "STORED", "USED", "KERNEL"]
    rows = [line.split() for line in done.lines[1:]]
    assert [row[0] for row in rows] == [keys[name][:16] for name in ("host", "g", "f")]
    assert [row[1] for row in rows] == ["host", "sm_80", "sm_90"]
    assert rows[1][2] == "20"
    assert rows[1][-2:] == ["g", "number=20"]
    assert not any(line.endswith(" ") for line in done.lines)


def test_ls_as_json_has_one_schema(command: Command, keys: dict[str, str]) -> None:
    """Every field is always there; quantities carry their unit."""
    told = command("ls", "--notes", "--json").json
    assert (told["schema"], len(told["entries"])) == (1, 4)
    assert {frozenset(entry) for entry in told["entries"]} == {frozenset(ENTRY_FIELDS)}
    entries = {entry["key"]: entry for entry in told["entries"]}
    f, host = entries[keys["f"]], entries[keys["host"]]
    assert (f["function"], f["kernel"], f["arch"], f["registers"]) == ("f", "k", "sm_90", 40)
    assert (f["parameters"], f["toolchain"], f["layer"]) == ("number=40", "nvrtc 13.5.37", None)
    assert abs(f["stored_unix_s"] - time.time()) < 1000
    assert f["code_bytes"] == len(image()) < f["size_bytes"]
    assert (host["arch"], host["registers"], host["toolchain"]) == ("host", None, "gcc 12.2.0, standing for sm_80")
    assert [entry["kind"] for entry in told["entries"]].count("note") == 1


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--kernel", "g"], "g"),
        (["--kernel", "[fg]"], "f g host"),
        (["--kernel", "k<*"], "f g host"),
        (["--kernel", "none", "--kernel", "f"], "f host"),
        (["--arch", "sm_*"], "f g"),
        (["--arch", "host"], "host"),
        (["--arch", "sm_80", "--arch", "sm_90"], "f g"),
        (["--kernel", "f", "--arch", "sm_90"], "f"),
        (["--older-than", "1h"], ""),
        (["--newer-than", "1h"], "f g host"),
        (["--unused-for", "1h"], ""),
        (["--larger-than", "64K"], ""),
        (["--smaller-than", "64K"], "f g host"),
        (["--larger-than", "1"], "f g host"),
    ],
)
def test_ls_chooses(command: Command, keys: dict[str, str], options: list[str], found: str) -> None:
    """By function or kernel, architecture, age and size; code 1 when nothing is left of a choice."""
    done = command("ls", "--json", *options)
    wanted = {keys[name] for name in found.split()}
    assert {entry["key"] for entry in done.json["entries"]} == wanted
    assert done.code == (0 if wanted else 1)


def test_ls_chooses_by_the_times_that_are_stored(command: Command, keys: dict[str, str], directory: Path) -> None:
    """An entry that was used yesterday is older than a day, and has not been unused for two."""
    now = time.time()
    with sqlite3.connect(directory / "v1" / "cache.db") as database:
        times = (now - 3 * 86400, now - 1.5 * 86400, bytes.fromhex(keys["g"]))
        database.execute("UPDATE Cache SET store_time = ?, access_time = ?, access_count = 1 WHERE key = ?", times)
    database.close()
    for options, code in (("--older-than 2d", 0), ("--unused-for 1d", 0), ("--unused-for 2d", 1)):
        done = command("ls", "--json", *options.split())
        assert [entry["key"] for entry in done.json["entries"]] == ([] if code else [keys["g"]])
        assert done.code == code
    row = next(line for line in command("ls").lines if line.startswith(keys["g"][:16]))
    assert row.split()[-4:-2] == ["3d", "1d"]


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ("--sort registers", "f g host"),
        ("--sort registers --reverse", "host g f"),
        ("--sort function --limit 2", "f host"),
        ("--sort arch", "host g f"),
        ("--sort stored --limit 1", "host"),
        ("--sort used --reverse --limit 1", "f"),
    ],
)
def test_ls_sorts_and_ends(command: Command, keys: dict[str, str], options: str, order: str) -> None:
    """Numbers from the largest down, names from the first up, the other way on demand."""
    names = {key: name for name, key in keys.items()}
    found = [names[entry["key"]] for entry in command("ls", "--json", *options.split()).json["entries"]]
    if options.startswith("--sort function"):  # both are called f
        found.sort()
    assert found == order.split()


def test_a_limit_says_what_it_leaves_out(command: Command, keys: dict[str, str]) -> None:
    """On stderr, so that a pipe gets rows only."""
    done = command("ls", "--limit", "1")
    assert (len(done.lines), done.err) == (2, "cuplate: 2 more.\n")


def test_an_empty_cache_is_no_fault(command: Command, directory: Path) -> None:
    """Code 0, nothing on stdout, and a word on stderr; JSON is an empty list."""
    directory.mkdir(mode=0o700)
    done = command("ls", "-d", directory)
    assert (done.code, done.out) == (0, "")
    assert "nothing is stored" in done.err
    assert command("ls", "-d", directory, "--json").json["entries"] == []


def test_ls_shows_layers_on_demand(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the layer that holds an entry; what the cache holds too comes once, as the cache's."""
    layer = tmp_path / "layer"
    tier = DiskTier(str(directory), write_wait_s=20.0)
    export(tier, layer)
    tier.delete(bytes.fromhex(keys["g"]))
    tier.close()
    monkeypatch.setenv("CUPLATE_LAYERS", str(layer))
    assert len(command("ls", "--json").json["entries"]) == 2
    told = command("ls", "--layers", "--json").json["entries"]
    assert {entry["key"]: entry["layer"] for entry in told} == {
        keys["f"]: None,
        keys["g"]: str(layer),
        keys["host"]: None,
    }
    assert str(layer) in command("ls", "--layers").out
    monkeypatch.setenv("CUPLATE_CACHE_DIR", "off")  # nothing but layers: they are what there is
    assert len(command("ls", "--json").json["entries"]) == 3


@pytest.mark.parametrize("kind", ["exported", "files"])
def test_an_exported_directory_is_looked_at_like_a_cache(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path, kind: str
) -> None:
    """And so is a cache of plain files, without being told which kind of store it is."""
    if kind == "exported":
        export(DiskTier(str(directory), write_wait_s=20.0), tmp_path / "other")
    else:
        put(FilesTier(str(tmp_path / "other")), 1)
    told = command("ls", "-d", tmp_path / "other", "--json").json["entries"]
    assert len(told) == (3 if kind == "exported" else 1)
    assert command("verify", "-d", tmp_path / "other").code == 0


def test_looking_changes_nothing(command: Command, keys: dict[str, str], directory: Path) -> None:
    """No look of this command makes an entry younger for the eviction."""

    def rows() -> list[object]:
        with sqlite3.connect(directory / "v1" / "cache.db") as database:
            found = database.execute("SELECT * FROM Cache").fetchall()
        database.close()
        return found

    before = rows()
    for look in (["ls"], ["info"], ["verify"], ["show", keys["f"]], ["explain", keys["f"]], ["ls", "--arch", "x"]):
        command(*look)
    assert rows() == before


def test_ls_says_that_an_entry_is_damaged(command: Command, keys: dict[str, str], directory: Path) -> None:
    """It stays in the list, as far as the store knows it."""
    damage(directory, keys["g"])
    done = command("ls")
    assert done.code == 0
    assert len(done.lines) == 4
    assert "1 of these cannot be read: cuplate cache verify" in done.err
    assert command("ls", "--json", "--kernel", "g").json["entries"][0]["arch"] is None


def test_a_planted_name_does_not_steer_the_terminal(command: Command, directory: Path) -> None:
    """Control characters are shown, not sent."""
    key, cubin = kernel(1)
    tier = DiskTier(str(directory), write_wait_s=20.0)
    tier.put(key, encode(cubin), tag="\x1b[31mred\n[bold]x")
    tier.close()
    out = command("ls", "-d", directory).out
    assert r"\x1b[31mred\n[bold]x" in out
    assert "\x1b" not in out
    tier.put(b"\x01" * 32, b"memo", tag="\x1b[31mred")
    tier.put(b"\x02" * 32, b"memo", tag="\x1b[31mred")
    tier.close()
    for prefix in ("01", "0"):
        err = command("show", prefix, "-d", directory).err
        assert r"\x1b[31mred" in err
        assert "\x1b" not in err


# ---- show ------------------------------------------------------------------------------------------------------------


def test_show_tells_all_of_a_kernel(command: Command, keys: dict[str, str], directory: Path) -> None:
    """Key, compiler, resources and ingredients, found by the first digits of the key, in capitals too."""
    done = command("show", keys["f"][:6].upper())
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "f(number=40)"
    for piece in (keys["f"], "sm_90, nvrtc 13.5.37", "registers", "40", "k<16>", str(directory / "v1"), "2 lines"):
        assert piece in done.out
    told = command("show", keys["f"], "--json").json
    assert told.keys() == ENTRY_FIELDS | {"schema", "ingredients", "log", "source"}
    assert {"name": "number", "value": "40"} in told["ingredients"]
    assert told["source"] == "// 16\n__global__ void k() {}\n"


def test_show_prints_the_source_as_it_was_compiled(command: Command, keys: dict[str, str]) -> None:
    """And nothing else, so that it can be compiled again."""
    assert command("show", keys["g"], "--source").out == SOURCE
    assert command("show", keys["g"], "--source", "--json").json == command("show", keys["g"], "--json").json


def test_a_record_without_source_says_where_it_is(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """One that was exported has none; code 1, and the function's own way to it."""
    assert command("export", tmp_path / "layer").code == 0
    done = command("show", keys["g"], "--source", "-d", tmp_path / "layer")
    assert (done.code, done.out) == (1, "")
    assert "f.inspect(...).source" in done.err
    assert command("show", keys["g"], "--json", "-d", tmp_path / "layer").json["source"] is None
    assert command("export", tmp_path / "whole", "--sources").code == 0
    assert command("show", keys["g"], "--source", "-d", tmp_path / "whole").out == SOURCE


def test_show_writes_the_code_to_a_file(command: Command, keys: dict[str, str], tmp_path: Path) -> None:
    """For a disassembler: the image itself, without record and seal."""
    done = command("show", keys["f"], "--cubin", tmp_path / "k.cubin")
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "k.cubin").read_bytes() == image()


@pytest.mark.parametrize(
    ("key", "code", "said"),
    [("0" * 64, 1, "no key begins with"), ("xyz", 2, "is no beginning of a key"), ("", 2, "is no beginning")],
)
def test_a_key_that_is_not_there_is_named(
    command: Command, keys: dict[str, str], key: str, code: int, said: str
) -> None:
    """Not stored is 1, not a key is 2."""
    done = command("show", key)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_a_beginning_of_several_keys_is_refused(command: Command, directory: Path) -> None:
    """With the keys that it may mean."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    found = [put(tier, number) for number in range(17)]  # two of 17 begin alike
    tier.close()
    twice = next(a for a in "0123456789abcdef" if sum(key.startswith(a) for key in found) > 1)
    done = command("show", twice, "-d", directory)
    assert done.code == 2
    assert "give more digits" in done.err
    assert sum(key in done.err for key in found) == sum(key.startswith(twice) for key in found)


def test_show_of_what_is_no_kernel(command: Command, keys: dict[str, str], directory: Path) -> None:
    """A note of the library, and a damaged entry, are named as what they are."""
    assert "is no kernel" in command("show", (b"memo" * 8).hex()).err
    damage(directory, keys["g"])
    done = command("show", keys["g"])
    assert done.code == 1
    assert "its seal is wrong" in done.err


# ---- verify ----------------------------------------------------------------------------------------------------------


def test_verify_of_a_good_store_is_fine(command: Command, keys: dict[str, str]) -> None:
    """Code 0, and how much was checked, notes included."""
    done = command("verify")
    assert (done.code, done.out, done.err) == (0, "4 entries checked, 0 wrong.\n", "")


def test_verify_names_each_fault(command: Command, keys: dict[str, str], directory: Path) -> None:
    """A broken seal, and a good seal around a record of another key; code 1, and nothing is changed."""
    damage(directory, keys["g"])
    tier = DiskTier(str(directory), write_wait_s=20.0)
    tier.put(b"k" * 32, encode(kernel(9)[1]), tag="f")
    tier.close()
    for _ in range(2):
        done = command("verify")
        assert done.code == 1
        assert f"{keys['g'][:16]}  g         its seal is wrong" in done.out
        assert "its ingredients give another key" in done.out
        assert done.lines[-1] == "5 entries checked, 2 wrong."
    told = command("verify", "--json").json
    assert {row["key"] for row in told["bad"]} == {keys["g"], (b"k" * 32).hex()}
    assert (told["checked"], told["dropped"]) == (5, 0)


@pytest.mark.parametrize("kind", [DiskTier, FilesTier], ids=["diskcache", "files"])
def test_repair_drops_what_is_wrong_and_nothing_else(
    command: Command, tmp_path: Path, kind: type[DiskTier | FilesTier]
) -> None:
    """Code 1 once more, because something was wrong; the next check is fine."""
    tier = kind(str(tmp_path))
    good = put(tier, 1)
    tier.put(b"k" * 32, encode(kernel(9)[1]), tag="f")
    tier.close()
    if isinstance(tier, FilesTier):  # and a file that is no entry at all
        put(tier, 2)
        (path,) = tmp_path.rglob(kernel(2)[0].hex())
        path.write_bytes(b"short")
    done = command("verify", "--repair", "-d", tmp_path)
    wrong = 1 + isinstance(tier, FilesTier)
    assert (done.code, done.lines[-1]) == (1, f"{1 + wrong} entries checked, {wrong} wrong, {wrong} dropped.")
    assert command("verify", "-d", tmp_path).code == 0
    assert [entry["key"] for entry in command("ls", "-d", tmp_path, "--json").json["entries"]] == [good]


def test_verify_with_another_secret_finds_every_seal_wrong(
    command: Command, keys: dict[str, str], tmp_path: Path
) -> None:
    """A seal is checked with the key that the library would use."""
    (tmp_path / "secret").write_bytes(b"mine\n")
    assert command("verify", "--secret-file", tmp_path / "secret").lines[-1] == "4 entries checked, 4 wrong."


def test_verify_reads_layers_on_demand(
    command: Command, keys: dict[str, str], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong there is told, and left as it is."""
    layer = tmp_path / "layer"
    export(DiskTier(str(directory), write_wait_s=20.0), layer)
    (path,) = layer.rglob(keys["g"])
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setenv("CUPLATE_LAYERS", str(layer))
    monkeypatch.setenv("CUPLATE_CACHE_DIR", str(tmp_path / "empty"))
    (row,) = command("verify", "--layers", "--repair", "--json").json["bad"]
    assert (row["key"], row["layer"]) == (keys["g"], str(layer))
    assert path.exists()
    assert Layer(layer).get(bytes.fromhex(keys["f"]))[0] is not None


def test_a_damaged_database_is_wrong_not_a_crash(command: Command, keys: dict[str, str], directory: Path) -> None:
    """verify says so with 1, others with 3; it is set aside by a repair and by nothing else."""
    database = directory / "v1" / "cache.db"
    database.write_bytes(b"no database" * 1000)
    for suffix in ("-wal", "-shm"):
        database.with_name(f"cache.db{suffix}").unlink(missing_ok=True)
    done = command("verify")
    assert done.code == 1
    assert "not a database" in done.out
    for look in (["ls"], ["info"], ["show", "00"]):
        done = command(*look)
        assert (done.code, "not a database" in done.out + done.err) == (3, True)
    assert "cuplate cache verify --repair" in command("ls").err
    assert not list(directory.glob("v1.bad-*"))
    done = command("verify", "--repair")
    assert (done.code, done.lines[-1]) == (1, "0 entries checked, 1 wrong, 1 dropped.")
    assert "has been set aside" in done.err
    assert len(list(directory.glob("v1.bad-*"))) == 1
    assert command("verify").code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="damages pages by their place")
def test_damage_inside_the_database_never_crashes(command: Command, directory: Path) -> None:
    """Whatever page is overwritten, verify ends with 0 or 1, and ls with 0 or 3."""
    tier = DiskTier(str(directory), write_wait_s=20.0)
    for number in range(30):
        put(tier, number)
    tier.close()
    database = directory / "v1" / "cache.db"
    whole = database.read_bytes()
    pages = len(whole) // 16384
    assert pages > 3
    seen = set()
    for page in range(pages):
        database.write_bytes(whole[: page * 16384] + b"\xa5" * 16384 + whole[(page + 1) * 16384 :])
        seen.add(command("verify", "-d", directory).code)
        assert command("ls", "-d", directory).code in (0, 3)
    assert seen <= {0, 1}
    assert 1 in seen


def test_a_directory_of_others_is_refused_by_name(command: Command, keys: dict[str, str], directory: Path) -> None:
    """Code 3 and the reason, not an empty list."""
    directory.chmod(0o777)
    for look in ("ls", "verify", "info"):
        done = command(look)
        assert (done.code, "can be written by others" in done.out + done.err) == (3, True)


# ---- a shared tier ---------------------------------------------------------------------------------------------------


def test_info_asks_the_shared_tier(
    command: Command, directory: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it answers, and what it says if not; user and password in no line of it."""
    monkeypatch.setenv("CUPLATE_CACHE_DIR", str(directory))
    monkeypatch.setenv("CUPLATE_CACHE_SECRET", "a secret of the test")
    assert command("info", "--json").json["shared"] is None
    monkeypatch.setenv("CUPLATE_SHARED", served.url)
    assert command("info", "--json").json["shared"] == {"place": served.url, "state": "on"}
    assert f"{served.url} (on)" in command("info").out
    monkeypatch.setenv("CUPLATE_SHARED", served.url.replace("//", "//me:hunter2@"))
    told = command("info", "--json")
    assert told.json["shared"]["state"].startswith("resting for 30 s")
    assert told.json["policy"]["shared"] == {"value": told.json["shared"]["place"], "source": "CUPLATE_SHARED"}
    for text in (told.out, told.err, command("info").out):
        assert "hunter2" not in text and "me:" not in text


def test_a_shared_tier_without_a_secret_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the library, with what to do; nothing of the URL that is wrong is repeated."""
    monkeypatch.setenv("CUPLATE_SHARED", "redis://host")
    assert "CUPLATE_CACHE_SECRET" in command("info").err
    monkeypatch.setenv("CUPLATE_SHARED", "redis://:hunter2@host:port")
    done = command("info")
    assert done.code == 2 and "CUPLATE_SHARED" in done.err and "hunter2" not in done.err
