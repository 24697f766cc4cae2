"""`semel spark-submit`: runs Spark's own spark-submit, with a Java and the Python that has this package."""

import os
import sys
from pathlib import Path
from typing import Final

import typer

from semel.cli.sparking import sparking

#: All arguments are Spark's, including --help.
ALL_ARGUMENTS: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def spark_submit(context: typer.Context) -> None:
    """Run Spark's own spark-submit, with a Java that can run it and with this Python.

    All arguments are those of spark-submit. JAVA_HOME and PYSPARK_PYTHON are used if they are set; otherwise
    it uses the Java that it finds, or the one of 'semel[spark]', and the Python that runs this command, which
    has Semel installed. Executors on other machines need Semel too: see docs/spark-clusters.md.

    Try:  semel spark-submit --master local[2] job.py
    """
    with sparking():
        import pyspark

        from semel.spark.driver import java

        java.prepare()
    home = Path(pyspark.__file__).parent
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    program = Path(os.environ.setdefault("SPARK_HOME", str(home)), "bin/spark-submit")
    os.execv(program, [str(program), *context.args])
