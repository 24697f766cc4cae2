# Included by the compiled modules, which define Problem with FINE, CUT, LONG and LENGTH.


cdef inline Problem read_varint(const uint8_t** at, const uint8_t* end, uint64_t* folded) noexcept nogil:
    cdef const uint8_t* here = at[0]
    cdef uint64_t number
    cdef uint8_t byte
    cdef int shift = 7
    if here >= end:
        return CUT
    number = here[0]
    here += 1
    if number > 0x7F:
        number &= 0x7F
        while True:
            if here >= end:
                return CUT
            byte = here[0]
            here += 1
            if shift == 63 and byte > 1:
                return LONG
            number |= <uint64_t> (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    folded[0] = number
    at[0] = here
    return FINE


cdef inline Problem read_timestamp(
    const uint8_t** at, const uint8_t* end, int64_t base, int64_t* timestamp
) noexcept nogil:
    cdef uint64_t folded
    cdef int64_t delta
    cdef Problem problem = read_varint(at, end, &folded)
    if problem:
        return problem
    delta = <int64_t> (folded >> 1) ^ -<int64_t> (folded & 1)
    if delta > 0 and base > INT64_MAX - delta:
        return LENGTH
    if delta < 0 and base < INT64_MIN - delta:
        return LENGTH
    timestamp[0] = base + delta
    return FINE
