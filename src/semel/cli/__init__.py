"""The `semel` command: a broker, and tools that work with every broker that speaks Kafka's protocol.

`main` assembles the commands; most commands have a module of their own. Heavy modules are imported only when
they are needed, so that `semel --help` is fast.
"""
