"""Files that declare a pipeline: how they are found and loaded, and what is wrong with those that do not."""

import importlib.util
import sys
import traceback
from pathlib import Path

from pyspark import cloudpickle

from semel.pipeline import DeclarationError, Pipeline

#: The name that the file has as a module. It is no name that anything else could have.
MODULE = "semel pipeline file"


def load(path: Path) -> Pipeline:
    """The pipeline that a file declares. DeclarationError if there is none, or if the file cannot be run."""
    path = path.absolute()
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path} is not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    # Behind Python's own, which a file beside this one must not replace.
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
    """Let the functions of the file, and of modules beside it, go to the tasks as they are.

    A task cannot import them: it may run on another machine, and a file that has the name of one of Python's
    own modules must not stand in its way.
    """
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        place = file.parent.parent if file.name == "__init__.py" else file.parent
        if place == directory and "." not in name and name != "__main__":
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _where(path: Path, error: Exception) -> str:
    """The error, and the last line of the file on the way to it."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}"
