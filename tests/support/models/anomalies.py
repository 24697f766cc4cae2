"""Every anomaly: the smallest history that shows it, and a similar history that does not."""

from semel.check import Operation
from support.models.histories import JOURNAL, JOURNAL_TOPIC, Steps

READ_ALL = "read_uncommitted"


def S(*declared: Operation) -> Steps:  # noqa: N802 - a short name, because every row begins with it
    return Steps(*declared)


def J() -> Steps:  # noqa: N802
    return Steps(JOURNAL_TOPIC)


#: The anomaly, a history that shows it, and one that differs in a single detail and shows no anomaly.
CASES = [
    # ---- what is read
    (
        "aborted-read",
        S().send("a", offset=0, tx="T").abort("T").poll((0, "a")),
        S().send("a", offset=0, tx="T").abort("T").poll((0, "a"), isolation=READ_ALL),
    ),
    (
        "aborted-read",
        S().send("a", offset=0, tx="T").poll((0, "a")),
        S().send("a", offset=0, tx="T").commit("T", "info").poll((0, "a")),
    ),
    (
        "aborted-read",
        S().send("a", outcome="fail").poll((0, "a")),
        S().send("a", outcome="info").poll((0, "a")),
    ),
    (
        "aborted-read",
        S().send("a", tx="T").commit("T", "fail", "INVALID_TXN_STATE").poll((0, "a")),
        S().send("a", tx="T").commit("T", "info", "PRODUCER_FENCED").poll((0, "a")),
    ),
    (
        "aborted-read",
        J().send("a", tx="T", topic=JOURNAL).abort("T").poll((0, "a"), topic=JOURNAL, isolation=READ_ALL),
        J().send("a", tx="T", topic=JOURNAL).commit("T").poll((0, "a"), topic=JOURNAL, isolation=READ_ALL),
    ),
    (
        "early-read",
        S().send("a", offset=0, tx="T").poll((0, "a"), at=5, to=6).commit("T", at=7),
        S().send("a", offset=0, tx="T").poll((0, "a"), at=5, to=7).commit("T", at=6, to=9),
    ),
    (
        "early-read",
        S().poll((0, "a"), at=1, to=2).send("a", offset=0, at=3),
        S().poll((0, "a"), at=1, to=3).send("a", offset=0, at=2, to=5),
    ),
    (
        "precommitted-read",
        S().send("a", offset=0, tx="T").poll((0, "a"), transaction="T").commit("T"),
        S().send("a", offset=0, tx="T").commit("T").poll((0, "a"), transaction="U"),
    ),
    (
        "phantom",
        S().send("a", offset=0).poll((0, "a"), (1, "b")),
        S().poll((0, "a"), (1, "b")),
    ),
    (
        "read-past-stable",
        S().send("a", offset=0).poll((0, "a"), last_stable=0),
        S().send("a", offset=0).poll((0, "a"), last_stable=1),
    ),
    # ---- where records are
    (
        "inconsistent-offset",
        S().send("a").send("b").poll((0, "a")).poll((0, "b"), by="other"),
        S().send("a").send("b").poll((0, "a")).poll((1, "b"), by="other"),
    ),
    (
        "inconsistent-offset",
        S().send("a", offset=0, at=1, to=5).send("b", offset=0, by="v", at=2, to=5),
        S().send("a", offset=0, at=1, to=5).send("b", offset=0, tx="T", by="v", at=2, to=5),
    ),
    (
        "duplicate",
        S().send("a").poll((0, "a"), (1, "a")),
        S().send("a", is_idempotent=False).poll((0, "a"), (1, "a")),
    ),
    (
        "wrong-acknowledgement",
        S().send("a", offset=0).send("b", by="v").poll((0, "b"), (1, "a")),
        S().send("a", offset=1).send("b", by="v").poll((0, "b"), (1, "a")),
    ),
    (
        "wrong-acknowledgement",
        S().send("a", offset=0).poll((3, "a")),
        S().send("a", offset=3).poll((3, "a")),
    ),
    (
        "nonmonotonic-send",
        S().send("a").send("b").poll((0, "b"), (1, "a")),
        S().send("a").send("b", by="v").poll((0, "b"), (1, "a")),
    ),
    (
        "nonmonotonic-send",
        J()
        .send("a", tx="T", topic=JOURNAL)
        .send("b", tx="T", topic=JOURNAL)
        .commit("T")
        .poll((0, "b"), (1, "a"), topic=JOURNAL),
        J()
        .send("a", tx="T", topic=JOURNAL)
        .send("b", tx="U", topic=JOURNAL)
        .commit("U")
        .commit("T")
        .poll((0, "b"), (1, "a"), topic=JOURNAL),
    ),
    (
        "offset-inversion",
        S().send("a", offset=5, at=1, to=2).send("b", offset=4, by="v", at=3, to=4),
        S().send("a", offset=5, at=1, to=3).send("b", offset=4, by="v", at=3, to=4),
    ),
    (
        "offset-inversion",
        J()
        .send("a", tx="T", topic=JOURNAL, by="w")
        .send("b", tx="U", topic=JOURNAL, by="v")
        .commit("T", at=5, to=6)
        .commit("U", at=7, to=8)
        .poll((0, "b"), (1, "a"), topic=JOURNAL),
        J()
        .send("a", tx="T", topic=JOURNAL, by="w")
        .send("b", tx="U", topic=JOURNAL, by="v")
        .commit("T", at=5, to=8)
        .commit("U", at=7, to=8)
        .poll((0, "b"), (1, "a"), topic=JOURNAL),
    ),
    (
        "split-transaction",
        J()
        .send("a", "c", tx="T", topic=JOURNAL)
        .send("b", topic=JOURNAL, by="v")
        .commit("T", at=1, to=9)
        .poll((0, "a"), (1, "b"), (2, "c"), topic=JOURNAL, at=10),
        S()
        .send("a", tx="T")
        .send("b", by="v")
        .send("c", tx="T")
        .commit("T")
        .poll((0, "a"), (1, "b"), (2, "c")),
    ),
    # ---- how it is read on
    (
        "nonmonotonic-poll",
        S().send("a").send("b").poll((0, "a"), (1, "b")).poll((0, "a")),
        S().send("a").send("b").poll((0, "a"), (1, "b")).assign(0).poll((0, "a")),
    ),
    (
        "nonmonotonic-poll",
        S().send("a").assign(1).poll((0, "a")),
        S().send("a").assign(0).poll((0, "a")),
    ),
    (
        "skipped-poll",
        S().send("a").send("b").send("c").poll((0, "a"), (2, "c")).poll((1, "b"), by="other"),
        S()
        .send("a")
        .send("b")
        .send("c")
        .poll((0, "a"), (2, "c"))
        .poll((1, "b"), by="other", isolation=READ_ALL),
    ),
    (
        "skipped-poll",
        S().send("a").send("b").assign(0).poll((1, "b")).poll((0, "a"), by="other"),
        S().send("a").send("b").assign(None).poll((1, "b")).poll((0, "a"), by="other"),
    ),
    (
        "skipped-poll",
        S().send("a").assign(0).poll(position=1).poll((0, "a"), by="other"),
        S().send("a").assign(0).poll(position=1).trim(1).poll((0, "a"), by="other"),
    ),
    (
        "gap",
        J().send("a", topic=JOURNAL).send("b", topic=JOURNAL).poll((0, "a"), (2, "b"), topic=JOURNAL),
        S().send("a").send("b").poll((0, "a"), (2, "b")),
    ),
    # ---- what is missing
    (
        "lost-write",
        S().send("a", offset=0).send("b", offset=1).send("c", offset=2).poll((0, "a"), (2, "c")),
        S()
        .send("a", offset=0)
        .send("b", offset=1, outcome="info")
        .send("c", offset=2)
        .poll((0, "a"), (2, "c")),
    ),
    (
        "lost-write",
        S().send("a", offset=0, tx="T").commit("T").assign(0).poll(position=1),
        S().send("a", offset=0, tx="T").abort("T").assign(0).poll(position=1),
    ),
    (
        "lost-write",
        J()
        .send("a", tx="T", topic=JOURNAL)
        .commit("T")
        .ends(0, 0, 0, topic=JOURNAL)
        .assign(0, topic=JOURNAL)
        .poll(position=0, topic=JOURNAL),
        J()
        .send("a", tx="T", topic=JOURNAL)
        .commit("T", "info")
        .ends(0, 0, 0, topic=JOURNAL)
        .assign(0, topic=JOURNAL)
        .poll(position=0, topic=JOURNAL),
    ),
    (
        "torn-transaction",
        S()
        .send("a", offset=0, tx="T")
        .send("b", offset=1, tx="T")
        .commit("T", "info")
        .poll((0, "a"), position=2),
        S()
        .send("a", offset=0, tx="T")
        .send("b", offset=1, tx="T")
        .commit("T", "info")
        .poll((0, "a"), position=1),
    ),
    (
        "torn-transaction",
        J()
        .send("a", tx="T", topic=JOURNAL)
        .send("b", tx="T", topic=JOURNAL)
        .commit("T")
        .send("c", offset=1, topic=JOURNAL, by="v")
        .assign(0, topic=JOURNAL)
        .poll((0, "a"), (1, "c"), topic=JOURNAL),
        J()
        .send("a", tx="T", topic=JOURNAL)
        .send("b", tx="T", topic=JOURNAL)
        .commit("T")
        .send("c", offset=2, topic=JOURNAL, by="v")
        .assign(0, topic=JOURNAL)
        .poll((0, "a"), topic=JOURNAL),
    ),
    (
        "torn-transaction",
        J()
        .send("a", offset=0, tx="T")
        .send("b", tx="T", topic=JOURNAL)
        .commit("T", "info")
        .poll((0, "a"))
        .ends(0, 0, 0, topic=JOURNAL)
        .assign(0, topic=JOURNAL)
        .poll(position=0, topic=JOURNAL),
        J()
        .send("a", offset=0, tx="T")
        .send("b", tx="T", topic=JOURNAL)
        .commit("T", "info")
        .ends(0, 0, 0, topic=JOURNAL)
        .poll((0, "a"))
        .assign(0, topic=JOURNAL)
        .poll(position=0, topic=JOURNAL),
    ),
    # ---- how transactions end
    (
        "two-outcomes",
        S().send("a", tx="T").commit("T").abort("T"),
        S().send("a", tx="T").commit("T").abort("T", "info"),
    ),
    (
        "error-but-committed",
        S().send("a", tx="T").commit("T", "info", "INVALID_TXN_STATE").poll((0, "a")),
        S().send("a", tx="T").commit("T", "info", "PRODUCER_FENCED").poll((0, "a")),
    ),
    (
        "zombie-commit",
        S().init("w").begin("T").init("v").commit("T"),
        S().init("w").begin("T").init("v", "info").commit("T"),
    ),
    (
        "zombie-write",
        S().init("w").begin("T").init("v").send("a", tx="T"),
        S().init("w").begin("T").init("v").send("a", tx="T", outcome="info"),
    ),
    (
        "needless-fence",
        S().init("w", timeout=100).begin("T").commit("T", "info", "PRODUCER_FENCED"),
        S().init("w", timeout=100).begin("T").init("v", "info").commit("T", "info", "PRODUCER_FENCED"),
    ),
    (
        "needless-fence",
        S()
        .init("w", timeout=100)
        .begin("T")
        .send("a", tx="T", outcome="fail", error="INVALID_PRODUCER_EPOCH"),
        S().init("w", timeout=1).begin("T").send("a", tx="T", outcome="fail", error="INVALID_PRODUCER_EPOCH"),
    ),
    ("hanging-transaction", S().ends(0, 3, 5, is_settled=True), S().ends(0, 3, 5)),
    # ---- input and groups
    (
        "double-claim",
        S().claim("T", 0, 2).commit("T").claim("U", 1, 3).commit("U"),
        S().claim("T", 0, 2).commit("T").claim("U", 1, 3).abort("U"),
    ),
    (
        "double-claim",
        S().claim("T", 0, 2).commit("T").claim("U", 0, 2).commit("U"),
        S().claim("T", 0, 2).commit("T").set_position(0).claim("U", 0, 2).commit("U"),
    ),
    (
        "double-claim",
        S()
        .claim("T", 0, 2)
        .send("x", tx="T", topic="out")
        .commit("T", "info")
        .poll((0, "x"), topic="out")
        .claim("U", 0, 2)
        .commit("U"),
        S().claim("T", 0, 2).send("x", tx="T", topic="out").commit("T", "info").claim("U", 0, 2).commit("U"),
    ),
    (
        "skipped-input",
        S().poll((0, "a"), (1, "b"), (2, "c")).claim("T", 0, 1).commit("T").claim("U", 2, 3).commit("U"),
        S().poll((0, "a"), (2, "c")).claim("T", 0, 1).commit("T").claim("U", 2, 3).commit("U"),
    ),
    (
        "aborted-offset",
        S().claim("T", 0, 2).abort("T").fetch_position(2),
        S().claim("T", 0, 2).commit("T", "info").fetch_position(2),
    ),
    (
        "aborted-offset",
        S().set_position(2, "fail").fetch_position(2),
        S().set_position(2, "info").fetch_position(2),
    ),
    (
        "early-offset",
        S().claim("T", 0, 2).fetch_position(2, is_stable=False).commit("T"),
        S().claim("T", 0, 2).fetch_position(None, is_stable=False).commit("T"),
    ),
    ("phantom-offset", S().set_position(2).fetch_position(3), S().fetch_position(3)),
    (
        "lost-offset",
        S().set_position(2).fetch_position(None),
        S().set_position(2, "info").fetch_position(None),
    ),
    (
        "lost-offset",
        S().claim("S", 0, 2).commit("S").claim("T", 2, 4).commit("T").fetch_position(2),
        S().claim("S", 0, 2).commit("S").claim("T", 2, 4).commit("T", "info").fetch_position(2),
    ),
    (
        "lost-offset",
        S().set_position(2, is_only=True).set_position(4).fetch_position(2),
        S().set_position(2).set_position(4).fetch_position(2),
    ),
    (
        "unstable-offset",
        S().claim("S", 0, 1).commit("S").claim("T", 1, 2).fetch_position(1).commit("T"),
        S().claim("S", 0, 1).commit("S").claim("T", 1, 2).fetch_position(1, is_stable=False).commit("T"),
    ),
    # ---- the ends of a partition
    ("watermark-regress", S().ends(0, 5, 5).ends(0, 4, 5), S().ends(0, 5, 5).ends(0, 5, 6)),
    (
        "watermark-regress",
        S().send("a", offset=7).ends(0, 7, 7),
        S().send("a", offset=7).ends(0, 7, 8),
    ),
    ("watermark-order", S().ends(0, 6, 5), S().ends(None, None, 5)),
    ("watermark-order", S().ends(0, -1, 0), S().ends(0, 0, 0)),
    # ---- orders
    (
        "cyclic-order",
        S()
        .send("a", tx="T", topic="p", by="w")
        .send("b", tx="U", topic="q", by="v")
        .poll((0, "b"), topic="q", transaction="T", by="w", at=5, to=10)
        .poll((0, "a"), topic="p", transaction="U", by="v", at=5, to=10)
        .commit("T", at=6, to=20)
        .commit("U", at=6, to=20, by="v"),
        S()
        .send("a", tx="T", topic="p", by="w")
        .send("b", tx="U", topic="q", by="v")
        .poll((0, "b"), topic="q", transaction="T", by="w", at=5, to=10)
        .poll((0, "a"), topic="p", by="v", at=5, to=10)
        .commit("T", at=6, to=20)
        .commit("U", at=6, to=20, by="v"),
    ),
]
