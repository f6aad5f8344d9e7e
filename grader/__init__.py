"""The grader: reads path.tsv and fixtures, runs them against a learner's code, reports verdicts."""

__version__ = "0.1.0"
FORMAT = "1.0"  # of the fixture language and of the line protocol
