"""The wire layer: converts bytes to messages and back.

Messages are declared in `messages`, one class for all versions of a request or a response, and compiled on
first use into functions for one version each (`schema`, `encoding`, `decoding`). `frames` has the framing and
headers of a connection, `errors` the error codes.

This layer is pure: no sockets, no clock, no randomness, no logging. It imports nothing else of Semel.
"""
