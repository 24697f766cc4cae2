# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled implementation of `validating`; its twin `_checking_py` documents each name.

Every number from the wire is compared with the available bytes before it is used as an address. Nothing is
allocated, and the GIL is released for a large batch, so that a thread can check it beside the event loop.
Small batches keep it: taking it back costs the event loop more than the check when other threads wait for it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t
from libc.stdlib cimport getenv

from semel.wire.errors import InvalidRecords
from semel.wire.invalid_records import NAMED_MAX as NAMED_MAX_OF_BOTH
from semel.wire.invalid_records import damaged, refused

if getenv(b"SEMEL_PURE") != NULL and getenv(b"SEMEL_PURE")[0] not in (b"\0", b"0"):
    raise ImportError("SEMEL_PURE is set, so the pure Python twin is used")

cdef enum:
    NO_TIMESTAMP = -1
    INT32_BYTES_MAX = 5
    RELEASES_GIL_FROM_BYTES = 32768
    NAMED_MAX = 1000

assert NAMED_MAX == NAMED_MAX_OF_BOTH

cdef enum Problem:
    FINE, CUT, LONG, WIDE, LENGTH, ATTRIBUTES, NEGATIVE, GAP

MESSAGES = {
    CUT: "a batch ends inside a record",
    LONG: "a variable size number is longer than 64 bits",
    WIDE: "a length or an offset does not fit 32 bits",
    LENGTH: "a record is not as long as it says, or its timestamp is out of range",
    ATTRIBUTES: "attributes of a record that are not defined",
    NEGATIVE: "a negative length",
    GAP: "the offsets of a batch are not 0, 1, 2 and so on",
}


include "_varint.pxi"


cdef inline Problem read_int32(const uint8_t** at, const uint8_t* end, uint64_t* folded) noexcept nogil:
    cdef const uint8_t* before = at[0]
    cdef Problem problem = read_varint(at, end, folded)
    if problem:
        return problem
    if folded[0] > 0xFFFFFFFFu or at[0] - before > INT32_BYTES_MAX:
        return WIDE
    return FINE


cdef inline Problem skip(const uint8_t** at, const uint8_t* end, bint* is_null) noexcept nogil:
    cdef uint64_t folded
    cdef Problem problem = read_int32(at, end, &folded)
    if problem:
        return problem
    is_null[0] = folded == 1
    if folded & 1:
        return FINE if folded == 1 else NEGATIVE
    if folded >> 1 > <uint64_t> (end - at[0]):
        return CUT
    at[0] += folded >> 1
    return FINE


cdef Problem skip_headers(const uint8_t** at, const uint8_t* end, uint64_t count) noexcept nogil:
    cdef uint64_t header = 0
    cdef bint is_null = False
    cdef Problem problem
    while header < count:
        problem = skip(at, end, &is_null)
        if problem:
            return problem
        if is_null:
            return NEGATIVE
        problem = skip(at, end, &is_null)
        if problem:
            return problem
        header += 1
    return FINE


cdef Problem check_record(
    const uint8_t** at, const uint8_t* end, uint64_t index, int64_t base, int64_t* timestamp, bint* is_keyless
) noexcept nogil:
    cdef const uint8_t* record_end
    cdef uint64_t folded
    cdef bint is_tombstone = False
    cdef Problem problem = read_int32(at, end, &folded)
    if problem:
        return problem
    if folded & 1:
        return LENGTH
    if folded >> 1 > <uint64_t> (end - at[0]):
        return CUT
    record_end = at[0] + (folded >> 1)
    if at[0] >= record_end:
        return CUT
    if at[0][0] > 0x7F:
        return ATTRIBUTES
    at[0] += 1
    problem = read_timestamp(at, record_end, base, timestamp)
    if problem:
        return problem
    problem = read_int32(at, record_end, &folded)
    if problem:
        return problem
    if folded != index << 1:
        return GAP
    problem = skip(at, record_end, is_keyless)
    if problem:
        return problem
    problem = skip(at, record_end, &is_tombstone)
    if problem:
        return problem
    problem = read_int32(at, record_end, &folded)
    if problem:
        return problem
    if folded & 1:
        return NEGATIVE
    if folded:
        problem = skip_headers(at, record_end, folded >> 1)
        if problem:
            return problem
    return FINE if at[0] == record_end else LENGTH


cdef struct Batch:
    int64_t count
    int64_t base
    int64_t earliest
    int64_t latest
    bint needs_keys


cdef struct Refused:
    int64_t count
    bint has_bad_timestamp
    int64_t index[NAMED_MAX]
    int64_t timestamp[NAMED_MAX]
    bint is_keyless[NAMED_MAX]


cdef inline void refuse(Refused* refused, int64_t index, int64_t timestamp, bint is_keyless) noexcept nogil:
    if refused.count < NAMED_MAX:
        refused.index[refused.count] = index
        refused.timestamp[refused.count] = timestamp
        refused.is_keyless[refused.count] = is_keyless
    if not is_keyless:
        refused.has_bad_timestamp = True
    refused.count += 1


cdef Problem check_records(
    const uint8_t** at,
    const uint8_t* end,
    const Batch* batch,
    int64_t* index,
    int64_t* largest,
    Refused* refused,
) noexcept nogil:
    cdef int64_t timestamp = 0
    cdef bint is_keyless = False
    cdef Problem problem
    while index[0] < batch.count:
        problem = check_record(at, end, <uint64_t> index[0], batch.base, &timestamp, &is_keyless)
        if problem:
            return problem
        if timestamp > largest[0]:
            largest[0] = timestamp
        if batch.needs_keys and is_keyless:
            refuse(refused, index[0], timestamp, True)
        elif timestamp != NO_TIMESTAMP and (timestamp < batch.earliest or timestamp > batch.latest):
            refuse(refused, index[0], timestamp, False)
        index[0] += 1
    return FINE


def check(payload, header, int64_t earliest, int64_t latest, bint needs_keys):
    cdef Batch batch = Batch(header.record_count, header.base_timestamp, earliest, latest, needs_keys)
    cdef Refused found
    cdef Py_buffer buffer
    cdef int64_t index = 0, largest = INT64_MIN
    cdef bint is_whole
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef Problem problem
    found.count = 0  # the rest is written before it is read
    found.has_bad_timestamp = False
    PyObject_GetBuffer(payload, &buffer, PyBUF_SIMPLE)
    at = <const uint8_t*> buffer.buf
    end = at + buffer.len
    if buffer.len < RELEASES_GIL_FROM_BYTES:
        problem = check_records(&at, end, &batch, &index, &largest, &found)
    else:
        with nogil:
            problem = check_records(&at, end, &batch, &index, &largest, &found)
    is_whole = at == end
    PyBuffer_Release(&buffer)
    if problem:
        raise damaged(index, MESSAGES[problem])
    if not is_whole:
        raise InvalidRecords("a batch holds more than the records that it counts")
    if found.count:
        named = [
            (found.index[each], None if found.is_keyless[each] else found.timestamp[each])
            for each in range(min(found.count, NAMED_MAX))
        ]
        raise refused(named, found.count, header.record_count, found.has_bad_timestamp, earliest, latest)
    return largest
