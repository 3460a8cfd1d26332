"""Campaigns that kill, starve, damage and feed rubbish to Assay: `python -m tools.soak --minutes 10`.

Each trial draws from its own seed, which is printed with every violation. It is no part of the test suite.
"""
