"""WORK: the steps of a run, each a list of tasks that any engine may run in any order."""

from preprocess.steps.gather import GatherStep, buckets_of
from preprocess.steps.job import Job, PortableSchema
from preprocess.steps.keys import KeysStep, decide
from preprocess.steps.scatter import ScatterStep
from preprocess.steps.survey import SurveyStep, merged_survey
from preprocess.steps.write import WriteStep

__all__ = [
    "GatherStep",
    "Job",
    "KeysStep",
    "PortableSchema",
    "ScatterStep",
    "SurveyStep",
    "WriteStep",
    "buckets_of",
    "decide",
    "merged_survey",
]
