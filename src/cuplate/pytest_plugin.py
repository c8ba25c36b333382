"""The pytest plugin: users check their templates in their own CI, without a GPU.

Installing cuplate is all it takes. Two fixtures, and nothing happens in a session that asks for neither:

``cuplate_check(f)``
    `cuplate.testing.check` on the CPU backend, with its checker on for the whole test.
``cuplate_resources.check(f, arch=["sm_80", "sm_90"])``
    Compiles for each architecture, and fails when registers, spills, stack or shared memory grew beyond a record.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuplate.baseline import Baseline, Saved
    from cuplate.testing import Checked

# Nothing of cuplate is imported here: each session of each project that has cuplate installed loads this module.

_BASELINE: pytest.StashKey[Baseline] = pytest.StashKey()
_SAVED: pytest.StashKey[Saved | Exception] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cuplate-update``, and three settings."""
    group = parser.getgroup("cuplate")
    group.addoption(
        "--cuplate-update",
        action="store_true",
        help="record what kernels take now (fixture cuplate_resources) instead of comparing with the record",
    )
    parser.addini(
        "cuplate_baseline",
        "record of what kernels take, relative to the root directory",
        type="string",
        default="cuplate-baseline.json",
    )
    parser.addini("cuplate_arch", "architectures that kernels are compiled for: sm_80 sm_90", type="args")
    parser.addini("cuplate_allow", "growth that passes: registers=4 shared_bytes=10%", type="args")


@pytest.fixture
def cuplate_check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checked]:
    """`cuplate.testing.check` on the CPU backend, on any machine; the checker is on, also for the test's own calls."""
    from cuplate.errors import KernelError
    from cuplate.testing import CheckError, check

    monkeypatch.setenv("CUPLATE_CPU_CHECK", "full")

    def check_here(f: Any, **keywords: Any) -> Checked:
        __tracebackhide__ = True
        try:
            return check(f, arrays="numpy", **keywords)
        except (CheckError, KernelError) as error:
            raise error.with_traceback(None)  # noqa: B904 - the same error, at the user's line and not at ours

    return check_here


@pytest.fixture(scope="session")
def cuplate_resources(pytestconfig: pytest.Config) -> Baseline:
    """The record of what kernels take; `cuplate.baseline.Baseline.check` compares one kernel with it."""
    return _baseline(pytestconfig)


def _baseline(config: pytest.Config) -> Baseline:
    """The session's record, made when it is first asked for."""
    if _BASELINE not in config.stash:
        from cuplate.baseline import Baseline

        config.stash[_BASELINE] = Baseline(
            config.rootpath / config.getini("cuplate_baseline"),
            update=bool(config.getoption("cuplate_update")),
            arch=config.getini("cuplate_arch"),
            allow=dict(item.partition("=")[::2] for item in config.getini("cuplate_allow")),
        )
    return config.stash[_BASELINE]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Under pytest-xdist: take over what a worker has found, since only one process may write."""
    found = getattr(node, "workeroutput", {}).get("cuplate")
    if found is not None:
        _baseline(node.config).absorb(found)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the record, or hand it to the process that does."""
    config = session.config
    found = config.stash.get(_BASELINE, None)
    worker: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if found is not None and worker is not None:
        worker["cuplate"] = found.export()
    elif found is not None and found.made:
        try:
            config.stash[_SAVED] = found.save()
        except (OSError, AssertionError) as error:
            config.stash[_SAVED] = error
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What an update wrote; what could be recorded lower."""
    found = config.stash.get(_BASELINE, None)
    if found is None or not (found.made or found.smaller):
        return
    from cuplate.baseline import summary

    text, failed = summary(found, config.stash.get(_SAVED, None))
    terminalreporter.section("cuplate", red=failed)
    terminalreporter.write_line(text)
