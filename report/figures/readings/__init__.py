"""Figures of the readings' page: a curve a statistic, baselines, training, intervals of logging."""

from report.figures.readings import baseline, curve, logging, training

DRAWINGS = (*baseline.DRAWINGS, *training.DRAWINGS, logging.DRAWING, *curve.DRAWINGS)
