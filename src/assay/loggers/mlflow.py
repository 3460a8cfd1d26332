"""MLflow: a tracking server, a database, or a folder of files in the run's directory.

Assay writes through MLflow's client, which adds neither the user's name nor the machine's, and switches MLflow's own
telemetry off unless the environment says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from assay.loggers import Logger

_TAG = "assay.run"
_LONGEST = 500  # of a parameter, in older stores


@dataclass(kw_only=True)
class MLflow(Logger):
    """Logs one MLflow run.

    Attributes:
        uri: A tracking server, a database or a folder. None takes `MLFLOW_TRACKING_URI`, or else the folder `mlruns`
            in `directory`.
        experiment: The experiment; it is made if it is not there.
        title: The name of the run; None lets MLflow choose one.
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"
    OPTIONS: ClassVar[tuple[str, ...]] = ("uri", "experiment", "title")

    uri: str | None = None
    experiment: str = "assay"
    title: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client: Any = None
        self._id = ""

    @property
    def store(self) -> str:
        """Where it logs to."""
        return self.uri or os.environ.get("MLFLOW_TRACKING_URI") or (Path(self.directory) / "mlruns").resolve().as_uri()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        client = self._begun()
        for name, value in values.items():  # MLflow refuses parentheses
            client.log_metric(self._id, name.replace("(", "").replace(")", ""), value, step=step)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        client = self._begun()
        for name, value in settings.items():
            client.log_param(self._id, name, str(value)[:_LONGEST])

    def write_texts(self, texts: Mapping[str, str]) -> None:
        client = self._begun()
        for name, text in texts.items():
            client.log_text(self._id, text, name)

    def _begun(self) -> Any:
        if self._client is None:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            if "://" not in self.store or self.store.startswith("file:"):
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow asks for this word since 3.13
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self.store)
            found = client.get_experiment_by_name(self.experiment)
            experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
            self._id = self._earlier(client, experiment) or self._new(client, experiment)
            self._client = client
        return self._client

    def _earlier(self, client: Any, experiment: str) -> str | None:
        """The MLflow run that this run began before it was interrupted."""
        if self.run_id is None:
            return None
        found = client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{self.run_id}'", max_results=1)
        return None if not found else str(found[0].info.run_id)

    def _new(self, client: Any, experiment: str) -> str:
        tags = {} if self.run_id is None else {_TAG: self.run_id}
        return str(client.create_run(experiment, run_name=self.title, tags=tags).info.run_id)

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None


LOGGER = MLflow
