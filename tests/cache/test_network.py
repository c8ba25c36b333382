"""Which file system a directory lies on, and which tier that makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuplate.cache import CachePolicy, DiskTier, NoStore, disk_tier, network, tiers
from cuplate.cache.files import FilesTier
from cuplate.cache.network import file_system, is_network
from cuplate.errors import CacheWarning

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw - xfs /dev/sdb1 rw
32 22 0:40 / /mnt/with\040space rw master:3 - fuse.sshfs me@host: rw
33 22 0:41 / /layers rw - fuse.fuse-overlayfs fuse-overlayfs rw
34 22 0:42 / /twice rw - ext4 /dev/sdc rw
35 22 0:43 / /twice rw - lustre 10.0.0.1@tcp:/fs rw
36 22 0:44 / /ntfs rw - fuseblk /dev/sdd rw
nonsense
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    """A table of mounts."""
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return str(file)


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/", "ext4"),
        ("/var/cache/none/of/it/exists", "ext4"),
        ("/home/x/.cache/cuplate", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/x", "ext4"),
        ("/home/local/x", "xfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/layers/x", "fuse.fuse-overlayfs"),
        ("/twice/x", "lustre"),
    ],
)
def test_the_longest_mount_point_decides_and_the_last_of_two(mounts: str, directory: str, kind: str) -> None:
    """As the kernel resolves a path; blanks are escaped in the table."""
    assert file_system(directory, mounts=mounts) == kind


def test_a_link_is_followed_before_the_mount_is_looked_for(mounts: str, tmp_path: Path) -> None:
    """A home on a server behind a link in /tmp is on the server."""
    (tmp_path / "link").symlink_to("/home/x")
    assert file_system(str(tmp_path / "link" / "cache"), mounts=mounts) == "nfs4"


def test_where_it_cannot_be_told_it_is_local(tmp_path: Path) -> None:
    """No /proc: another system, or a bare container."""
    assert file_system("/", mounts=str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("kind", "network_one"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "cifs", "lustre", "9p", "fuse.sshfs", "fuse.bindfs", "fuse.unknown")
        ),
        *((kind, False) for kind in ("ext4", "overlay", "tmpfs", "btrfs", "fuseblk", "fuse.fuse-overlayfs", None)),
    ],
)
def test_network_file_systems_are_known_by_name(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, network_one: bool
) -> None:
    """An unknown file system in user space counts as one."""
    monkeypatch.setattr(network, "file_system", lambda directory: kind)
    assert is_network("/x") is network_one


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="no /proc here")
def test_this_machine_can_tell() -> None:
    """The real table is understood."""
    assert file_system("/proc") == "proc"


@pytest.mark.parametrize("engine", ["auto", "diskcache", "files"])
def test_sqlite_never_runs_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Whatever the policy asks for; and the locks of the flights lie on this node (B18)."""
    monkeypatch.setattr(tiers, "is_network", lambda directory: directory.startswith(str(tmp_path / "net")))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tier = disk_tier(CachePolicy(directory=tmp_path / "net", engine=engine))
    assert isinstance(tier, FilesTier)
    assert tier.flights is not None
    assert tier.flights.run(b"k", lambda: None, lambda: 5) == 5
    assert tier.flights.directory.startswith(str(tmp_path / "cuplate-"))
    assert tier.flights.counters()["led"] == 1
    assert tier.put(b"k", b"p")
    assert not list(tmp_path.rglob("*.db"))


def test_a_relative_directory_in_a_working_directory_that_is_gone_is_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning, no exception out of a call."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.warns(CacheWarning, match="the working directory is gone"):
        assert isinstance(disk_tier(CachePolicy(directory="kernels")), NoStore)
    monkeypatch.chdir(tmp_path)


def test_a_local_disk_gets_diskcache_and_files_if_asked_for(tmp_path: Path) -> None:
    """The default, and the setting."""
    pytest.importorskip("diskcache")
    assert isinstance(disk_tier(CachePolicy(directory=tmp_path)), DiskTier)
    assert isinstance(disk_tier(CachePolicy(directory=tmp_path, engine="files")), FilesTier)


@pytest.mark.parametrize("absent", ["diskcache", "sqlite3", "_sqlite3"])
def test_files_serve_where_a_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    """Scanners that block diskcache, and Pythons without SQLite."""
    monkeypatch.setitem(sys.modules, absent, None)
    tier = disk_tier(CachePolicy(directory=tmp_path / absent))
    assert isinstance(tier, FilesTier)
    assert tier.put(b"k", b"p")
    assert tier.get(b"k") == b"p"
