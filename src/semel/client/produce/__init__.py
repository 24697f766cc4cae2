"""Producers, idempotent and transactional."""
