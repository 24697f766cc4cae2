"""The `semel` command: a broker, and tools that work with every broker that speaks Kafka's protocol.

`main` puts the commands together; each file has one of them. Nothing heavy is imported before it is needed,
because a command line is judged by how long `semel --help` takes.
"""
