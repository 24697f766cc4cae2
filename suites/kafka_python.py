"""The integration tests of kafka-python, from its source distribution."""

import importlib.metadata
import shutil
import sys
from pathlib import Path

from peers.programs import CannotBuild, run
from suites.outcomes import Report, Target, of_junit, run_within, with_its_end

BUILD = Path(__file__).parent / "build"
VERSION = importlib.metadata.version("kafka-python")
TEST_SECONDS = 60
KAFKA_VERSION = "4.3.1"
"""The version that the tests assume of the broker: they expect less of older ones."""
SERVICE = '''"""Not in the distribution: what its fixtures need for a broker that others have started."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = stop = start = dump_logs = open


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("these tests start no broker")
'''
ITS_OWN_BROKERS = ("test_sasl_integration.py", "test_ssl_integration.py")
"""These start brokers from an unpacked release of Apache Kafka."""


def run_tests(target: Target, seconds: float) -> Report:
    """Run the tests that can use a running broker."""
    source = fetch()
    report = target.directory / "kafka-python.xml"
    ignored = [f"--ignore=test/integration/{name}" for name in ITS_OWN_BROKERS]
    options = ["-q", "-o", "log_level=WARNING", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist"]
    limits = [f"--timeout={TEST_SECONDS}", "--timeout-method=signal", f"--junitxml={report}"]
    ended = run_within(
        [sys.executable, "-m", "pytest", "test/integration", *options, *limits, *ignored],
        seconds,
        cwd=source,
        environment={
            "KAFKA_URI": f"kafka://{target.bootstrap}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": str(source),
            "PYTHONPATH": "",
        },
    )
    return with_its_end(of_junit(report) if report.exists() else {}, ended)


def fetch() -> Path:
    """Return the unpacked source distribution, of the installed version."""
    source = BUILD / f"kafka_python-{VERSION}"
    if not (source / "test" / "service.py").exists():
        shutil.rmtree(source, ignore_errors=True)
        options = ["--no-deps", "--no-binary", ":all:", "--quiet", "--dest", str(BUILD)]
        run([sys.executable, "-m", "pip", "download", *options, f"kafka-python=={VERSION}"])
        shutil.unpack_archive(BUILD / f"kafka_python-{VERSION}.tar.gz", BUILD)
        if not (source / "test" / "integration").is_dir():
            raise CannotBuild(f"the source distribution of kafka-python {VERSION} has no integration tests")
        # Without this file, `test` is a package of Python itself.
        (source / "test" / "__init__.py").touch()
        (source / "test" / "service.py").write_text(SERVICE)
    return source
