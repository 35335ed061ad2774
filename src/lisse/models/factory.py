"""``package.module:factory``: a model that a person's own code makes."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

from torch import nn


def from_factory(name: str, options: dict[str, Any]) -> nn.Module:
    """Import ``package.module`` (the current folder counts) and call ``factory(**options)``, or take the module it is.

    This runs the person's code; that is what the spec asks for.
    """
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        # Last, as load_data does: a file here must not hide a library.
        sys.path.append(here)
    try:
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module that is there but imports one that is not keeps its own error.
            if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
                raise
            raise ValueError(
                f"load_model: {module_name} must be importable, got no module {error.name!r}. Install it, or run from "
                f"the folder that holds it (now {here})."
            ) from error
        for part in attribute.split("."):
            if not hasattr(found, part):
                near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
                advice = f"Did you mean {' or '.join(near)}?" if near else "Check the name after the colon."
                raise ValueError(f"load_model: {name} must exist, got no {part!r} in {module_name}. {advice}")
            found = getattr(found, part)
        if isinstance(found, nn.Module):
            if options:
                raise ValueError(
                    f"load_model: {name} must be a function to take options ({', '.join(options)}), got a module "
                    "already built. Leave the options out."
                )
            return found
        if not callable(found):
            raise TypeError(
                f"load_model: {name} must be a function or an nn.Module, got {type(found).__name__}. "
                "Name a factory that returns the network."
            )
        try:
            model = found(**options)
        except TypeError as error:
            raise TypeError(
                f"load_model: {name} must accept the options {options}, got: {error}. They are passed as keywords."
            ) from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"load_model: {name} must return an nn.Module, got {type(model).__name__}. Return the network itself."
        )
    return model
