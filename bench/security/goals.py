"""Targets of security: ACLs cost almost nothing, and with TLS Semel is as fast as Kafka with TLS."""

from dataclasses import replace

from bench.figures import ratio_of
from bench.results import Results
from bench.rows import Row
from bench.security import acls, tls
from bench.security.subjects import KafkaWithTls, SemelWithTls, WithAcls, WithSasl, WithSaslToo
from bench.side_by_side.comparing import ratio_rows

SLOWER_MAX = 1.05
RATE_MIN = 0.95
OVER_KAFKA = 1.0
"""No number has been set for TLS: as fast as Apache Kafka with TLS."""


def rows(results: Results) -> list[Row]:
    """Return the targets that were measured."""
    return [*_acls(results), *_tls(results)]


def _acls(results: Results) -> list[Row]:
    pair = (WithAcls.name, WithSasl.name)
    found: list[Row] = []
    for cell in acls.CELLS:
        for metric, target, more in ((acls.RATE, RATE_MIN, True), (acls.P50, SLOWER_MAX, False)):
            what = f"with ACLs, {cell.label}: {metric}, over without"
            where = (acls.Acls.name, cell.label, metric)
            equal = _of_two_equal(results, where)
            for row in ratio_rows(results, what, where, pair, target, higher_is_better=more):
                found.append(replace(row, measured=f"{row.measured}{equal}"))
    return found


def _of_two_equal(results: Results, where: tuple[str, str, str]) -> str:
    """Return the ratio of two brokers without ACLs: a difference no larger than theirs may be chance."""
    workload, cell, metric = where
    again, first = (results.find(workload, cell, each.name, metric) for each in (WithSaslToo, WithSasl))
    if again is None or first is None:
        return ""
    return f"; of two brokers without: {ratio_of(again.values, first.values).value:,.3f}"


def _tls(results: Results) -> list[Row]:
    pair = (SemelWithTls.name, KafkaWithTls.name)
    found: list[Row] = []
    for cell in tls.CELLS:
        what = f"with TLS, {cell.label}: {acls.RATE}, over kafka's with TLS"
        found += ratio_rows(results, what, (tls.Tls.name, cell.label, acls.RATE), pair, OVER_KAFKA)
    return found
