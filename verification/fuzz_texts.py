"""Valid inputs for text decoders: a history, the notes of a pipeline, a settings file."""

from typing import Final

HISTORY: Final = (
    b'{"op":"topic","topic":"orders","visibility":"journal"}\n'
    b'{"op":"init","process":1,"started":1,"ended":2,"outcome":"ok","transactional_id":"t","epoch":3}\n'
    b'{"op":"begin","process":1,"started":3,"ended":3,"outcome":"ok","transaction":"t/1","transactional_id":"t"}\n',
    b'{"op":"produce","process":1,"started":4,"ended":5,"outcome":"ok","topic":"orders","partition":0,'
    b'"values":["a",2],"transaction":"t/1","offset":7}\n'
    b'{"op":"commit","process":1,"started":6,"ended":null,"outcome":"info","transaction":"t/1"}\n',
    b'{"op":"poll","process":2,"started":7,"ended":9,"outcome":"ok","topic":"orders","partition":0,'
    b'"position":0,"records":[[7,"a"],[8,2]],"isolation":"read_committed","last_stable":9}\n',
)
NOTES: Final = (
    b'semel2 3 0/1 0-0 {"run":[5,1],"query":"q","batch":2,"inputs":{"orders":["id",2]},"topic":"out",'
    b'"outputs":{"out":"id"},"winners":["7:0:task/0","8:1:task/1"]}\nsemel2 3 0/1 0-1 ',
    b'semel2 4 0/2 0-0 {"run":[5,1],"query":"q",\nsemel2 4 1/2 1-1 "batch":2,"inputs":{},"topic":null,'
    b'"outputs":{},"winners":[]}\nsemel2 3 0/1 2-2 {}',
)
TOML: Final = (
    b'listen = ["127.0.0.1:9092"]\ndata = "semel-data"\nlog-level = "info"\n'
    b"[settings]\nnum.partitions = 3\nmax.connections = 10\n",
    b'advertise = "host:1"\nlog-format = "json"\n[settings]\n"semel.durability" = "always"\n'
    b"auto.create.topics.enable = false\n",
    b'memory = true\nmetrics = "127.0.0.1:1"\nlisten = ["a=ssl://h:1", "b=h:2"]\nadvertise = ["a=h:3"]\n'
    b'settings."ssl.certificate.location" = "x"\n',
    b"settings = 3\nlisten = 5\n",
    b"data = 7\nmetrics = [1]\nlog-level = 3\n",
    b"memory = 1\nlisten = [1, 2]\nsettings.num.partitions = [3]\n",
)
