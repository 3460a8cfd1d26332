"""The cost of releases: events, ε of events, calibration, schedules, the ledger and budgets."""
