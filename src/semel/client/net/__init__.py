"""Connections to brokers: addresses, TLS, SASL, metadata, and retries."""
