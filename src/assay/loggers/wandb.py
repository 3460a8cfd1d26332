"""Weights & Biases. Nothing leaves this machine unless `mode` is `online`.

W&B by itself copies the console, the code, the state of git, the list of packages and the machine's figures. All that
is switched off: a console shows what ε does not cover, such as how many gradients were left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.errors import ConfigError, one_of
from assay.loggers import Logger

_MODES = ("offline", "online")


@dataclass(kw_only=True)
class WandB(Logger):
    """Logs one W&B run, by default offline: `wandb sync` uploads it when you want that.

    Attributes:
        project: The project.
        entity: Whose project it is; None for the one that W&B takes by default.
        title: The name of the run; None lets W&B choose one.
        mode: `offline` writes into `directory`, `online` sends.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"
    OPTIONS: ClassVar[tuple[str, ...]] = ("project", "entity", "title", "mode")

    project: str = "assay"
    entity: str | None = None
    title: str | None = None
    mode: str = "offline"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in _MODES:
            raise ConfigError("log wandb mode", self.mode, one_of(self.mode, _MODES))
        self._run: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._begun().log(dict(values), step=step)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        self._begun().config.update(dict(settings), allow_val_change=True)

    def write_texts(self, texts: Mapping[str, str]) -> None:
        import wandb

        artifact = wandb.Artifact("privacy-statement", type="privacy-statement")
        for name, text in texts.items():
            with artifact.new_file(name, encoding="utf-8") as file:
                file.write(text)
        self._begun().log_artifact(artifact)

    def _begun(self) -> Any:
        if self._run is None:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its own crash reports
            import wandb

            quiet = wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                save_code=False,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                silent=True,
            )
            known = self.run_id
            mode: Any = self.mode  # wandb checks the word
            again: Any = {} if known is None else {"id": known, "resume": "allow"}
            self._run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=self.title,
                mode=mode,
                dir=str(self.directory),
                settings=quiet,
                **again,
            )
        return self._run

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


LOGGER = WandB
