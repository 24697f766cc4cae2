"""kill -9 under load: nothing acknowledged is lost, nothing is doubled, offsets are dense.

Eight idempotent librdkafka producers write numbered records while the broker is killed and started again.
``SEMEL_KILLS`` says how often; ``make chaos`` takes fifty.
"""

import random
from pathlib import Path

import pytest
from support.brokers.process import BrokerProcess
from support.chance import fresh_seed
from support.workloads.load import idempotent_load

from .conftest import FEW, MANY

ACKNOWLEDGED_BETWEEN_KILLS = 300


@pytest.mark.timeout(120 + 20 * MANY)
@FEW
def test_kill_under_idempotent_load(tmp_path: Path, kills: int) -> None:
    seed = fresh_seed()
    chance = random.Random(seed)
    with BrokerProcess(tmp_path / "data") as broker:
        with idempotent_load(broker.bootstrap, writers=8, partitions=4) as load:
            for _ in range(kills):
                # The moment of the kill is a count of acknowledgements, so every round has made progress.
                load.wait_for(chance.randrange(1, ACKNOWLEDGED_BETWEEN_KILLS))
                broker.kill()
                broker.start()
            load.wait_for(ACKNOWLEDGED_BETWEEN_KILLS)
        load.check()
