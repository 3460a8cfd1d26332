"""Accountants: which releases each class of event stands for. One file per family of events.

The registry finds every file here that defines `ACCOUNTANTS`. What they derive from is in `assay.accounting.events`.
"""
