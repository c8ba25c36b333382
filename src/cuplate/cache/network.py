"""Which file system a directory lies on, and whether SQLite may run there."""

from __future__ import annotations

import os
import re

__all__ = ["LOCAL_FUSE", "NETWORK", "file_system", "is_network"]

_NETWORK = """
9p acfs afs autofs beegfs ceph cifs coda cvfs davfs fhgfs gfs gfs2 glusterfs gpfs ibrix kafs lustre mfs ncp ncpfs nfs
nfs4 ocfs2 orangefs panfs prl_fs pvfs2 quobyte smb2 smb3 smbfs snfs vboxsf virtiofs vmhgfs vxfs wekafs xtreemfs
"""
# bindfs and mergerfs are none: the same files can be reached beside the mount, with neither locks nor maps in common.
_LOCAL_FUSE = "encfs exfat ext2 fuse-overlayfs gocryptfs lxcfs ntfs ntfs-3g securefs squashfuse zfs"

NETWORK = frozenset(_NETWORK.split())
"""Names of file systems that several machines mount, or that pass every access on to another kernel."""

LOCAL_FUSE = frozenset(_LOCAL_FUSE.split())
"""File systems in user space that lie on this machine's disk; every other one counts as a network's."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNTS = "/proc/self/mountinfo"


def is_network(directory: str) -> bool:
    """Whether a directory is, or would be made, on a network file system.

    SQLite's locks and its shared memory do not hold there, and the database corrupts.

    Parameters
    ----------
    directory : str
        Absolute.

    Returns
    -------
    bool
        False where it cannot be told: not on Linux, or no ``/proc``.
    """
    kind = file_system(directory)
    if kind is None:
        return False
    outer, _, inner = kind.partition(".")
    if outer == "fuse":
        return inner not in LOCAL_FUSE
    return kind in NETWORK


def file_system(directory: str, *, mounts: str = _MOUNTS) -> str | None:
    """The kind of file system at a path, as ``/proc/self/mountinfo`` names it.

    Parameters
    ----------
    directory : str
        Absolute; what of it does not exist yet would be made on its nearest parent's file system.
    mounts : str
        Read instead, in tests.

    Returns
    -------
    str or None
        ``"ext4"``, ``"nfs4"``, ``"fuse.sshfs"``; None when it cannot be told.
    """
    try:
        place = os.path.realpath(directory)
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            return _find(place, file.read())
    except (OSError, ValueError):
        return None


def _find(place: str, mounts: str) -> str | None:
    best, kind = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]  # of two at one point the later hides the earlier
    return kind
