"""Storage: ``interface`` is the contract, ``embedded`` the store of a single process."""
