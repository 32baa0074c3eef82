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
from preprocess.operations.columns import Cast, Derive, Drop, Rename, Select
from preprocess.operations.filters import Filter
from preprocess.operations.functions import FilterFunction, MapFunction

OPERATIONS: dict[str, type[Settings]] = {
    kind.name: kind for kind in (Select, Drop, Rename, Cast, Derive, Filter, MapFunction, FilterFunction)
}
"""By the name that a recipe calls them."""

__all__ = [
    "OPERATIONS",
    "AnyOperation",
    "Bound",
    "BoundKeys",
    "Cast",
    "Derive",
    "Drop",
    "Drops",
    "Filter",
    "FilterFunction",
    "GlobalFilter",
    "MapFunction",
    "Operation",
    "Pipeline",
    "Rename",
    "Select",
    "Settings",
    "stages",
]
