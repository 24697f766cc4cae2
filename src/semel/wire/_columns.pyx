# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled implementation of `columns`; its twin `_columns_py` documents each name.

Every number from the wire is compared with the available bytes before it is used as an address, a length to
copy, or a size to allocate. Memory is reserved for a batch before it is read, in proportion to its size, and
the records are only added when the whole batch was read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport getenv
from libc.string cimport memcpy

from semel.wire.column_buffers import Binary, Columns, Packed
from semel.wire.errors import ProtocolError

if getenv(b"SEMEL_PURE") != NULL and getenv(b"SEMEL_PURE")[0] not in (b"\0", b"0"):
    raise ImportError("SEMEL_PURE is set, so the pure Python twin is used")

cdef enum:
    LOG_APPEND_TIME = 8
    SMALLEST_RECORD_BYTES = 7
    LARGEST_FRAMING_BYTES = 41  # attributes, and four varints of up to ten bytes

cdef enum Problem:
    FINE, CUT, LONG, LENGTH, NEGATIVE, OFFSETS, REST

MESSAGES = {
    CUT: "a batch ends inside a record",
    LONG: "a variable size number is longer than 64 bits",
    LENGTH: "a record is not as long as it says, or its timestamp is out of range",
    NEGATIVE: "a negative length",
    OFFSETS: "the offsets in a batch do not ascend within its range",
    REST: "a batch holds more than the records that it counts",
}


cdef class Memory:
    """A growing byte buffer, read through the buffer protocol after it was written."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Make room for this many more bytes."""
        cdef Py_ssize_t wanted = self.size + more
        cdef uint8_t* grown
        if wanted <= self.capacity and self.data != NULL:
            return 0
        wanted = max(wanted, 2 * self.capacity, 64)
        grown = <uint8_t*> PyMem_RawRealloc(self.data, wanted)
        if grown == NULL:
            raise MemoryError
        self.data = grown
        self.capacity = wanted
        return 0


cdef Memory like(Memory before):
    """Return an empty one with the capacity of the last: the next is about as long, and is not moved."""
    cdef Memory fresh = Memory()
    if before is not None and before.capacity:
        fresh.reserve(before.capacity)
    return fresh


cdef class View:
    """The bytes of another object during the life of this one; empty for None."""

    cdef Py_buffer buffer
    cdef bint is_held
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        if source is not None:
            PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
            self.is_held = True
            self.data = <const uint8_t*> self.buffer.buf
            self.size = self.buffer.len

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.buffer)


# ---- reading


include "_varint.pxi"


cdef inline Problem read_bytes(
    const uint8_t** at, const uint8_t* end, const uint8_t** found, int64_t* size
) noexcept nogil:
    """Read a length and its bytes; -1 and none for null."""
    cdef uint64_t folded
    cdef Problem problem = read_varint(at, end, &folded)
    if problem:
        return problem
    if folded & 1:
        size[0] = -1
        return FINE if folded == 1 else NEGATIVE
    if folded >> 1 > <uint64_t> (end - at[0]):
        return CUT
    found[0] = at[0]
    size[0] = <int64_t> (folded >> 1)
    at[0] += size[0]
    return FINE


