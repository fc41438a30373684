"""Running a training again from its flight log: serially, to the same bits, or to the first place where they differ."""

from rollmill.retrace.comparison import Diverged
from rollmill.retrace.retrace import Retrace, Step

__all__ = ["Diverged", "Retrace", "Step"]
