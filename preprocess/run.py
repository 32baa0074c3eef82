"""The whole way from sources to committed versions: decide the tasks, have them done, commit what they made."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dataplane.catalog import (
    Dataset,
    DatasetVersion,
    Origin,
    Shard,
    commit_shards,
    open_dataset,
    parent_for,
    refuse_existing,
)
from dataplane.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InputError,
    VersionConflictError,
    WorkerDiedError,
)
from dataplane.metrics import Metrics
from dataplane.storage import Store, digest_of
from preprocess.engines import Engine, Inline, Outcome, Processes, Session, Step, available_cores
from preprocess.identity import check_alike, extended_schema, packed_metadata
from preprocess.input_records import InputRecord, new_inputs, read_records, write_records
from preprocess.packing import packed_schema
from preprocess.progress import Show, silent
from preprocess.recipe import Recipe
from preprocess.report import OutputReport, Report, dropped_of
from preprocess.sources import Inputs, find_inputs
from preprocess.steps import (
    GatherStep,
    Job,
    KeysStep,
    PortableSchema,
    ScatterStep,
    SurveyStep,
    WriteStep,
    buckets_of,
    decide,
    merged_survey,
)
from preprocess.steps.rows import Rows, global_filters
from preprocess.steps.scatter import log2_buckets_for
from preprocess.steps.sinks import check_text, vocabulary_of
from preprocess.steps.write import reads_texts_only
from preprocess.tasks import Task, cut_tasks
from preprocess.tokenizer import Vocabulary
from preprocess.tracker import Tracker
from preprocess.work import FOLDER, Work

_log = logging.getLogger(__name__)

Unfinished = Callable[[Report], None]


@dataclass(frozen=True)
class _Plan:
    """What has to be done, before anything is."""

    job: Job
    inputs: Inputs
    unchanged: int
    tasks: Sequence[Task]
    """None until it is clear that there is something to do: cutting files may have to look into them."""
    bases: Mapping[str, Dataset | None]
    """The version that each output is to be put after."""
    vocabulary: Vocabulary | None


def preprocess(
    sources: Sequence[str],
    destination: str,
    recipe: Recipe = Recipe(),  # noqa: B008  # frozen
    *,
    append: bool = False,
    resume: bool = True,
    engine: Engine | None = None,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
    show: Show = silent,
    unfinished: Unfinished | None = None,
) -> Report:
    """Writes all records of the sources, in order, and commits them as the next version.

    Equal inputs and recipes make byte-identical datasets, whatever the engine. Nothing is visible until the version is
    committed; an error or an interruption leaves the dataset as it was, and the same call again goes on from the tasks
    that were finished. With `append`, inputs that the dataset has already are left out, and the others' rows come
    after those of the newest version. `resume=False` refuses a destination with unfinished work instead of going on.
    `engine` None takes a worker process for each core, or this process where there is little to do. `unfinished`
    is called with the report of what is done when the run is interrupted.

    Raises:
        InputError: a source is missing or is not what it claims to be, an input changed since it was appended, or all
            of them have no rows.
        DatasetExistsError: there is a version of other inputs or another recipe, and `append` was not asked for.
        DatasetNotFoundError: `append` was asked for and there is no version.
        VersionConflictError: another writer committed meanwhile, and these rows cannot come after its.
        WorkerDiedError: a worker process was killed.
        ValueError: the recipe does not go with the inputs, or with the dataset to append to.
        StoreError: a store cannot be reached, or refuses.
    """
    start = time.perf_counter()
    plan = _planned(sources, destination, recipe, append=append, storage_options=storage_options)
    if not append and (finished := _finished(plan, resume=resume)) is not None:
        return finished
    if append and not plan.inputs.files:
        return _nothing_new(plan)
    _look_at_other_work(plan.job.work(), resume=resume)
    plan = replace(plan, tasks=_tasks(plan))
    with show("preprocess", plan.inputs.num_bytes * _num_passes(plan.job)) as display:
        run = _Run(plan, Tracker(display))
        try:
            with (engine or local_engine(len(plan.tasks))).session() as session:
                versions = run.versions(session)
        except (KeyboardInterrupt, WorkerDiedError):
            if unfinished is not None:
                unfinished(run.report({}, time.perf_counter() - start))
            raise
    plan.job.work().clear()
    return run.report(versions, time.perf_counter() - start)


def local_engine(num_tasks: int) -> Engine:
    """A process for each core, or this one where there is too little to share out: native code uses all cores here."""
    cores = available_cores()
    return Processes(cores) if cores > 1 and num_tasks >= 2 * cores else Inline()


class _Run:
    """One run: its steps, what their tasks made, and what is committed of it."""

    def __init__(self, plan: _Plan, tracker: Tracker) -> None:
        self._plan = plan
        self._job = plan.job
        self._tracker = tracker
        self._work = plan.job.work()

    def versions(self, session: Session) -> dict[str, DatasetVersion]:
        """Has done what is left to do, and commits it."""
        plan = self._plan
        if not reads_texts_only(self._job.recipe):
            self._find_schema(session)
        self._find_block_schema()
        for number in range(len(global_filters(self._job))):
            self._step(session, KeysStep(self._job, number), plan.tasks)
            decide(self._job, number, plan.tasks)
        written = self._written(session)
        shards = {
            output: [Shard.from_json(shard) for outcome in written for shard in outcome.result[output]]
            for output in self._job.outputs
        }
        if not any(shards.values()):
            self._work.clear()
            raise InputError(f"nothing to write: {_described(plan.inputs)} without a row in them")
        return {output: self._committed(output, shards[output]) for output in self._job.outputs}

    def report(self, versions: Mapping[str, DatasetVersion], seconds: float) -> Report:
        """What was done so far; complete once there are versions."""
        return report_of(self._plan, self._tracker.counts(), versions, self._tracker, seconds)

    def _find_schema(self, session: Session) -> None:
        schema = self._job.recipe.reading.arrow_schema(self._job.recipe.columns)
        if schema is None:
            outcomes = self._step(session, SurveyStep(self._job), self._plan.tasks)
            schema = merged_survey(self._job, outcomes).schema()
        self._job = replace(self._job, schema=PortableSchema.of(schema))

    def _find_block_schema(self) -> None:
        """Binds all operations once, so that a mistake in them is found before there is work."""
        job, packing, vocabulary = self._job, self._job.recipe.packing, self._plan.vocabulary
        rows = None if job.schema is None else Rows(job, Metrics()).schema
        if rows is not None and job.recipe.split is not None:
            job.recipe.split.check(rows)
        if packing is None:
            assert rows is not None
            schema = rows
        else:
            assert vocabulary is not None
            if rows is not None:
                check_text(rows, job.recipe.reading.text_column)
            schema = packed_schema(packing.sequence_length, vocabulary.dtype)
        for base in self._plan.bases.values():
            if base is not None:
                schema = extended_schema(base, schema)
        self._job = replace(job, block_schema=PortableSchema.of(schema))

    def _written(self, session: Session) -> list[Outcome]:
        """The outcomes of the tasks that write shards, in the order of the rows."""
        plan = self._plan
        if self._job.recipe.shuffle is None:
            return self._step(session, WriteStep(self._job), plan.tasks, final=True)
        log2_buckets = log2_buckets_for(plan.inputs.num_bytes)
        scattered = self._step(session, ScatterStep(self._job, log2_buckets), plan.tasks, final=True)
        return self._step(session, GatherStep(self._job), buckets_of(scattered, plan.inputs.num_bytes), final=True)

    def _step(
        self,
        session: Session,
        step: Step,
        tasks: Sequence[Any],
        *,
        final: bool = False,  # Any: the step's tasks
    ) -> list[Outcome]:
        """The outcomes of all tasks, those of earlier runs too, in the order of the tasks.

        What the tasks of `final` steps count is what the run has counted.
        """
        done = self._intact(self._work.outcomes(step.name))
        self._tracker.begin(step.name, done, final=final)
        missing = [task for task in tasks if task.number not in done]
        for number, outcome in session.run(step, missing, self._tracker.update):
            self._tracker.finish(number, outcome)
            done[number] = outcome
        return [done[task.number] for task in tasks]

    def _intact(self, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        """Without those whose shards are no longer there: a clean-up may have taken them."""
        named = [output for output in self._job.outputs if any(output in each.result for each in outcomes.values())]
        sizes = {output: self._job.store(output).scan("shards") for output in named}

        def is_there(output: str, shard: Shard) -> bool:
            stat = sizes[output].get(shard.path)
            return stat is not None and stat.num_bytes == shard.num_bytes

        return {
            number: outcome
            for number, outcome in outcomes.items()
            if all(
                is_there(output, Shard.from_json(shard)) for output in named for shard in outcome.result.get(output, ())
            )
        }

    def _committed(self, output: str, shards: Sequence[Shard]) -> DatasetVersion:
        store, base = self._job.store(output), self._plan.bases[output]
        if (newest := _newest(self._job, output)) is not None and _is_of(newest.version, self._job.fingerprint):
            return newest.version  # this very run did, and was killed before it could say so
        try:
            return self._commit(store, shards, base)
        except VersionConflictError:
            newest = _newest(self._job, output)
            if newest is not None and _is_of(newest.version, self._job.fingerprint):
                return newest.version  # somebody gave the same command at the same time
            if newest is None or base is None or self._job.recipe.packing is not None:
                raise
            self._check_room_after(newest)
            return self._commit(store, shards, newest)

    def _check_room_after(self, newest: Dataset) -> None:
        """Raises VersionConflictError or ValueError if these rows cannot come after those of another writer."""
        new_inputs(self._plan.inputs, read_records(newest), newest, others=True)
        assert self._job.block_schema is not None
        parent_for(newest, self._job.block_schema.value)

    def _commit(self, store: Store, shards: Sequence[Shard], base: Dataset | None) -> DatasetVersion:
        job = self._job
        assert job.block_schema is not None
        before = base.version.origin if base else None
        counts = {name: int(value) for name, value in self._tracker.counts().items()}
        records = write_records(store, [InputRecord.of(file) for file in self._plan.inputs.files])
        metadata = {}
        if self._plan.vocabulary is not None:
            metadata = packed_metadata(job.recipe, self._plan.vocabulary, counts, base)
        return commit_shards(
            store,
            shards,
            schema=job.block_schema.value,
            block_format=job.recipe.encoding.format,
            metadata=metadata,
            parent=base.version if base else None,
            origin=Origin(
                run=job.fingerprint,
                num_tasks=job.first_task + self._most_tasks(),
                inputs=(*(before.inputs if before else ()), records),
                counts=_lasting(counts),
            ),
        )

    def _most_tasks(self) -> int:
        return max(len(self._plan.tasks), 1 << log2_buckets_for(self._plan.inputs.num_bytes))


def _planned(
    sources: Sequence[str],
    destination: str,
    recipe: Recipe,
    *,
    append: bool,
    storage_options: Mapping[str, Any] | None,  # Any: as the stores' own options
) -> _Plan:
    job = Job(
        recipe=recipe,
        destination=destination,
        storage_options=storage_options,
        fingerprint="",
        known=None,
        first_task=0,
    )
    bases: dict[str, Dataset | None] = {output: _base(job, output, append=append) for output in job.outputs}
    # Outputs are committed in order: what the last one has, all have.
    base = bases[job.outputs[-1]]
    inputs = find_inputs(sources, format=recipe.reading.format, storage_options=storage_options)
    unchanged = 0
    if base is not None:
        found = len(inputs.files)
        inputs = new_inputs(inputs, read_records(base), base)
        unchanged = found - len(inputs.files)
    vocabulary = vocabulary_of(job)
    job = replace(
        job,
        fingerprint=_fingerprint(recipe, inputs, base, vocabulary),
        known=PortableSchema.of(base.schema) if base else None,
        first_task=base.version.origin.num_tasks if base and base.version.origin else 0,
    )
    plan = _Plan(job=job, inputs=inputs, unchanged=unchanged, tasks=(), bases=bases, vocabulary=vocabulary)
    for base in bases.values():
        if base is not None:
            check_alike(base, recipe, vocabulary)
    return plan


def _tasks(plan: _Plan) -> list[Task]:
    return cut_tasks(plan.inputs, plan.job.readers(Metrics()), plan.job.recipe.task_bytes)


def _base(job: Job, output: str, *, append: bool) -> Dataset | None:
    if not append:
        return None
    base = open_dataset(job.url(output), storage_options=job.storage_options)
    if (ours := job.recipe.encoding.format) != (theirs := base.version.block_format):
        raise ValueError(
            f"{base.store.url}: its blocks are {theirs}, those to append would be {ours}; write {theirs} too"
        )
    return base


def _fingerprint(recipe: Recipe, inputs: Inputs, base: Dataset | None, vocabulary: Vocabulary | None) -> str:
    """Of everything that decides the bytes that a run makes."""
    parts = [
        "1",  # how tasks are cut and rows written; another number for another way
        recipe.to_json(),
        *(f"{name}={digest}" for name, digest in sorted(recipe.depends_on().items())),
        vocabulary.digest if vocabulary else "",
        base.version.fingerprint if base else "",
        *(f"{file}\0{file.num_bytes}\0{file.identity}" for file in inputs.files),
    ]
    return digest_of("\n".join(parts).encode()).hex()[:32]


def _num_passes(job: Job) -> int:
    """How often the inputs are read."""
    recipe = job.recipe
    survey = 0 if reads_texts_only(recipe) or recipe.reading.schema is not None else 1
    return survey + len(global_filters(job)) + (2 if recipe.shuffle else 1)


def _finished(plan: _Plan, *, resume: bool) -> Report | None:
    """The report of an earlier run that was the same and was finished; None if there was none, and there is room.

    Raises DatasetExistsError if there is a dataset, and it is not of this run, or not to be gone on with.
    """
    newest = {output: _newest(plan.job, output) for output in plan.job.outputs}
    versions = {name: each.version for name, each in newest.items() if each}
    ours = {name: version for name, version in versions.items() if _is_of(version, plan.job.fingerprint)}
    for output in versions:
        if output not in ours or not resume:
            refuse_existing(plan.job.store(output))
    if len(ours) < len(newest):
        return None
    plan.job.work().clear()
    plan = replace(plan, tasks=_tasks(plan))
    origin = ours[plan.job.outputs[0]].origin
    assert origin is not None
    return report_of(plan, origin.counts, ours, Tracker(None), 0.0)


def _newest(job: Job, output: str) -> Dataset | None:
    try:
        return open_dataset(job.url(output), storage_options=job.storage_options)
    except DatasetNotFoundError:
        return None


def _is_of(version: DatasetVersion, fingerprint: str) -> bool:
    return version.origin is not None and version.origin.run == fingerprint


def _nothing_new(plan: _Plan) -> Report:
    versions = {output: base.version for output, base in plan.bases.items() if base}
    return report_of(plan, {}, versions, Tracker(None), 0.0)


def _look_at_other_work(work: Work, *, resume: bool) -> None:
    """Says what unfinished work lies in the destination. Raises DatasetExistsError if there is some and no `resume`."""
    runs = {path.split("/")[1] for path in work.store.list(FOLDER)}
    if runs and not resume:
        raise DatasetExistsError(
            f"{work.store.url}: unfinished work of {len(runs)} earlier runs is here; go on without --no-resume, "
            "or choose an empty destination"
        )
    if others := runs - {work.fingerprint}:
        _log.warning(
            "%s: unfinished work of %d other runs (other inputs or another recipe) is here and is not used; "
            "`dataplane gc` removes what is old",
            work.store.url,
            len(others),
        )


def _described(inputs: Inputs) -> str:
    empty = f" and {inputs.num_empty} empty ones" if inputs.num_empty else ""
    return f"{len(inputs.files)} inputs{empty}"


def _lasting(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that depend on inputs and recipe alone, for whoever asks later."""
    kept = ("documents", "tokens", "rows", "raw_bytes", "blocks")
    return {name: value for name, value in sorted(counts.items()) if name in kept or dropped_of({name: value})}


def report_of(
    plan: _Plan,
    counts: Mapping[str, float],
    versions: Mapping[str, DatasetVersion],
    tracker: Tracker,
    seconds: float,
) -> Report:
    """What a run did, from what its tasks counted and what was committed."""
    inputs = plan.inputs
    return Report(
        destination=plan.job.destination,
        complete=bool(versions),
        outputs=tuple(OutputReport.between(name, version, plan.bases[name]) for name, version in versions.items()),
        input_files=len(inputs.files) + inputs.num_empty + plan.unchanged,
        empty_files=inputs.num_empty,
        hidden_files=inputs.num_hidden,
        unchanged_files=plan.unchanged,
        input_bytes=inputs.num_bytes,
        documents=int(counts.get("documents", 0)),
        dropped=dropped_of(counts),
        tokens=int(counts.get("tokens", 0)),
        tasks=len(plan.tasks),
        tasks_resumed=tracker.num_resumed,
        peak_worker_bytes=tracker.peak_bytes,
        seconds=round(seconds, 3),
    )
