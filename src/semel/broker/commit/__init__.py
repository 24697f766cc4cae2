"""The commit loop: what is submitted, decided in one tick, written and answered."""
