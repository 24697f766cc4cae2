"""Run the tests, and tell chance from defects."""
