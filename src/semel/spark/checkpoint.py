"""Reads from a query's checkpoint what the sink must know and Spark does not pass to it.

Spark writes the end of a batch to `offsets/<batch>` before it plans the batch, `commits/<batch>` after it,
and the query's id to `metadata` before the first batch. These are only read here. Files of other names
belong to Semel. The directory may be local or anywhere that pyarrow supports (s3, gs, hdfs).
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from semel.client import Partition
from semel.spark.errors import PipelineError
from semel.spark.partition_offsets import (
    MARK,
    PIPELINE,
    READER,
    SMALL,
    PartitionOffsets,
    Span,
    Spans,
    TopicIds,
    began_of,
    ids_of,
    of_json,
    recreated,
    without_topics,
)
from semel.spark.source.log_marks import Mark

METADATA = "metadata"
OFFSETS, COMMITS, STATE = "offsets", "commits", "state"
#: A URL. All other locations are local paths, in which `#`, `?` and `%` are plain characters, as in Spark.
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:")
_FILE_URL = re.compile(r"^file:(//[^/]*)?")


class Step(NamedTuple):
    """The input of one batch."""

    start: PartitionOffsets  # of the partitions that the query knew before; a new one is read from its start
    end: PartitionOffsets
    ids: TopicIds = {}  # noqa: RUF012 - never changed
    #: Every topic that the query has read before was deleted and created again.
    is_of_new_topics: bool = False
    mark: Mark | None = None  # of one partition, at the end of the batch
    pipeline_ids: Set[str] = frozenset()  # the option pipeline.id of the sources
    is_small: bool = False  # whether all sources have read their records when the batch was planned

    @property
    def spans(self) -> Spans:
        """The start and end of the batch for each of its partitions."""
        return {key: Span(self.start.get(key, 0), end) for key, end in self.end.items()}


class _Logged(NamedTuple):
    """What the log has of one batch."""

    began: PartitionOffsets  # where those sources started whose first batch it was
    end: PartitionOffsets
    ids: TopicIds
    mark: Mark | None = None
    pipeline_ids: Set[str] = frozenset()
    is_small: bool = False


NOTHING = _Logged({}, {}, {})


class Checkpoint:
    """The checkpoint of one query."""

    def __init__(self, location: str) -> None:
        self.location = location
        if _REMOTE.match(location):
            self._files, self._path = fs.FileSystem.from_uri(location)
        else:
            path = _FILE_URL.sub("", location)
            self._files, self._path = fs.LocalFileSystem(), str(Path(path).absolute())

    def query_id(self) -> str:
        """The id of the query. It is created with the checkpoint."""
        return str(json.loads(self._read(METADATA))["id"])

    def newest_batch(self) -> int:
        """Return the batch that is about to be written, or was when the query stopped."""
        found = self.last_planned()
        if found is None:
            raise PipelineError(f"the checkpoint {self.location} has no batch yet; is it that of this query?")
        return found

    def last_planned(self) -> int | None:
        """Return the last batch that Spark has planned; None if there is none."""
        return self._last(OFFSETS)

    def last_committed(self) -> int | None:
        """Return the last batch that Spark has finished; None if there is none."""
        return self._last(COMMITS)

    def _last(self, directory: str) -> int | None:
        selector = fs.FileSelector(posixpath.join(self._path, directory), allow_not_found=True)
        found = self._files.get_file_info(selector)
        return max((int(each.base_name) for each in found if each.base_name.isdigit()), default=None)

    def inputs(self, batch_id: int) -> list[dict[str, Any] | None]:
        """Return the end of a batch for each place where the query uses a source, in Spark's order.

        None stands for a source of another kind, or without an offset.
        """
        return _inputs(self._read(f"{OFFSETS}/{batch_id}"))

    def has_state(self) -> bool:
        """Whether an operator of the query keeps state."""
        (found,) = self._files.get_file_info([posixpath.join(self._path, STATE)])
        return bool(found.type is not fs.FileType.NotFound)

    def entry(self, batch_id: int) -> str | None:
        """Return what Spark has logged of a batch; None if it is not there, or not any more."""
        return self._find(f"{OFFSETS}/{batch_id}")

    def step(self, batch_id: int) -> Step:
        """Return what a batch reads through this source, from Semel or any other cluster."""
        now = self._batch(batch_id)
        return _step(self._batch(batch_id - 1) if batch_id > 0 else NOTHING, now)

    def step_after(self, batch_id: int | None, ends: Iterable[Mapping[str, Any]]) -> Step:
        """Return what the batch after this one reads, if Spark plans it with these ends."""
        return _step(NOTHING if batch_id is None else self._batch(batch_id), _logged(ends))

    def _batch(self, batch_id: int) -> _Logged:
        inputs = self.inputs(batch_id)
        logged = _logged(each for each in inputs if each is not None)
        return logged._replace(is_small=logged.is_small and None not in inputs)

    def read(self, name: str) -> str | None:
        """Return a file of Semel's own; None if it does not exist."""
        return self._find(name)

    def write(self, name: str, text: str) -> None:
        """Write a file of Semel's own, whole or not at all."""
        path, is_local = posixpath.join(self._path, name), isinstance(self._files, fs.LocalFileSystem)
        if is_local:
            self._files.create_dir(self._path, recursive=True)
        # An object appears when it is complete.
        draft = f"{path}.draft" if is_local else path
        with self._files.open_output_stream(draft) as file:
            file.write(text.encode())
        if is_local:
            self._files.move(draft, path)

    def _read(self, name: str) -> str:
        found = self._find(name)
        if found is None:
            raise PipelineError(
                f"the checkpoint {self.location} has no file {name}; give the option checkpointLocation as "
                "the driver sees it"
            )
        return found

    def _find(self, name: str) -> str | None:
        try:
            with self._files.open_input_stream(posixpath.join(self._path, name)) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None


