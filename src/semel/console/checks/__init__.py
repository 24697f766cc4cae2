"""Long checks: generators that report their progress and stop on request."""
