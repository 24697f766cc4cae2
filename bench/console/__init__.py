"""What the console costs a broker, and how quick its pages are: on a large cluster, with many browsers.

`subjects` starts two equal brokers, one of them with a console; `browsers` is the process that tails; `load`
has the workload, and `goals` says what should have come out.
"""
