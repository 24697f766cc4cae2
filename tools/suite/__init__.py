"""Runs the tests, and tells flaky tests from defects."""
