"""Federated learning: clients keep their records, the server sees messages; ε is about one client or one record.

`run` is the server's loop and `site` a client's step. They meet in bytes (`wire`), carried by whatever implements `carrier`.
"""
