"""What a measurement comes to."""

from dataclasses import dataclass


@dataclass
class Row:
    """One line of the table."""

    what: str
    measured: str
    value: float
    target: float
    higher_is_better: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.higher_is_better else self.value <= self.target


def spread(values: list[float]) -> str:
    return f"{min(values):,.2f} to {max(values):,.2f}"
