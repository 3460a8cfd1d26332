"""Small tools that every package may use: files, rounding for people, the grammar of settings, registries, digests."""
