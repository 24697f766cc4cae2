"""The wire: bytes to messages and back, and nothing else.

Messages are declared in `messages`, one class for all versions of a request or a response, and compiled
on first use into functions for one version each (`schema`, `encoding`, `decoding`). `frames` has what
stands around them on a connection, `errors` the codes that they carry.

This layer is pure: no sockets, no clock, no randomness, no logging. It imports nothing else of Semel.
"""
