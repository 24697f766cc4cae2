"""Finds and loads files that declare a pipeline, and explains what is wrong with others."""

import importlib.util
import sys
import traceback
from pathlib import Path

from pyspark import cloudpickle

from semel.pipeline import DeclarationError, Pipeline

#: The module name of the file, chosen so that it cannot conflict.
MODULE = "semel pipeline file"


def load(path: Path) -> Pipeline:
    """Return the pipeline that a file declares. DeclarationError if there is none, or if the file fails."""
    path = path.absolute()
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path} is not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    # Appended, so that a file beside this one cannot shadow Python's own modules.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise DeclarationError(f"{path}: {error}") from None
    except Exception as error:  # Whatever a file does wrong, its author wants to know where.
        raise DeclarationError(f"{path} cannot be run: {_where(path, error)}") from error
    _send_by_value(path.parent)
    found = {id(each): each for each in vars(module).values() if isinstance(each, Pipeline)}
    if not found:
        raise DeclarationError(
            f"{path} declares no pipeline. Put @pipeline(...) of semel.pipeline before the function"
        )
    if len(found) > 1:
        names = ", ".join(str(each) for each in found.values())
        raise DeclarationError(f"{path} declares {names}. Give each a file of its own")
    return next(iter(found.values()))


def _send_by_value(directory: Path) -> None:
    """Pickle the functions of the file, and of modules beside it, by value.

    A task cannot import them: it may run on another machine, and a file with the name of a Python module must
    not shadow it.
    """
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        place = file.parent.parent if file.name == "__init__.py" else file.parent
        if place == directory and "." not in name and name != "__main__":
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _where(path: Path, error: Exception) -> str:
    """Return the error, and the last line of the file in its traceback."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}"
