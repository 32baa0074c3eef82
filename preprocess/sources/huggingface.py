"""Folders that the Hugging Face `datasets` library saved: which of their files hold rows, and in which order."""

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from dataplane.errors import InputError
from dataplane.storage import Store

_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def in_saved_order(store: Store, paths: Sequence[str]) -> list[str]:
    """The sorted paths, but in a saved folder only those of its data, in its own order; splits in theirs.

    Such a folder has a state.json that names its data files, or a dataset_dict.json that names folders which have;
    what else lies in it is not part of what was saved. Raises InputError if a named file is not there, or if the rows
    are only a selection from those in the files.
    """
    states = {folder: state for folder, state in _read(store, paths, _STATE) if "_data_files" in state}
    splits = {folder: found["splits"] for folder, found in _read(store, paths, _SPLITS) if "splits" in found}
    present = set(paths)
    ordered: list[str] = []
    done: set[str] = set()
    for path in paths:
        owner = next((folder for folder in _folders_of(path) if folder in splits or folder in states), None)
        if owner is None:
            ordered.append(path)
        elif owner not in done:
            done.add(owner)
            folders = [posixpath.join(owner, name) for name in splits[owner]] if owner in splits else [owner]
            for folder in folders:
                ordered += _data_files(store, folder, states.get(folder), present)
    return ordered


def _data_files(store: Store, folder: str, state: Mapping[str, Any] | None, present: set[str]) -> list[str]:
    where = posixpath.join(store.url, folder)
    if state is None:
        raise InputError(f"{where}: is named by {_SPLITS} and has no {_STATE}; save the dataset again")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise InputError(
            f"{where}: its rows are a selection from those in its files; save it again after flatten_indices()"
        )
    files = [posixpath.join(folder, entry["filename"]) for entry in state["_data_files"]]
    if missing := [file for file in files if file not in present]:
        raise InputError(f"{posixpath.join(store.url, missing[0])}: does not exist, and {_STATE} beside it names it")
    return files


def _read(store: Store, paths: Sequence[str], name: str) -> list[tuple[str, dict[str, Any]]]:
    """Folder and content of each file of that name that is a JSON object."""
    found: list[tuple[str, dict[str, Any]]] = []
    for path in paths:
        if posixpath.basename(path) == name:
            try:
                content = json.loads(store.read(path))
            except ValueError:
                continue
            if isinstance(content, dict):
                found.append((posixpath.dirname(path), content))
    return found


def _folders_of(path: str) -> list[str]:
    """All folders on the way to a file, the outermost first; "" is the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]
