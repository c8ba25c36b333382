"""cuplate turns a CUDA C++ kernel template into a Python function: decorate a signature, then call it.

    from cuplate import Array, specialize

This is the front door. It is lazy: a name is imported when it is first used, so that ``import cuplate`` loads no other
module, not even of the standard library, and touches no disk.

PYTEST_DONT_REWRITE: pytest rewrites the packages of its plugins, and warns of one that was imported before it started.
"""

import sys

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Array",
    "ArraySpec",
    "BudgetError",
    "CacheError",
    "CacheInfo",
    "CachePolicy",
    "CacheWarning",
    "CaptureError",
    "CompileError",
    "CuplateError",
    "CuplateWarning",
    "DeclarationError",
    "DeviceError",
    "DtypeError",
    "ExpressionError",
    "FrozenCacheError",
    "Inline",
    "KernelError",
    "KernelNotFoundError",
    "LaunchError",
    "LayoutError",
    "Manifest",
    "ManifestError",
    "Options",
    "ParameterError",
    "ScalarOverflowError",
    "SettingError",
    "ShapeError",
    "Specialized",
    "TemplateError",
    "TensorMap",
    "ToolchainError",
    "TuneError",
    "TuneWarning",
    "VariantWarning",
    "Wanted",
    "__version__",
    "cache",
    "configure",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "kernels",
    "mount",
    "record",
    "specialize",
    "subscribe",
    "testing",
    "tune",
    "u8",
    "u16",
    "u32",
    "u64",
    "warmup",
]

# `typing.TYPE_CHECKING` without importing typing; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from cuplate import cache, kernels, testing
    from cuplate import config as config
    from cuplate import errors as errors
    from cuplate import events as events
    from cuplate import typing as typing
    from cuplate.arguments import ArraySpec
    from cuplate.autotune.tunable import tune
    from cuplate.cache import configure, mount
    from cuplate.cache.policy import CachePolicy
    from cuplate.cache.stats import CacheInfo
    from cuplate.errors import (
        ArgumentError,
        BudgetError,
        CacheError,
        CacheWarning,
        CaptureError,
        CompileError,
        CuplateError,
        CuplateWarning,
        DeclarationError,
        DeviceError,
        DtypeError,
        ExpressionError,
        FrozenCacheError,
        KernelError,
        KernelNotFoundError,
        LaunchError,
        LayoutError,
        ManifestError,
        ParameterError,
        ScalarOverflowError,
        SettingError,
        ShapeError,
        TemplateError,
        ToolchainError,
        TuneError,
        TuneWarning,
        VariantWarning,
    )
    from cuplate.events import subscribe
    from cuplate.manifest import Manifest
    from cuplate.options import Options
    from cuplate.record import record
    from cuplate.scalars import f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
    from cuplate.specialize import specialize
    from cuplate.template import Inline
    from cuplate.tensor_map import TensorMap
    from cuplate.typing import Array, Specialized
    from cuplate.wanted import Wanted
    from cuplate.warmup import warmup

# Rooms that are attributes of the package as they are; `typing`, `config`, `errors` and `events` stay out of `__all__`,
# where a star import would put them over a caller's own names.
_MODULES = frozenset({"cache", "config", "errors", "events", "kernels", "testing", "typing"})

# Where every other name lives. `tests/test_import.py` holds this against the block above.
_HOMES = {
    "arguments": ("ArraySpec",),
    "autotune.tunable": ("tune",),
    "cache": ("configure", "mount"),
    "cache.policy": ("CachePolicy",),
    "cache.stats": ("CacheInfo",),
    "errors": tuple(name for name in __all__ if name.endswith(("Error", "Warning"))),
    "events": ("subscribe",),
    "manifest": ("Manifest",),
    "options": ("Options",),
    "record": ("record",),
    "scalars": ("f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
    "specialize": ("specialize",),
    "template": ("Inline",),
    "tensor_map": ("TensorMap",),
    "typing": ("Array", "Specialized"),
    "wanted": ("Wanted",),
    "warmup": ("warmup",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from types import ModuleType as _Module
else:
    _Module = type(sys)  # types.ModuleType, without importing types


class _FrontDoor(_Module):
    """A package whose names are imported when they are first used: `_MODULES` are its rooms, `_HOME` has the others."""

    if not TYPE_CHECKING:  # a checker would take every name for one that exists

        def __getattr__(self, name: str) -> object:
            """Import what was asked for, once."""
            from importlib import import_module

            names = vars(self)
            if name in names["_MODULES"]:
                return import_module(f"{self.__name__}.{name}")
            if name not in names["_HOME"]:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
            names[name] = value = getattr(import_module(f"{self.__name__}.{names['_HOME'][name]}"), name)
            return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keep `cuplate.specialize` the function: importing the module of that name would put the module there."""
        if name not in vars(self)["_HOME"] or not isinstance(value, _Module):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        names = vars(self)
        return sorted({*names, *names["__all__"], *names["_MODULES"]} - {"sys", "TYPE_CHECKING"})


sys.modules[__name__].__class__ = _FrontDoor
