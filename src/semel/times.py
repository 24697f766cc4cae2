"""Time spans as text, the same on the command line and in the console."""

__all__ = ["span_text"]


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
