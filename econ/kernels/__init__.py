"""Small torch kernels that check the book's arithmetic by running it.

Importing this package loads torch and deals with the traps of timing it on a CPU; see `_setup`.
Nothing else in `econ` needs torch, and no kernel imports the rest of `econ` at module level.
"""

from econ.kernels import _setup

__all__ = ["_setup"]
