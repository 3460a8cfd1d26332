"""The ways of carrying tasks to clients: Flower's simulation on one machine, Flower's deployment across machines."""
