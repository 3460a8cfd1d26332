"""Time of a step of each method over one of DP-SGD: `python -m benchmarks.methods [--quick] [--model NAME]`

One thread, all methods in one process, a step each in every round, the fastest of many rounds (`benchmarks.engine`).
Spectral methods are measured against DP-SGD with per-layer clipping as well, which is what they share with it.
"""

from __future__ import annotations

import argparse
import json

import torch

from assay import methods
from assay.gradients.clipping import PerLayer
from benchmarks import report
from benchmarks.contestants import CLIP, Private, Task, private
from benchmarks.engine import add_options
from benchmarks.timing import effort_of, timed

BASE = "DP-SGD"
_LAYERED = PerLayer(bound=CLIP)

# The most that a method's step may take, in steps of DP-SGD; None where nothing was promised.
FORMS: dict[str, tuple[Private, float | None]] = {
    BASE: (private, None),
    "DP-SGD, per-layer clipping": (Private(clip=_LAYERED), None),
    "Laplacian smoothing (lssgd)": (Private(method=methods.get("lssgd")), 1.15),
    "Bayes, map": (Private(denoise=("bayes:nu=0.01",)), 1.15),
    "Bayes, mean": (Private(denoise=("bayes:nu=0.01,emit=mean",)), 1.15),
    "Bayes, mean, learnt priors": (Private(denoise=("bayes:nu=0.01,emit=mean,priors=learnt",)), 1.15),
    "GReDP, sound": (Private(method=methods.get("gredp"), clip=_LAYERED), 1.5),
    "GReDP, published": (Private(method=methods.get("gredp", variant="published"), clip=_LAYERED), 1.5),
    "GReDP, published, real noise": (
        Private(method=methods.get("gredp", variant="published", noise_form="real"), clip=_LAYERED),
        None,
    ),
    "Spectral-DP, sound": (Private(method=methods.get("spectral"), clip=_LAYERED), 1.5),
    "Spectral-DP, published": (Private(method=methods.get("spectral", variant="published"), clip=_LAYERED), 1.5),
    "discretise and denoise": (Private(method=methods.get("discrete")), None),
}
TASKS = {
    task.model: task
    for task in (
        Task(model="model3", shape=(3, 32, 32), batch=64),
        Task(model="lenet5", shape=(1, 28, 28), batch=256),
        Task(model="mnist-cnn", shape=(1, 28, 28), batch=256),
    )
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description="time of a method's step")
    add_options(parser, list(TASKS))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(report.THREADS)
    found, text = {}, [report.described()]
    for name in options.model or ["model3"]:
        task = TASKS[name]
        milliseconds, rounds = timed(task, {form: maker for form, (maker, _) in FORMS.items()}, effort_of(options))
        ratios = {form: ms / milliseconds[BASE] for form, ms in milliseconds.items()}
        found[name] = {"batch": task.batch, "rounds": rounds, "milliseconds": milliseconds, "over_dpsgd": ratios}
        rows = []
        for form, (_, target) in FORMS.items():
            limit = "" if target is None else f"{target:.2f}"
            met = "" if target is None else "yes" if ratios[form] <= target else "no"
            rows.append([form, f"{milliseconds[form]:.2f}", f"{ratios[form]:.2f}", limit, met])
        text.append(f"{name}, batch {task.batch}, fastest of {rounds} rounds\n")
        text.append(report.table(["", "ms", "/ DP-SGD", "target", "met"], rows) + "\n")
    print(json.dumps({"machine": report.machine(), "methods": found}, indent=2) if options.json else "\n".join(text))


if __name__ == "__main__":
    main()
