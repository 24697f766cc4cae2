"""Times and time spans as text, the same on the command line and in the console."""

from datetime import UTC, datetime


def span_text(span_ms: int) -> str:
    """Format a time span in its two largest units: `2 h 5 min`, `42 s`, `300 ms`."""
    if span_ms < 1000:
        return f"{span_ms} ms"
    parts, left = [], span_ms // 1000
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {name}")
            left %= size
    return " ".join(parts[:2])


def time_text(timestamp_ms: int) -> str | None:
    """Format a timestamp of the log as ISO 8601 in UTC; None if it is negative, which means none."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)  # A log may contain any 64-bit number.
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
