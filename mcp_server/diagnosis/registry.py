"""Every cause that can be suspected, and every observation that can be made: found, not listed.

A detector is a function `detect…` of a module in `causes/`, an observation a class of a module in `observe/`.
Neither depends on the order.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType

from mcp_server.diagnosis import causes, observe
from mcp_server.diagnosis.planner import Observation
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect

Detector = Callable[[DiagnosisState], Iterator[Suspect]]


def _defined_in(folder: ModuleType) -> Iterator[tuple[str, object]]:
    """What the modules of a folder define, by name; not what they import."""
    for found in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{found.name}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__:
                yield name, value


DETECTORS: tuple[Detector, ...] = tuple(
    value for name, value in _defined_in(causes) if name.startswith("detect") and inspect.isfunction(value)
)
OBSERVATIONS: tuple[type[Observation], ...] = tuple(
    value
    for _, value in _defined_in(observe)
    if isinstance(value, type) and issubclass(value, Observation) and not inspect.isabstract(value)
)


def observations() -> list[Observation]:
    """One of each, in no particular order."""
    return [make() for make in OBSERVATIONS]