def _step(last: _Logged, now: _Logged) -> Step:
    # Offsets of a deleted topic mean nothing in a new topic of the same name.
    kept = without_topics(last.end, recreated(last.ids, now.ids))
    # A batch without input repeats the end of the one before with its `began:`, so `kept` overrides that.
    is_of_new_topics = bool(last.end) and not kept
    start = {**now.began, **kept}
    return Step(start, now.end, now.ids, is_of_new_topics, now.mark, now.pipeline_ids, now.is_small)


def _logged(sources: Iterable[Mapping[str, Any]]) -> _Logged:
    end: PartitionOffsets = {}
    began: PartitionOffsets = {}
    ids: TopicIds = {}
    mark: Mark | None = None
    pipeline_ids = set()
    readers: set[object] = set()
    is_small = True
    for found in sources:
        vector, reader = of_json(found), found.get(READER)
        if reader is not None and reader in readers:
            continue  # the same source, which the query uses in several places
        readers.add(reader)
        if twice := end.keys() & vector.keys():
            topic = min(twice)[0]
            raise PipelineError(
                f"two sources of this query read topic {topic!r}, so there is not one offset up to which "
                "the pipeline has read it. Load the topic once, and use that DataFrame in all places"
            )
        end.update(vector)
        began.update(began_of(found) or {})
        ids.update(ids_of(found))
        mark = Mark.of_json(found.get(MARK)) or mark
        is_small = is_small and SMALL in found
        if PIPELINE in found:
            pipeline_ids.add(str(found[PIPELINE]))
    return _Logged(began, end, ids, mark, pipeline_ids, is_small and bool(end))


def _inputs(text: str) -> list[dict[str, Any] | None]:
    version, _, *lines = text.splitlines()
    found: list[dict[str, Any] | None] = []
    for line in lines:
        # From version 2 on every line begins with the name of its source.
        document = line.partition(":")[2] if version != "v1" else line
        try:
            vector = json.loads(document)
            of_json(vector), ids_of(vector)
        except (ValueError, AttributeError):
            vector = None  # no offset yet, or a source of another kind
        found.append(vector)
    return found


def describe(key: Partition) -> str:
    """Format a partition for messages."""
    return f"{key[0]}/{key[1]}"
