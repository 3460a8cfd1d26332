"""Federated training: the server's rounds, the clients' sites, and what carries bytes between them."""
