"""The overview of the cluster's health, and the events that tell pages to refresh."""

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import TransactionDescription
from semel.console.events import EventStream
from semel.console.forms import FormError
from semel.console.observing import Observer
from semel.console.rendering import iso, now_iso, page
from semel.console.sampling import Catalogue, GroupSample, PartitionEnds, TransactionSample, blockers_of

#: Rows of each list of the overview.
ROWS_MAX = 8
#: Candidates that are named if it is unknown which transaction blocks a partition.
ONE_OF_MAX = 3
#: If readers wait for longer and no open transaction explains it, the overview reports it.
HELD_MS_MAX = 30_000


async def overview(request: Request) -> Response:
    """Show brokers, topics, rates, open transactions, lag, and what blocks readers."""
    observer: Observer = request.app.state.observers.of(request.state.session)
    catalogue = await observer.catalogue.get()
    ends, transactions, groups = observer.ends.value, observer.transactions.value, observer.groups.value
    problems = [
        {"part": name, "message": section.problem}
        for name, section in observer.sections.items()
        if section.error is not None
    ]
    data = {
        "at": now_iso(),
        "cluster": _cluster(catalogue),
        "topics": _topics(catalogue, ends),
        "rate": _rate(ends),
        "transactions": _transactions(transactions),
        "blocked": _blocked(ends, transactions),
        "blocked_total": None if ends is None else len(ends.waiting),
        "groups": _groups(groups),
        "problems": problems,
    }
    data["health"] = _health(catalogue, ends, transactions, problems)
    return page(request, "overview.html", data)


def _cluster(catalogue: Catalogue) -> dict[str, Any]:
    return {
        "id": catalogue.cluster.cluster_id,
        "brokers": [
            {
                "id": node.node_id,
                "address": f"{node.host}:{node.port}",
                "is_controller": node.node_id == catalogue.cluster.controller,
            }
            for node in catalogue.cluster.nodes
        ],
        "offline_partitions": catalogue.offline,
        "partitions_behind": catalogue.behind,
    }


def _topics(catalogue: Catalogue, ends: PartitionEnds | None) -> dict[str, Any]:
    busiest = sorted(ends.rates.items(), key=lambda pair: -pair[1])[:ROWS_MAX] if ends else []
    return {
        "total": len(catalogue.topics),
        "partitions": catalogue.partitions,
        "busiest": [{"topic": name, "records_per_second": round(rate, 1)} for name, rate in busiest],
    }


def _rate(ends: PartitionEnds | None) -> dict[str, Any]:
    times, values = ends.total.columns() if ends is not None else ([], [])
    return {
        "records_per_second": None if not values else round(values[-1] or 0.0, 1),
        "times": [round(each, 3) for each in times],
        "values": [None if each is None else round(each, 2) for each in values],
    }


def _transactions(sample: TransactionSample | None) -> dict[str, Any]:
    if sample is None:
        return {"open": None, "oldest": [], "states": {}}
    now_ms = int(time.time() * 1000)
    oldest = sorted(sample.open.values(), key=lambda each: each.started_ms)[:ROWS_MAX]
    return {
        "open": len(sample.open),
        "states": dict(sample.states),
        "oldest": [
            {
                "transactional_id": each.transactional_id,
                "since": iso(each.started_ms),
                "age_ms": max(0, now_ms - each.started_ms),
                "timeout_ms": None if each.is_two_phase else each.timeout_ms,
                "partitions": len(each.partitions),
            }
            for each in oldest
        ],
    }


def _blocked(ends: PartitionEnds | None, sample: TransactionSample | None) -> list[dict[str, Any]]:
    """Return the partitions whose readers wait, each with the blocking transaction or the candidates."""
    if ends is None:
        return []
    rows = []
    for key, waiting in islice(ends.waiting.items(), ROWS_MAX):
        first, others = blockers_of(key, sample.open if sample is not None else {}, ends)
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "waiting": waiting,
                "last_stable_offset": ends.stable[key],
                "held_ms": int((ends.at - ends.held[key]) * 1000),
                "transactional_id": None if first is None else first.transactional_id,
                "since": None if first is None else iso(first.started_ms),
                "one_of": others[:ONE_OF_MAX],
                "one_of_total": len(others),
            }
        )
    return rows


def _groups(sample: GroupSample | None) -> dict[str, Any]:
    if sample is None:
        return {"total": None, "lag": None, "furthest": []}
    furthest = sorted(sample.lags.items(), key=lambda pair: -pair[1].lag)
    states = {each.group_id: each.state for each in sample.listed}
    return {
        "total": len(sample.listed),
        "lag": sum(each.lag for each in sample.lags.values()),
        "furthest": [
            {"group": name, "lag": each.lag, "state": states.get(name, "")}
            for name, each in furthest[:ROWS_MAX]
            if each.lag
        ],
    }


def _health(
    catalogue: Catalogue,
    ends: PartitionEnds | None,
    sample: TransactionSample | None,
    problems: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the state of the cluster in one word, and the reasons in sentences, from all samples."""
    bad, odd = [], []
    if catalogue.offline:
        bad.append(f"{catalogue.offline:,} partitions have no leader.")
    if catalogue.behind:
        odd.append(f"{catalogue.behind:,} partitions have replicas that are not in sync.")
    open_ = sample.open if sample is not None else {}
    now_ms = int(time.time() * 1000)
    stuck = sum(
        1 for each in open_.values() if each.is_two_phase or now_ms - each.started_ms > each.timeout_ms
    )
    if stuck:
        odd.append(f"{stuck:,} open transactions do not end by themselves, or are past their timeout.")
    if ends is not None and _is_held_by_none(ends, open_):
        odd.append("Readers wait in partitions for a transaction that no coordinator lists; run the checks.")
    odd += [f"The {each['part']} could not be read: {each['message']}" for each in problems]
    return {"state": "bad" if bad else "odd" if odd else "good", "reasons": bad + odd}


def _is_held_by_none(ends: PartitionEnds, open_: Mapping[str, TransactionDescription]) -> bool:
    """Whether readers of a partition have waited for long, and no open transaction can be the reason."""
    # Partitions and transactions are sampled one after the other, so a short transaction may be in one only.
    held = [key for key, since in ends.held.items() if (ends.at - since) * 1000 > HELD_MS_MAX]
    # The rule of `blockers_of`, for thousands of partitions and transactions at once.
    writers = {(key, each.producer_id) for each in open_.values() for key in each.partitions}
    written = {key for key, _ in writers}
    return any(
        (key, ends.blockers[key]) not in writers if key in ends.blockers else key not in written
        for key in held
    )


async def changes(request: Request) -> Response:
    """Notify a page when the sections that it shows were sampled again."""
    observer: Observer = request.app.state.observers.of(request.state.session)
    names = [name for name in request.query_params.get("of", "").split(",") if name]
    if not names or any(name not in observer.sections for name in names):
        raise FormError(f"'of' must name some of {', '.join(observer.sections)}")
    versions = observer.versions(names)

    async def next_change() -> dict[str, int]:
        """Return the next versions, until the observer stops: the browser then reconnects to a new one."""
        nonlocal versions
        observer.used = time.monotonic()
        versions = await observer.next_versions(versions)
        return versions

    return EventStream(request.app.state.workers.watch(request, next_change))


ROUTES = [
    Route("/", overview),
    Route("/overview", overview),
    Route("/changes", changes),
]
