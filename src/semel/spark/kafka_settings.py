"""Lists the settings of Kafka's own clients that are ignored here, and those that are refused, with reasons.

Programs bring them from Spark's Kafka source and sink, which pass `kafka.*` to a Java consumer or producer
(names of Kafka 4.4). A setting that only tunes such a client is accepted with a warning. A setting that
determines what is read or written, or who is allowed to, is refused: the program relies on it.
"""

from semel.client.net.security import REFUSED as REFUSED_SECURITY

PREFIX = "kafka."

_BYTES = "keys and values are bytes here; cast them in the query"
_PIPELINE = "the position of a pipeline is stored under pipeline.id, and committed with the output"
_JAVA = "it names Java classes, and this client is written in Python"
_PARTITION = "a key decides as in every Kafka client; to choose differently, give the rows a column partition"
_TLS = "TLS is that of Python here, which has no such setting"
_SASL = (
    "the supported mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, without this setting"
)

_REFUSED = {
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "auto.offset.reset": "choose where a query starts with startingOffsets",
    "enable.auto.commit": _PIPELINE,
    "auto.commit.interval.ms": _PIPELINE,
    "exclude.internal.topics": "subscribePattern always excludes internal topics; name them in subscribe",
    "interceptor.classes": _JAVA,
    "config.providers": _JAVA,
    "security.providers": _JAVA,
    "ssl.engine.factory.class": _JAVA,
    "transactional.id": "transactions are named after pipeline.id",
    "transaction.timeout.ms": "give the sink's own option transaction.timeout.ms, without kafka.",
    "transaction.two.phase.commit.enable": "the sink has a two-phase commit of its own",
    "enable.idempotence": "writes are always idempotent",
    "acks": "writes always wait for all replicas",
    "partitioner.class": _PARTITION,
    "partitioner.ignore.keys": _PARTITION,
    "share.acknowledgement.mode": "the source is not a share consumer",
    "ssl.keystore.certificate.chain": "give a PEM file as ssl.certificate.location",
    "ssl.keystore.key": "give a PEM file as ssl.key.location",
    "ssl.truststore.certificates": "give a PEM file as ssl.ca.location",
    **dict.fromkeys(
        (
            "ssl.cipher.suites",
            "ssl.enabled.protocols",
            "ssl.keymanager.algorithm",
            "ssl.protocol",
            "ssl.provider",
            "ssl.secure.random.implementation",
            "ssl.trustmanager.algorithm",
        ),
        _TLS,
    ),
    **dict.fromkeys(
        (
            "sasl.client.callback.handler.class",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
            "sasl.login.class",
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
            "sasl.login.retry.backoff.max.ms",
            "sasl.login.retry.backoff.ms",
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.header.urlencode",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.scope.claim.name",
            "sasl.oauthbearer.sub.claim.name",
        ),
        _SASL,
    ),
    **REFUSED_SECURITY,
}

_IGNORED = (
    # Of both clients.
    "auto.include.jmx.reporter",
    "bootstrap.resolve.timeout.ms",
    "client.dns.lookup",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "metadata.cluster.check.enable",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    # Of consumers. The source uses no group, checks every batch, and creates no topics.
    "allow.auto.create.topics",
    "check.crcs",
    "client.rack",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    # Of producers. The sink builds its own batches and retries requests until request.timeout.ms.
    "batch.size",
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delivery.timeout.ms",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "retries",
)

#: Options that Spark's Kafka source and sink forbid too, or that would change the meaning, and why.
REFUSED = {PREFIX + name: reason for name, reason in _REFUSED.items()}
#: Options that are accepted with a warning, unless they are options of ours.
IGNORED = frozenset(PREFIX + name for name in _IGNORED)
