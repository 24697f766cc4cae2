"""Other projects' test suites and programs, run against Semel and against Apache Kafka.

`python -m suites` fetches them by package name from PyPI, Maven Central, the Go proxy and npm, runs each
against a fresh broker of both kinds, and writes docs/compatibility.md. What cannot be fetched or built is
skipped, and the run says so.
"""
