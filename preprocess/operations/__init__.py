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
from preprocess.operations.deduplicate import Deduplicate, DeduplicateNear
from preprocess.operations.filters import Filter
from preprocess.operations.functions import FilterFunction, MapFunction
from preprocess.operations.images import ResizeImages
from preprocess.operations.quantize import Quantize
from preprocess.operations.text import Normalize

_KINDS: tuple[type[Settings], ...] = (
    *(Select, Drop, Rename, Cast, Derive),
    *(Filter, MapFunction, FilterFunction),
    *(Normalize, Deduplicate, DeduplicateNear),
    *(ResizeImages, Quantize),
)
OPERATIONS = {kind.name: kind for kind in _KINDS}
"""By the name that a recipe calls them."""

__all__ = [
    "OPERATIONS",
    "AnyOperation",
    "Bound",
    "BoundKeys",
    "Cast",
    "Deduplicate",
    "DeduplicateNear",
    "Derive",
    "Drop",
    "Drops",
    "Filter",
    "FilterFunction",
    "GlobalFilter",
    "MapFunction",
    "Normalize",
    "Operation",
    "Pipeline",
    "Quantize",
    "Rename",
    "ResizeImages",
    "Select",
    "Settings",
    "stages",
]
