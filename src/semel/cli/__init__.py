"""The `semel` command: a broker, and tools that work with every broker that speaks Kafka's protocol.

`main` assembles the commands; each subject has a module. `command` says how a command is declared, and
`output` how its result is printed. Heavy modules are imported only when they are needed, so that
`semel --help` is fast.
"""
