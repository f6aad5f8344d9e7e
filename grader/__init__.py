"""The grader: reads path.tsv and fixtures, runs them against a learner's code, reports verdicts."""

__version__ = "0.1.0"
