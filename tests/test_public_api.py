"""The public names: listed in order, there, and documented."""

import inspect

import pytest

import dataplane
import dataplane.errors


def test_names_are_sorted():
    assert list(dataplane.__all__) == sorted(dataplane.__all__)


@pytest.mark.parametrize("name", dataplane.__all__)
def test_a_public_name_is_there_and_documented(name):
    public = getattr(dataplane, name)

    assert inspect.getdoc(public)
    # A dataclass without a docstring documents itself by its signature, which says nothing.
    assert not inspect.getdoc(public).startswith(f"{name}(")


def test_nothing_public_is_left_out():
    public = {
        name
        for name, value in vars(dataplane).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("dataplane")
    }

    assert public <= set(dataplane.__all__)


def test_errors_have_one_root():
    kinds = [kind for _, kind in inspect.getmembers(dataplane.errors, inspect.isclass)]

    assert all(issubclass(kind, dataplane.errors.DataplaneError) for kind in kinds)
    assert all(kind.__doc__ and kind.__name__ in dataplane.errors.__doc__ for kind in kinds)