cdef Problem skip_headers(const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef uint64_t count, header
    cdef const uint8_t* found
    cdef int64_t size
    cdef Problem problem = read_varint(at, end, &count)
    if problem:
        return problem
    if count & 1:
        return NEGATIVE
    header = 0
    while header < count >> 1:
        problem = read_bytes(at, end, &found, &size)
        if problem:
            return problem
        if size < 0:
            return NEGATIVE
        problem = read_bytes(at, end, &found, &size)
        if problem:
            return problem
        header += 1
    return FINE


cdef list unpack_headers(const uint8_t* at, const uint8_t* end):
    """Return the headers of a record that was checked before; None if it has none."""
    cdef uint64_t count = 0, header
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef int64_t name_size = 0, value_size = 0
    cdef list found
    read_varint(&at, end, &count)
    if count == 0:
        return None
    found = []
    for header in range(count >> 1):
        read_bytes(&at, end, &name, &name_size)
        read_bytes(&at, end, &value, &value_size)
        found.append(
            (
                PyUnicode_DecodeUTF8(<char*> name, name_size, "replace"),
                None if value_size < 0 else PyBytes_FromStringAndSize(<char*> value, value_size),
            )
        )
    return found


cdef class BytesColumn:
    """An output column of bytes."""

    cdef Memory offsets
    cdef Memory data
    cdef Memory validity
    cdef Py_ssize_t nulls

    def __cinit__(self, BytesColumn before=None):
        if before is None:
            self.offsets, self.data, self.validity = Memory(), Memory(), Memory()
        else:
            self.offsets, self.data = like(before.offsets), like(before.data)
            self.validity = like(before.validity)
        self.offsets.reserve(4)
        (<int32_t*> self.offsets.data)[0] = 0
        self.offsets.size = 4

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t size) except -1:
        if self.data.size + size > INT_MAX:
            raise OverflowError("a column has at most 2 GiB; take what is there first")
        self.offsets.reserve(4 * rows)
        self.data.reserve(size)
        self.validity.reserve(rows // 8 + 1)
        return 0

    cdef inline void put(self, Py_ssize_t row, const uint8_t* found, int64_t size) noexcept nogil:
        cdef uint8_t* bits = self.validity.data + (row >> 3)
        if not row & 7:
            bits[0] = 0
        if size < 0:
            bits[0] &= ~(<uint8_t> 1 << (row & 7))
            self.nulls += 1
        else:
            bits[0] |= <uint8_t> 1 << (row & 7)
            memcpy(self.data.data + self.data.size, found, size)
            self.data.size += size
        (<int32_t*> self.offsets.data)[row + 1] = <int32_t> self.data.size

    cdef object taken(self, Py_ssize_t rows):
        self.offsets.size = 4 * (rows + 1)
        self.validity.size = (rows + 7) >> 3
        validity = memoryview(self.validity) if self.nulls else None
        return Binary(memoryview(self.offsets), memoryview(self.data), validity, 0, self.nulls)


cdef class Reader:
    cdef bint has_keys, has_values, has_headers
    cdef Memory offsets, timestamps, types, places
    cdef BytesColumn keys, values
    cdef list headers
    cdef readonly Py_ssize_t rows

    def __init__(self, keys, values, headers):
        self.has_keys, self.has_values, self.has_headers = keys, values, headers
        self._clear()

    cdef _clear(self):
        self.rows = 0
        self.offsets, self.timestamps = like(self.offsets), like(self.timestamps)
        self.types, self.places = like(self.types), Memory()
        self.keys, self.values, self.headers = BytesColumn(self.keys), BytesColumn(self.values), []

    @property
    def size_bytes(self):
        return self.keys.data.size + self.values.data.size

    def add(self, payload, header, int64_t start, int64_t stop):
        cdef View view = View(payload)
        cdef Py_ssize_t before = self.rows
        cdef Py_ssize_t key_bytes = self.keys.data.size, value_bytes = self.values.data.size
        cdef Py_ssize_t key_nulls = self.keys.nulls, value_nulls = self.values.nulls
        cdef int64_t count = header.record_count
        cdef Problem problem
        if count < 0 or count > view.size // SMALLEST_RECORD_BYTES:
            raise ProtocolError(MESSAGES[CUT])
        self._reserve(count, view.size)
        problem = self._walk(
            view.data,
            view.data + view.size,
            count,
            header.base_offset,
            header.base_timestamp,
            header.last_offset_delta,
            header.attributes & LOG_APPEND_TIME,
            header.max_timestamp,
            start,
            stop,
        )
        if problem:
            self.rows = before
            self.keys.data.size, self.values.data.size = key_bytes, value_bytes
            self.keys.nulls, self.values.nulls = key_nulls, value_nulls
            raise ProtocolError(MESSAGES[problem])
        if self.has_headers:
            self._unpack_headers(before, view)

    def take(self):
        self.offsets.reserve(0)
        self.timestamps.reserve(0)
        self.types.reserve(0)
        self.offsets.size = self.timestamps.size = 8 * self.rows
        self.types.size = 4 * self.rows
        taken = Columns(
            self.rows,
            memoryview(self.offsets),
            memoryview(self.timestamps),
            memoryview(self.types),
            self.keys.taken(self.rows) if self.has_keys else None,
            self.values.taken(self.rows) if self.has_values else None,
            self.headers if self.has_headers else None,
        )
        self._clear()
        return taken

    cdef int _reserve(self, Py_ssize_t count, Py_ssize_t size) except -1:
        self.offsets.size = self.timestamps.size = 8 * self.rows
        self.types.size = 4 * self.rows
        self.offsets.reserve(8 * count)
        self.timestamps.reserve(8 * count)
        self.types.reserve(4 * count)
        if self.has_keys:
            self.keys.offsets.size = 4 * (self.rows + 1)
            self.keys.validity.size = (self.rows + 7) >> 3
            self.keys.reserve(count, size)
        if self.has_values:
            self.values.offsets.size = 4 * (self.rows + 1)
            self.values.validity.size = (self.rows + 7) >> 3
            self.values.reserve(count, size)
        if self.has_headers:
            self.places.reserve(8 * count)
        return 0

    cdef Problem _walk(
        self,
        const uint8_t* begin,
        const uint8_t* end,
        int64_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        int64_t last_delta,
        bint is_appended,
        int64_t appended,
        int64_t start,
        int64_t stop,
    ) noexcept nogil:
        cdef const uint8_t* at = begin
        cdef const uint8_t* record_end
        cdef const uint8_t* headers
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef int64_t key_size, value_size, delta, timestamp, previous = -1, record = 0
        cdef uint64_t folded
        cdef Py_ssize_t row = self.rows
        cdef Problem problem
        while record < count:
            record += 1
            problem = read_varint(&at, end, &folded)
            if problem:
                return problem
            if folded & 1:
                return LENGTH
            if folded >> 1 > <uint64_t> (end - at):
                return CUT
            record_end = at + (folded >> 1)
            at += 1  # attributes, none of which is defined
            problem = read_timestamp(&at, record_end, base_timestamp, &timestamp)
            if problem:
                return problem
            problem = read_varint(&at, record_end, &folded)
            if problem:
                return problem
            delta = <int64_t> (folded >> 1)
            if folded & 1 or delta <= previous or delta > last_delta:
                return OFFSETS
            previous = delta
            problem = read_bytes(&at, record_end, &key, &key_size)
            if problem:
                return problem
            problem = read_bytes(&at, record_end, &value, &value_size)
            if problem:
                return problem
            headers = at
            problem = skip_headers(&at, record_end)
            if problem:
                return problem
            if at != record_end:
                return LENGTH
            delta += base_offset
            if start <= delta < stop:
                (<int64_t*> self.offsets.data)[row] = delta
                (<int64_t*> self.timestamps.data)[row] = appended if is_appended else timestamp
                (<int32_t*> self.types.data)[row] = is_appended
                if self.has_keys:
                    self.keys.put(row, key, key_size)
                if self.has_values:
                    self.values.put(row, value, value_size)
                if self.has_headers:
                    (<int64_t*> self.places.data)[row - self.rows] = headers - begin
                row += 1
        if at != end:
            return REST
        self.rows = row
        return FINE

    cdef _unpack_headers(self, Py_ssize_t before, View view):
        cdef Py_ssize_t row
        for row in range(self.rows - before):
            self.headers.append(
                unpack_headers(view.data + (<int64_t*> self.places.data)[row], view.data + view.size)
            )


# ---- writing


cdef class Given:
    """An input column of bytes."""

    cdef View offsets, data, validity
    cdef Py_ssize_t first
    cdef bint is_there

    def __cinit__(self, column, Py_ssize_t rows):
        self.is_there = column is not None
        if not self.is_there:
            return
        self.offsets, self.data, self.validity = (
            View(column.offsets), View(column.data), View(column.validity)
        )
        self.first = column.first
        if self.first < 0 or rows < 0 or self.offsets.size // 4 < self.first + rows + 1:
            raise ValueError("a column has fewer rows than were announced")
        if self.validity.data != NULL and self.validity.size < (self.first + rows + 7) >> 3:
            raise ValueError("a column has fewer bits of validity than rows")

    cdef inline int64_t get(self, Py_ssize_t row, const uint8_t** found) noexcept nogil:
        """Return the size of a row; -1 if it is null, -2 if it is outside of the data."""
        cdef Py_ssize_t at = self.first + row
        cdef int64_t begin, end
        if not self.is_there:
            return -1
        if self.validity.data != NULL and not self.validity.data[at >> 3] >> (at & 7) & 1:
            return -1
        begin, end = (<const int32_t*> self.offsets.data)[at], (<const int32_t*> self.offsets.data)[at + 1]
        if not 0 <= begin <= end <= self.data.size:
            return -2
        found[0] = self.data.data + begin
        return end - begin


OUTSIDE = "a row lies outside of the data of its column"


cdef inline uint32_t murmur2(const uint8_t* data, uint32_t length) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995u
    cdef uint32_t hashed = 0x9747B28Cu ^ length
    cdef uint32_t word
    cdef uint32_t left = length
    while left >= 4:
        word = data[0] | <uint32_t> data[1] << 8 | <uint32_t> data[2] << 16 | <uint32_t> data[3] << 24
        word *= multiplier
        word ^= word >> 24
        hashed = hashed * multiplier ^ word * multiplier
        data += 4
        left -= 4
    if left:
        if left > 2:
            hashed ^= <uint32_t> data[2] << 16
        if left > 1:
            hashed ^= <uint32_t> data[1] << 8
        hashed = (hashed ^ data[0]) * multiplier
    hashed = (hashed ^ hashed >> 13) * multiplier
    return hashed ^ hashed >> 15


def choose(Py_ssize_t rows, int32_t partitions, keys, given, int32_t sticky):
    cdef Given column = Given(keys, rows)
    cdef View numbers = View(None if given is None else given.data)
    cdef View validity = View(None if given is None else given.validity)
    cdef Py_ssize_t first = 0 if given is None else given.first
    cdef Memory chosen = Memory()
    cdef const uint8_t* key = NULL
    cdef int64_t size
    cdef int32_t partition
    cdef Py_ssize_t row, at
    if partitions < 1 or not 0 <= sticky < partitions:
        raise ValueError("a topic has at least one partition, and a partition is one of them")
    if given is not None and (first < 0 or numbers.size // 4 < first + rows):
        raise ValueError("a column has fewer rows than were announced")
    if validity.data != NULL and validity.size < (first + rows + 7) >> 3:
        raise ValueError("a column has fewer bits of validity than rows")
    chosen.reserve(4 * rows)
    for row in range(rows):
        at = first + row
        if numbers.data != NULL and (validity.data == NULL or validity.data[at >> 3] >> (at & 7) & 1):
            partition = (<const int32_t*> numbers.data)[at]
            if not 0 <= partition < partitions:
                raise ValueError(f"there is no partition {partition}, only 0 to {partitions - 1}")
        else:
            size = column.get(row, &key)
            if size == -2:
                raise ValueError(OUTSIDE)
            partition = sticky if size < 0 else <int32_t> (
                (murmur2(key, <uint32_t> size) & 0x7FFFFFFF) % <uint32_t> partitions
            )
        (<int32_t*> chosen.data)[row] = partition
    chosen.size = 4 * rows
    return memoryview(chosen)


cdef inline int varint_bytes(int64_t value) noexcept nogil:
    cdef uint64_t folded = <uint64_t> value << 1 ^ <uint64_t> (value >> 63)
    cdef int size = 1
    while folded > 0x7F:
        folded >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t folded = <uint64_t> value << 1 ^ <uint64_t> (value >> 63)
    while folded > 0x7F:
        at[0] = <uint8_t> (folded & 0x7F | 0x80)
        at += 1
        folded >>= 7
    at[0] = <uint8_t> folded
    return at + 1


cdef inline uint8_t* write_bytes(uint8_t* at, const uint8_t* data, int64_t size) noexcept nogil:
    at = write_varint(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef class Lane:
    """The open batch of one partition."""

    cdef Memory payload
    cdef int32_t count
    cdef int64_t base_timestamp, max_timestamp

    def __cinit__(self):
        self.payload = Memory()


cdef class Packer:
    cdef list lanes
    cdef Py_ssize_t batch_bytes
    cdef readonly object full

    def __init__(self, Py_ssize_t partitions, Py_ssize_t batch_bytes):
        self.lanes = [Lane() for _ in range(partitions)]
        self.batch_bytes = batch_bytes
        self.full = None

    @property
    def size_bytes(self):
        cdef Lane lane
        cdef Py_ssize_t size = 0
        for lane in self.lanes:
            size += lane.payload.size
        return size

    def add(self, Py_ssize_t start, Py_ssize_t rows, partitions, keys, values, list headers, int64_t timestamp):
        cdef Given key_column = Given(keys, rows), value_column = Given(values, rows)
        cdef View chosen = View(partitions)
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef const uint8_t* header = b"\0"
        cdef Py_ssize_t header_size = 1, row
        cdef int64_t key_size, value_size
        cdef int32_t partition
        cdef Lane lane
        if start < 0 or chosen.size // 4 < rows or (headers is not None and len(headers) < rows):
            raise ValueError("a column has fewer rows than were announced")
        self.full = None
        for row in range(start, rows):
            partition = (<const int32_t*> chosen.data)[row]
            if not 0 <= partition < len(self.lanes):
                raise ValueError(f"there is no partition {partition}")
            key_size = key_column.get(row, &key)
            value_size = value_column.get(row, &value)
            if key_size == -2 or value_size == -2:
                raise ValueError(OUTSIDE)
            if headers is not None:
                packed = headers[row] or b"\0"
                header, header_size = <const uint8_t*> PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed)
            lane = <Lane> self.lanes[partition]
            if lane.count == 0:
                lane.base_timestamp = lane.max_timestamp = timestamp
            if not self._put(lane, key, key_size, value, value_size, header, header_size, timestamp):
                self.full = partition
                return row
        return rows

    def take(self, Py_ssize_t partition):
        cdef Lane lane
        if not 0 <= partition < len(self.lanes):
            raise ValueError(f"there is no partition {partition}")
        lane = <Lane> self.lanes[partition]
        if lane.count == 0:
            return None
        self.lanes[partition] = Lane()
        return Packed(memoryview(lane.payload), lane.count, lane.base_timestamp, lane.max_timestamp)

    cdef bint _put(
        self,
        Lane lane,
        const uint8_t* key,
        int64_t key_size,
        const uint8_t* value,
        int64_t value_size,
        const uint8_t* headers,
        Py_ssize_t headers_size,
        int64_t timestamp,
    ) except -1:
        """Write a record, unless it belongs to the next batch."""
        cdef int64_t time_delta = <int64_t> (<uint64_t> timestamp - <uint64_t> lane.base_timestamp)
        cdef int64_t content = (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
        cdef int64_t size = (
            1
            + varint_bytes(time_delta)
            + varint_bytes(lane.count)
            + varint_bytes(key_size)
            + varint_bytes(value_size)
            + content
            + headers_size
        )
        cdef uint8_t* at
        if (timestamp < lane.base_timestamp) != (time_delta < 0):
            raise ValueError("the timestamps of a batch are too far apart")
        if lane.count and (
            lane.payload.size + size + varint_bytes(size) > self.batch_bytes or lane.count == INT_MAX
        ):
            return False
        lane.payload.reserve(content + headers_size + LARGEST_FRAMING_BYTES + 10)
        at = write_varint(lane.payload.data + lane.payload.size, size)
        at[0] = 0  # attributes, none of which is defined
        at = write_varint(at + 1, time_delta)
        at = write_varint(at, lane.count)
        at = write_bytes(at, key, key_size)
        at = write_bytes(at, value, value_size)
        memcpy(at, headers, headers_size)
        lane.payload.size = at + headers_size - lane.payload.data
        lane.count += 1
        lane.max_timestamp = max(lane.max_timestamp, timestamp)
        return True
