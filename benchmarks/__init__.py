"""Speed and memory of the private step against plain training and Opacus: `python -m benchmarks`."""
