"""Builds the compiled modules, where there is a compiler.

Each of them has a twin in pure Python that does the same, so a machine without a compiler installs the
package all the same: a module that cannot be built is left out, and a warning says so. Everything else about
the package is in pyproject.toml.
"""

import warnings
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src")

#: The modules that are compiled, by their names; each is a .pyx file at its place.
COMPILED = ["semel.wire._checking", "semel.wire._columns"]


class BuildIfPossible(build_ext):
    """Leaves out what cannot be built, whatever the reason is."""

    def build_extension(self, ext: Extension) -> None:
        """Build one module, or warn."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - every compiler fails in its own way
            warnings.warn(f"{ext.name} is not compiled; pure Python takes its place: {error}", stacklevel=1)


def extension(name: str) -> Extension:
    """One module of the list."""
    path = SOURCE / f"{name.replace('.', '/')}.pyx"
    return Extension(name, [str(path)], extra_compile_args=["-O3", "-g0"])


extensions = cythonize([extension(name) for name in COMPILED], build_dir="build/cython", quiet=True)
for each in extensions:
    each.optional = True  # so that a module that was left out is not looked for

setup(ext_modules=extensions, cmdclass={"build_ext": BuildIfPossible})
