"""Errors that this package raises on purpose, and the exit codes that the command line gives them."""

from __future__ import annotations


class NeuroShardError(Exception):
    """Base of every error that the package raises on purpose."""

    exit_code = 1


class InputError(NeuroShardError, ValueError):
    """Something given by the user cannot be used; the message names it and says how to mend it."""

    exit_code = 2


class InfeasiblePlanError(NeuroShardError):
    """The inputs are sound, but no plan was found that keeps every memory cap."""

    exit_code = 3


class MissingDependencyError(NeuroShardError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    exit_code = 4
