"""Offline preparation: a corpus of common files to a committed version of a dataset."""

from preprocess.engines import Inline, Processes, Ray
from preprocess.in_place import index_in_place
from preprocess.progress import display_on, silent
from preprocess.recipe import Packing, Recipe
from preprocess.recipe_file import load_recipe, parse_recipe
from preprocess.report import Report
from preprocess.run import preprocess
from preprocess.shuffle import Shuffle
from preprocess.sources import Reading
from preprocess.split import Split

__all__ = [
    "Inline",
    "Packing",
    "Processes",
    "Ray",
    "Reading",
    "Recipe",
    "Report",
    "Shuffle",
    "Split",
    "display_on",
    "index_in_place",
    "load_recipe",
    "parse_recipe",
    "preprocess",
    "silent",
]
