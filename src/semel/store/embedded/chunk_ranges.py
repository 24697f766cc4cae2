"""Merge ranges of chunks, so that fewer calls read or release them."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from semel.core.types import Buffer
from semel.store.contract import BatchLocation
from semel.store.embedded.files import IOV_MAX

B = TypeVar("B", bound=Buffer)


def runs(locations: Sequence[BatchLocation], buffers: Sequence[B]) -> Iterator[tuple[int, int, list[B]]]:
    """Group adjacent locations, so that one call reads or writes a group: chunk, position, buffers."""
    run: list[B] = []
    chunk_id = start = end = -1
    for location, buffer in zip(locations, buffers, strict=True):
        if location.chunk_id != chunk_id or location.position != end or len(run) == IOV_MAX:
            if run:
                yield chunk_id, start, run
            run = []
            chunk_id = location.chunk_id
            start = end = location.position
        run.append(buffer)
        end += location.length
    if run:
        yield chunk_id, start, run


def rest_of(views: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return the parts of the buffers that are still empty after this many bytes were read."""
    rest: list[Buffer] = []
    for view in views:
        if taken >= len(view):
            taken -= len(view)
        else:
            rest.append(memoryview(view)[taken:])
            taken = 0
    return rest


def merged(locations: Sequence[BatchLocation]) -> Iterator[tuple[int, int, int]]:
    """Merge adjacent ranges. Only whole blocks can be released, so larger ranges release more."""
    chunk_id = start = end = -1
    for location in sorted(locations):
        if location.chunk_id != chunk_id or location.position != end:
            if end > start:
                yield chunk_id, start, end
            chunk_id, start, end = location.chunk_id, location.position, location.position
        end += location.length
    if end > start:
        yield chunk_id, start, end
