"""Documents in lists that are worth a call of the tokenizer."""

from collections.abc import Iterable, Iterator

# About a quarter of a second of one core's work: enough to fill all cores, little to hold.
_CHARACTERS = 1 << 20
_DOCUMENTS = 8192


def grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of at most a million characters; a longer document is a list of its own."""
    group: list[str] = []
    characters = 0
    for document in documents:
        if group and (characters + len(document) > _CHARACTERS or len(group) >= _DOCUMENTS):
            yield group
            group, characters = [], 0
        group.append(document)
        characters += len(document)
    if group:
        yield group
