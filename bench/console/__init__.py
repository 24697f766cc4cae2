"""What the console costs a broker, and how fast its pages are: on a large cluster, with many browsers.

`subjects` starts two equal brokers, one of them with a console; `browsers` is the process that tails a topic;
`load` has the workload, and `goals` has the targets.
"""
