"""Ranges of chunks, put together so that few calls read or release them."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from semel.core.types import Buffer
from semel.store.files import IOV_MAX
from semel.store.interface import Place

B = TypeVar("B", bound=Buffer)


def runs(places: Sequence[Place], buffers: Sequence[B]) -> Iterator[tuple[int, int, list[B]]]:
    """Neighbours in a file together, so that one call reads or writes them: chunk, position, buffers."""
    run: list[B] = []
    chunk_id = start = end = -1
    for place, buffer in zip(places, buffers, strict=True):
        if place.chunk_id != chunk_id or place.position != end or len(run) == IOV_MAX:
            if run:
                yield chunk_id, start, run
            run = []
            chunk_id = place.chunk_id
            start = end = place.position
        run.append(buffer)
        end += place.length
    if run:
        yield chunk_id, start, run


def rest_of(views: Sequence[Buffer], taken: int) -> list[Buffer]:
    """What is still to be filled after this many bytes came."""
    rest: list[Buffer] = []
    for view in views:
        if taken >= len(view):
            taken -= len(view)
        else:
            rest.append(memoryview(view)[taken:])
            taken = 0
    return rest


def merged(places: Sequence[Place]) -> Iterator[tuple[int, int, int]]:
    """Ranges that touch as one: only whole blocks can be given back, so larger ranges give more."""
    chunk_id = start = end = -1
    for place in sorted(places):
        if place.chunk_id != chunk_id or place.position != end:
            if end > start:
                yield chunk_id, start, end
            chunk_id, start, end = place.chunk_id, place.position, place.position
        end += place.length
    if end > start:
        yield chunk_id, start, end
