"""The files of this machine that a job needs on another one."""

import importlib.util
import pathlib
import re
import sysconfig
from collections.abc import Sequence

from tfrl.errors import UserError
from tfrl.launch import gin_files

# `gymnasium:module:Name-v0` imports the module.
_NAMES_MODULE = re.compile(r"\w+:([\w.]+):.+")
_INSTALLED = ("site-packages", "dist-packages")


def shipped(files: Sequence[str], bindings: Sequence[str] = ()) -> list[str]:
    """Returns the files and folders of the working directory that a configuration reads.

    These are the gin files and their includes, and the modules that they import or that the name of
    an environment imports. The package's gin files and installed modules are not among them.

    Args:
      files: Gin files, see `gin_files.resolve`.
      bindings: Gin bindings.

    Returns:
      Paths relative to the working directory.

    Raises:
      UserError: A gin file or a module is elsewhere on this machine.
    """
    here, result, modules = pathlib.Path.cwd(), dict[str, None](), set[str]()
    for name, file in gin_files.included(files).items():
        modules |= gin_files.imported(file)
        if isinstance(file, gin_files.RemoteFile):
            continue
        path = pathlib.PurePath(name)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"Gin file '{name}'",
                expected="a path relative to the working directory and within it: the file is "
                "copied to the other machine",
                got=f"'{name}'",
                remedy="Start the command in the folder of the gin files.",
            )
        if file == here / path:
            result[str(path)] = None
    for binding in gin_files.read(files, bindings):
        texts = (leaf for leaf in gin_files.leaves(binding.value) if isinstance(leaf, str))
        modules |= {match[1] for text in texts if (match := _NAMES_MODULE.fullmatch(text))}
    for module in sorted({module.partition(".")[0] for module in modules}):
        if (own := _file_of(module)) is not None:
            result[own] = None
    return list(result)


def _file_of(module: str) -> str | None:
    """Returns the file or folder of a top-level module of the working directory.

    None stands for an installed module, and for a name that is none.
    """
    spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if spec is not None and spec.has_location and not places:
        places = [str(spec.origin)]
    if module == "tfrl" or not places:
        return None
    path = pathlib.Path(places[0])
    standard = sysconfig.get_path("stdlib")
    if path.is_relative_to(standard) or any(folder in path.parts for folder in _INSTALLED):
        return None
    if path.parent.resolve() != pathlib.Path.cwd():
        raise UserError(
            f"Module {module} of the gin files",
            expected="a module of the working directory, which is copied to the other machine, or "
            "an installed one",
            got=str(path),
            remedy="Start the command in its folder, or pass its wheel as another --package and "
            "install it here, too.",
        )
    return path.name
