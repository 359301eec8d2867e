"""The updates of a Learner on episodes and iterators."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.learners.minibatch_loop import Cut
from tfrl.learners.minibatches import Remainder, host_minibatch_indices, whole_number
from tfrl.learners.observing import observe_episodes
from tfrl.learners.planning import MinibatchSize
from tfrl.learners.reports import Results, mean_of
from tfrl.learners.updating import CompileMode, Updating, checked_key
from tfrl.types import Nest


class Feeding(Updating):
    """Updates on what is not one batch; a part of `Learner`."""

    def _update_from_changing_batch(
        self,
        batches: dict[str, Nest],
        *,
        timesteps: Any,
        key: tf.Tensor | None,
        compile: CompileMode,
        minibatch_size: MinibatchSize,
        **options: Any,
    ) -> Results:
        """As `update_from_batch`, for numbers of rows that change without a new trace."""
        steps = self._steps(timesteps)
        batches = batches_lib.as_tensors(self._to_train(batches)) if batches else {}
        plan = self._plan_of_process(batches, minibatch_size, **options)
        if plan is None:
            return self._nothing(steps)
        key = self._default_key() if key is None else checked_key(key)
        indices = {}
        for i, (m, one) in enumerate(plan.modules.items()):
            words = [*np.asarray(key).astype(np.uint32).tolist(), i]
            cut = host_minibatch_indices(one, words)[: plan.steps]
            indices[m] = tf.constant(cut, tf.int32)
        padded = {m: p.padded for m, p in plan.modules.items()}

        def run(
            batches: dict[str, Nest],
            indices: dict[str, tf.Tensor],
            key: tf.Tensor,
            timesteps: tf.Tensor,
        ) -> Results:
            cut = Cut(
                indices=self._shared_out(indices),
                steps=tf.shape(next(iter(indices.values())))[0],
                padded=padded,
                whole=dict.fromkeys(batches, False),
            )
            jit = compile == "xla" and self.replicas.several
            state = self.learner_state
            return self._train(state, batches, cut, key, timesteps, jit=jit)[1]

        fn = self._compiled_as(compile, ("changing", tuple(padded.items())), run)
        return self._call(fn, batches, indices, key, steps)

    def update_from_episodes(
        self,
        episodes: Sequence[Any],
        *,
        timesteps: int | Mapping[str, int] | None = None,
        num_epochs: int = 1,
        minibatch_size: MinibatchSize = None,
        shuffle: bool = True,
        remainder: Remainder = "wrap",
        num_total_minibatches: int | None = None,
        key: tf.Tensor | None = None,
        compile: CompileMode = "graph",
    ) -> Results:
        """Trains on episodes, through the learner connector pipeline.

        Their number of steps changes from call to call, hence the other default of `remainder`.

        Args:
          episodes: `SingleAgentEpisode`s or `MultiAgentEpisode`s, or one of them; at least one
            step.
          timesteps: See `update_from_batch`, as all that follow.
          num_epochs: Passes over the steps.
          minibatch_size: Steps (or sequences) of a gradient step.
          shuffle: A fresh permutation in every epoch.
          remainder: What happens to steps that do not fill a minibatch.
          num_total_minibatches: Gradient steps to take.
          key: See `update_from_batch`.
          compile: "graph", "xla" or "eager".

        Raises:
          UserError: As `update_from_batch`; for an empty list.
        """
        self._check_built("update_from_episodes")
        episodes = _listed(episodes)
        trained = self._may_train()
        from tfrl.learners.connectors import MODULES_TO_TRAIN, default_learner_pipeline

        if self.learner_connector is None:
            self.learner_connector = default_learner_pipeline({m: self.modules[m] for m in trained})
        shared_data: dict[str, Any] = {MODULES_TO_TRAIN: trained}
        batches = self.learner_connector(
            modules=self.modules,
            states={m: self.module_state(m) for m in self.modules},
            batch={},
            episodes=episodes,
            shared_data=shared_data,
        )
        report = self._update_from_changing_batch(
            batches,
            timesteps=timesteps,
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle=shuffle,
            remainder=remainder,
            num_total_minibatches=num_total_minibatches,
            key=key,
            compile=compile,
        )
        seen = shared_data.get("module_episodes", {})
        observe_episodes(self, {m: own for m, own in seen.items() if m in report})
        for module_id, metrics in shared_data.get("metrics", {}).items():
            if module_id in report:
                row = {name: float(value) for name, value in metrics.items()}
                report[module_id].update(row)
                self.metrics.log_dict(row, module_id)
        return report

    def _may_train(self) -> list[str]:
        """The modules that an update may train; a function of the rows is asked once there are."""
        return [
            m
            for m, module in self.modules.items()
            if (
                module.updates
                if callable(self.policies_to_train)
                else self.should_module_be_updated(m)
            )
        ]

    def update_from_iterator(
        self,
        iterator: Iterable[Nest] | Iterator[Nest],
        num_iters: int = 1,
        *,
        timesteps: int | Mapping[str, int] | None = None,
        compile: CompileMode = "graph",
        **options: Any,
    ) -> Results:
        """Trains on the batches that an iterator gives, one update each.

        Args:
          iterator: Gives batches as `update_from_batch` takes them, a tf.data iterator say.
          num_iters: How many to take.
          timesteps: See `update_from_batch`.
          compile: "graph", "xla" or "eager".
          **options: Further arguments of `update_from_batch`.

        Returns:
          The means of the results of the updates.

        Raises:
          UserError: When the iterator has fewer; what it gave has been trained on.
        """
        self._check_built("update_from_iterator")
        number = whole_number(num_iters)
        if number is None or number < 1:
            raise UserError(
                "num_iters",
                expected="a whole number of at least 1",
                got=repr(num_iters),
                remedy="Say how many batches to take.",
            )
        try:
            iterator = iter(iterator)
        except TypeError:
            raise UserError(
                "the iterator of update_from_iterator",
                expected="what gives batches, a list or a tf.data.Dataset say",
                got=repr(iterator),
                remedy="Give update_from_batch a single batch.",
            ) from None
        results: list[Results] = []
        for i in range(number):
            try:
                batch = next(iterator)
            except StopIteration:
                raise UserError(
                    "the iterator of update_from_iterator",
                    expected=f"{num_iters} batches",
                    got=f"{i}, then its end",
                    remedy="Let it repeat, or ask for fewer; the learner was trained on those "
                    "that came.",
                ) from None
            results.append(
                self.update_from_batch(batch, timesteps=timesteps, compile=compile, **options)
            )
        return mean_of(results)


def _listed(episodes: Any) -> list[Any]:
    """The episodes, at least one of them with a step."""
    kinds = (SingleAgentEpisode, MultiAgentEpisode)
    if isinstance(episodes, kinds):
        episodes = [episodes]
    listed = list(episodes) if isinstance(episodes, Iterable) else [episodes]
    wrong = sorted({type(e).__name__ for e in listed if not isinstance(e, kinds)})
    if wrong:
        raise UserError(
            "episodes",
            expected="SingleAgentEpisodes and MultiAgentEpisodes",
            got=", ".join(wrong),
            remedy="Make them of a rollout with SingleAgentEpisode.from_trajectory.",
        )
    if not sum(len(e) for e in listed):
        raise batches_lib.empty("episodes")
    return listed
