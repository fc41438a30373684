"""Retracing: a training is repeated serially from its flight log, to the same bits or to the first difference."""

from rollmill.retrace.comparison import Diverged
from rollmill.retrace.retrace import Retrace, Step

__all__ = ["Diverged", "Retrace", "Step"]
