"""Small tools that every package may use: files, figures for people, specs, the registry, digests."""
