"""Where bytes and truth are kept. ``interface`` is the contract, ``embedded`` opens the store of a process."""
