"""Where bytes and truth are kept: ``interface`` is the contract, ``embedded`` the store of one process."""
