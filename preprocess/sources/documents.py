"""Documents in lists that are worth a call of the tokenizer."""

from collections.abc import Iterable, Iterator

# About a quarter of a second of one core's work: enough to fill all cores, little to hold.
_CHARACTERS = 1 << 20
_DOCUMENTS = 8192


def grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of about a million characters; a longer document ends its list."""
    group: list[str] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document)
        if characters >= _CHARACTERS or len(group) >= _DOCUMENTS:
            yield group
            group, characters = [], 0
    if group:
        yield group
