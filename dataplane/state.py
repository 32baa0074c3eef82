"""What a loader saves, and whether it may go on from what was saved."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataplane.errors import StateMismatchError
from dataplane.plan import NEVER, Order, Plan, Position
from dataplane.source import OpenSources, Source

_FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedState:
    """A state that was read, and is of a loader."""

    order: Order
    versions: tuple[int, ...]
    position: Position


def origin_of(opened: OpenSources, plan: Plan) -> dict[str, Any]:  # Any: JSON values
    """What a position is a position in: the part of a state that does not change from batch to batch."""
    return {
        "format": _FORMAT,
        "order": asdict(plan.order),
        "stop": plan.sequence.stop,
        "sources": [
            {
                "name": source.name,
                "version": dataset.version.number,
                "fingerprint": dataset.version.fingerprint,
                **_share_of(source),
            }
            for source, dataset in zip(opened.sources, opened.datasets, strict=True)
        ],
    }


def read_state(state: Mapping[str, Any], sources: Sequence[Source], asked: Mapping[str, Any]) -> SavedState:
    """A state's content. Raises StateMismatchError if `asked`, parts of the order by name, or the sources differ."""
    try:
        if state["format"] != _FORMAT:
            raise StateMismatchError(f"loader state has format {state['format']}, this version reads {_FORMAT}")
        order = Order(**state["order"])
        position = Position(int(state["epoch"]), int(state["consumed"]))
        saved_sources = [dict(each) for each in state["sources"]]
        versions = tuple(int(each["version"]) for each in saved_sources)
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatchError(f"not the state of a loader: {error!r}") from None
    for name, value in asked.items():
        if value is not None and value != (saved := asdict(order)[name]):
            raise _differs(name, saved, value)
    names = [str(each.get("name")) for each in saved_sources]
    if len(names) != len(sources):
        raise _differs("sources", names, [source.name for source in sources])
    for source, saved_source in zip(sources, saved_sources, strict=True):
        for name, value in {**_share_of(source), "version": source.version}.items():
            if name in saved_source and value != saved_source[name] and (name != "version" or value is not None):
                raise _differs(f"{name} of source {saved_source.get('name')}", saved_source[name], value)
    return SavedState(order=order, versions=versions, position=position)


def check_fits(state: Mapping[str, Any], opened: OpenSources, plan: Plan) -> None:
    """Raises StateMismatchError if the state was saved from other data, or beyond its end."""
    if state.get("stop") != plan.sequence.stop:
        raise _differs("stop", state.get("stop"), plan.sequence.stop)
    if plan.sequence.length != NEVER and int(state["consumed"]) > plan.sequence.length:
        raise StateMismatchError(
            f"the state has consumed {state['consumed']} samples of an epoch, {opened.urls} has only "
            f"{plan.sequence.length}; point the loader to the dataset of the saved run"
        )
    for saved, dataset in zip(state["sources"], opened.datasets, strict=True):
        if (found := dataset.version.fingerprint) != saved.get("fingerprint"):
            raise StateMismatchError(
                f"{dataset.store.url} version {dataset.version.number} holds other data than the state was saved from "
                f"(source {saved.get('name')}): fingerprint {found}, saved {saved.get('fingerprint')}; point the "
                "loader to the dataset of the saved run"
            )


def _share_of(source: Source) -> dict[str, Any]:  # Any: JSON values
    share = source.share
    weight = [list(each) for each in share.weight] if isinstance(share.weight, tuple) else share.weight
    return {"weight": weight, "repeat": share.repeat, "choose": share.choose}


def _differs(name: str, saved: object, value: object) -> StateMismatchError:
    return StateMismatchError(
        f"the state was saved with {name}={saved} and the loader has {name}={value}; "
        "use the saved value, or start without the state"
    )
