"""CHANGE: rows to other rows, or fewer; each operation is a value of the recipe."""

from preprocess.operations.base import (
    AnyOperation,
    Bound,
    BoundKeys,
    Drops,
    GlobalFilter,
    Operation,
    Pipeline,
    Settings,
    stages,
)

__all__ = [
    "AnyOperation",
    "Bound",
    "BoundKeys",
    "Drops",
    "GlobalFilter",
    "Operation",
    "Pipeline",
    "Settings",
    "stages",
]
