"""Counts, sizes and latencies as OpenMetrics text, which Prometheus and its relatives read.

Source: the OpenMetrics specification, 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cuplate.cache.latency import BOUNDS_S, Histogram
from cuplate.config import UNLIMITED

if TYPE_CHECKING:
    from cuplate.cache.front import Info
    from cuplate.cache.stats import CacheStats

__all__ = ["CONTENT_TYPE", "expose"]

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""For whoever serves the text."""

# Name below `cuplate_`, help, and the field; a name ends in its unit.
_COUNTERS = (
    ("cache_hits", "Look-ups that a tier answered; those of the hot path count under memory.", "hits"),
    ("cache_misses", "Look-ups that a tier did not answer.", "misses"),
    ("cache_puts", "Entries stored.", "puts"),
    ("cache_evictions", "Entries dropped for want of room.", "evictions"),
    ("cache_errors", "Operations that failed; each failed look-up is a miss too.", "errors"),
    ("cache_read_bytes", "Payloads read.", "read_bytes"),
    ("cache_written_bytes", "Payloads written.", "written_bytes"),
    ("cache_seconds", "Time inside a tier; hits of the hot path are not timed.", "seconds"),
)
_COMPILER = (
    ("compiles", "Compiles that succeeded.", "compiles"),
    ("compile_errors", "Compiles that failed.", "errors"),
    ("compile_written_bytes", "Code produced.", "written_bytes"),
    ("compile_seconds", "Time inside the compiler.", "seconds"),
)
_GAUGES = (
    ("disk_entries", "Entries on the disk.", "disk_entries"),
    ("disk_entry_bytes", "Sealed entries on the disk: what the limit bounds.", "disk_entry_bytes"),
    ("disk_file_bytes", "What the files take on the disk.", "disk_file_bytes"),
    ("disk_limit_bytes", "Limit of the entries on the disk.", "disk_limit_bytes"),
    ("memory_kernels", "Loaded kernels.", "memory_kernels"),
    ("memory_limit_kernels", "Limit of loaded kernels.", "memory_limit_kernels"),
)


def expose(stats: CacheStats, info: Info, histograms: tuple[Histogram, ...]) -> str:
    """The whole text, ``# EOF`` included.

    Parameters
    ----------
    stats : CacheStats
        Of all threads.
    info : Info
    histograms : tuple of Histogram
        Empty where nobody asked for latencies.
    """
    lines: list[str] = []
    tiers = (("memory", stats.memory), ("disk", stats.disk), ("shared", stats.shared))
    for name, text, field in _COUNTERS:
        samples = [("_total", {"tier": tier}, getattr(told, field)) for tier, told in tiers if hasattr(told, field)]
        lines += _family(f"cuplate_{name}", "counter", text, samples)
    text = "Entries that were not sent to the shared tier."
    lines += _family("cuplate_cache_drops", "counter", text, [("_total", {"tier": "shared"}, stats.shared.drops)])
    for name, text, field in _COMPILER:
        lines += _family(f"cuplate_{name}", "counter", text, [("_total", {}, getattr(stats.compile, field))])
    for name, text, field in _GAUGES:
        lines += _family(f"cuplate_{name}", "gauge", text, [("", {}, getattr(info, field))])
    if histograms:
        text = "How long operations of the tiers and compiles took."
        samples = [sample for histogram in histograms for sample in _buckets(histogram)]
        lines += _family("cuplate_operation_seconds", "histogram", text, samples)
    return "\n".join([*lines, "# EOF\n"])


def _buckets(histogram: Histogram) -> Iterator[tuple[str, dict[str, str], float]]:
    labels = {"tier": histogram.tier, "operation": histogram.operation}
    seen = 0
    for bound, number in zip((*map(repr, BOUNDS_S), "+Inf"), histogram.buckets, strict=True):
        seen += number
        yield "_bucket", {**labels, "le": bound}, seen
    yield "_count", labels, seen
    yield "_sum", labels, histogram.sum_s


def _family(name: str, kind: str, text: str, samples: list[tuple[str, dict[str, str], Any]]) -> list[str]:
    unit = name.rpartition("_")[2]
    lines = [f"# TYPE {name} {kind}"]
    lines += [f"# UNIT {name} {unit}"] if unit in ("bytes", "seconds") else []
    lines.append(f"# HELP {name} {text}")
    for suffix, labels, number in samples:
        value = "+Inf" if number == UNLIMITED else number
        told = ",".join(f'{label}="{_escaped(given)}"' for label, given in labels.items())
        lines.append(f"{name}{suffix}{{{told}}} {value}" if told else f"{name}{suffix} {value}")
    return lines


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
