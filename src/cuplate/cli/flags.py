"""Help in which a switch is a name and nothing else: newer releases of typer put ``<bool>`` behind it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command whose switches look as if they took no value, which they do not."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, that of ``--help`` among them."""
        return _bare(super().get_params(ctx))


class Group(TyperGroup):
    """As `Command`, for a group."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, those of completion and of ``--help`` among them."""
        return _bare(super().get_params(ctx))


def _bare(parameters: Any) -> Any:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
