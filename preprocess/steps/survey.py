"""The first look at the inputs: which columns of which types all rows together have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataplane.metrics import Metrics
from preprocess.engines import Outcome, Running
from preprocess.schema import Survey
from preprocess.steps.job import Job, StepRunner
from preprocess.tasks import Task


@dataclass(frozen=True)
class SurveyStep:
    """Tasks: pieces of the inputs. Each makes a survey of its rows."""

    job: Job
    name: str = "survey"

    def open(self) -> Running:
        metrics = Metrics()
        readers = self.job.readers(metrics)

        def make(task: Task) -> Mapping[str, Any]:  # Any: JSON
            survey = new_survey(self.job)
            for piece in task.pieces:
                readers[piece.file.form].survey(piece, survey)
            return {"survey": survey.to_json()}

        return StepRunner(self.name, self.job.work(), metrics, make)


def new_survey(job: Job) -> Survey:
    """A survey of no rows yet."""
    return Survey(job.recipe.columns, job.known.value if job.known else None)


def merged_survey(job: Job, outcomes: list[Outcome]) -> Survey:
    """The survey of all rows. Raises InputError where the inputs disagree."""
    survey = new_survey(job)
    for outcome in outcomes:
        survey.merge(Survey.from_json(outcome.result["survey"]))
    return survey
