"""Arguments of Hugging Face's `Trainer` that would break ε, or that mean nothing in a private run: each is refused."""

from __future__ import annotations

from typing import Any

from assay.errors import ConfigError

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "train_sampling_strategy": (
        ("random",),
        "random: the plan's sampler draws the batches. Sampling by length, or in order, is not what ε is computed for",
    ),
    "dataloader_drop_last": ((False,), "False: a batch has as many records as were drawn, and none is dropped"),
    "auto_find_batch_size": (
        (False,),
        "False: a run that starts over takes more steps; per_device_train_batch_size bounds the memory",
    ),
    "neftune_noise_alpha": (
        (None,),
        "None: its noise depends on the longest record of the batch, so that a record would change the others",
    ),
    "fp16": ((False,), "False: a loss scaler skips steps that were charged; use bf16"),
    "fp16_full_eval": ((False,), "False; use bf16_full_eval"),
    "torch_compile": ((False,), "False: call model.compile() before you make the trainer"),
    "use_liger_kernel": ((False,), "False: its fused loss gives one value for the whole batch"),
    "deepspeed": ((None,), "None: gradients of single records are needed whole; start several processes with torchrun"),
    "fsdp": (
        (None, "", [], False),
        "None: PrivateTrainer keeps the whole model on every process; `assay.PrivateStep.shard` splits one",
    ),
    "parallelism_config": ((None,), "None: every process goes through the whole model with its own records"),
    "include_num_input_tokens_seen": (("no", False), "no: the number of words that were drawn is not covered by ε"),
    "skip_memory_metrics": ((True,), "True: the memory of a step tells how many records were drawn"),
    "debug": (("", [], None), "nothing: it prints activations of records"),
    "enable_jit_checkpoint": (
        (False,),
        "False: it saves between a step's gradient and its optimizer; use save_steps, and resume from the last",
    ),
}
"""The accepted values of an argument, and what to do instead of another one."""

_FUSED = ("lomo", "layerwise")


def check_arguments(args: Any) -> None:
    """Refuse arguments under which ε would not hold.

    Args:
        args: `TrainingArguments`.

    Raises:
        ConfigError: Names the argument.
    """
    for name, (accepted, instead) in _REFUSED.items():
        value = getattr(args, name, accepted[0])
        if value not in accepted:
            raise ConfigError(name, value, instead)
    optim = str(getattr(args.optim, "value", args.optim))
    if any(word in optim for word in _FUSED):
        raise ConfigError(
            "optim", optim, "an optimizer that steps once, when the private gradient of all layers is there"
        )
    if args.n_gpu > 1:
        raise ConfigError(
            "n_gpu", args.n_gpu, "one GPU in each process: start one process for each GPU with torchrun, or set "
            "CUDA_VISIBLE_DEVICES",
        )  # fmt: skip


def check_distribution(trainer: Any) -> None:
    """Refuse ways to split work that `accelerate` was configured for outside the arguments.

    Args:
        trainer: The trainer, made.

    Raises:
        ConfigError: The work is split in another way than one whole model for each process.
    """
    kind = str(getattr(trainer.accelerator.distributed_type, "value", trainer.accelerator.distributed_type))
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU", "MPS"):
        raise ConfigError("accelerate", kind, "one whole model for each process, as torchrun starts them")
    if trainer.accelerator.scaler is not None:  # accelerate takes its precision from the environment, too
        raise ConfigError("mixed_precision", trainer.accelerator.mixed_precision, _REFUSED["fp16"][1])
