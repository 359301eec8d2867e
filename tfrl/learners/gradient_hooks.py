"""The steps of one update of a Learner, for subclasses to override; all are traced."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import networks, struct
from tfrl.agents.core import Update
from tfrl.learners import in_place
from tfrl.learners.batches import valid_rows
from tfrl.learners.learner_core import LearnerCore, LearnerState
from tfrl.learners.module_config import ModuleConfig
from tfrl.learners.modules import SelfSupervisedLossAPI
from tfrl.learners.parameters import ParamDict
from tfrl.learning import leaves
from tfrl.learning.gradients import clip_gradients, differentiate
from tfrl.types import AgentState, Nest


class GradientHooks(LearnerCore):
    """Losses, gradients and their application; a part of `Learner`.

    They run on values on every replica, but for the two hooks around the gradient steps, which run
    outside the replicas.
    """

    @property
    def _loss_by_learner(self) -> bool:
        """Whether a subclass computes losses itself, so that modules need none of their own."""
        mine = type(self)
        return (
            mine.compute_losses is not GradientHooks.compute_losses
            or mine.compute_loss_for_module is not GradientHooks.compute_loss_for_module
        )

    def compute_losses(
        self,
        *,
        updates: Mapping[str, Update],
        states: Mapping[str, AgentState],
        batch: Mapping[str, Nest],
        keys: Mapping[str, tf.Tensor],
    ) -> dict[str, Any]:
        """Returns the losses that are differentiated together; override for a joint loss.

        Args:
          updates: `{module_id: Update}` of this position in the modules' lists.
          states: `{module_id: AgentState}`, values.
          batch: `{module_id: rows}` of this replica.
          keys: `{module_id: int32 [2]}`.

        Returns:
          `{module_id: loss}` or `{module_id: (loss, {name: scalar})}`. The gradients are those of
          their sum. Every loss is a mean over the valid rows.
        """
        losses: dict[str, Any] = {}
        for module_id, update in updates.items():
            module = self.modules[module_id]
            args = (states[module_id].params, states[module_id], batch[module_id], keys[module_id])
            if isinstance(module, SelfSupervisedLossAPI):
                losses[module_id] = module.compute_self_supervised_loss(*args)
            else:
                losses[module_id] = self.compute_loss_for_module(module_id, update, *args)
        return losses

    def compute_loss_for_module(
        self, module_id: str, update: Update, params: Nest, state: AgentState, batch: Nest, key: Any
    ) -> Any:
        """Returns the loss, or (loss, metrics), of one update of a module; override to change it.

        Args:
          module_id: The module.
          update: Which of its updates.
          params: `{group: nest}`, values that gradients flow to.
          state: All of the module's state, values.
          batch: Rows `[n, ...]`.
          key: int32 [2].
        """
        return update.loss(params, state, batch, key)

    def compute_gradients(
        self,
        loss_per_module: Mapping[str, tf.Tensor],
        gradient_tape: tf.GradientTape,
        params: ParamDict,
    ) -> ParamDict:
        """Returns the gradients of the sum of the losses, of the same keys as `params`.

        Args:
          loss_per_module: `{module_id: scalar}`.
          gradient_tape: The tape that watched `params`.
          params: `{param ref: value}`.
        """
        losses = list(loss_per_module.values())
        total = losses[0] if len(losses) == 1 else tf.add_n(losses)
        found = differentiate(gradient_tape, total, list(params.values()))
        return dict(zip(params, found, strict=True))

    def postprocess_gradients(self, gradients_dict: ParamDict) -> ParamDict:
        """Returns gradients as they are applied, after their sum over the replicas.

        By default each module's go through `postprocess_gradients_for_module`, those of optimizers
        that span modules under the id "__all_modules__".
        """
        processed = dict(gradients_dict)
        entries = self.optimizer_entries()
        for owner in dict.fromkeys(owner for owner, _, _ in entries):
            refs = [p.ref() for o, _, e in entries if o == owner for p in e.params]
            own = {ref: gradients_dict[ref] for ref in refs if ref in gradients_dict}
            if own:
                processed.update(
                    self.postprocess_gradients_for_module(owner, self._config(owner), own)
                )
        return processed

    def postprocess_gradients_for_module(
        self, module_id: str, config: ModuleConfig, gradients_dict: ParamDict
    ) -> ParamDict:
        """Returns a module's gradients, by default clipped for each of its optimizers."""
        processed = dict(gradients_dict)
        for _, entry in self._optimizers.of_module(module_id):
            own = self.filter_param_dict_for_optimizer(gradients_dict, entry.optimizer)
            if own:
                clipped, _ = clip_gradients(
                    list(own.values()),
                    config.grad_clip,
                    config.grad_clip_by,  # type: ignore[arg-type]
                )
                processed.update(zip(own, clipped, strict=True))
        return processed

    def apply_gradients(self, gradients_dict: ParamDict) -> None:
        """Applies gradients `{param ref: gradient}` by the optimizers of their variables."""
        for _, _, entry in self.optimizer_entries():
            params = [p for p in entry.params if p.ref() in gradients_dict]
            if params:
                entry.apply([gradients_dict[p.ref()] for p in params], params)

    def stepped(self, state: LearnerState, gradients_dict: ParamDict) -> LearnerState:
        """Returns a state of tensors after `apply_gradients` of the gradients."""
        values = {
            variable.ref(): x
            for m, own in self._states.items()
            for variable, x in zip(
                tf.nest.flatten(own), tf.nest.flatten(state.agent_state[m]), strict=True
            )
        }
        after: ParamDict = {}
        for module_id, name, entry in self.optimizer_entries():
            params = [p for p in entry.params if p.ref() in gradients_dict]
            if not params:
                continue
            stepped, slots = entry.stepped(
                [gradients_dict[p.ref()] for p in params],
                params,
                [values[p.ref()] for p in params],
                state.opt_state[module_id][name],
            )
            after.update({p.ref(): x for p, x in zip(params, stepped, strict=True)})
            state = state.with_slots(module_id, name, slots)
        return self._replaced(state, after)

    def _replaced(self, state: LearnerState, values: Mapping[Any, tf.Tensor]) -> LearnerState:
        """A state of tensors with others in the place of variables, wherever they are shared."""

        def of_module(own: AgentState, given: AgentState) -> AgentState:
            return tf.nest.map_structure(lambda v, x: values.get(v.ref(), x), own, given)

        found = {m: of_module(own, state.agent_state[m]) for m, own in self._states.items()}
        return state.replace(agent_state=found)  # type: ignore[no-any-return]

    def with_param_updates(
        self, state: LearnerState, module_id: str, param_updates: dict[str, Any]
    ) -> LearnerState:
        """Returns the state with `{group: nest}` where no gradient trains the module."""
        changes = {}
        for group, nest in param_updates.items():
            _, variables = networks.split_leaves(self._states[module_id].params[group])
            _, values = networks.split_leaves(nest)
            changes.update({v.ref(): (v, x) for v, x in zip(variables, values, strict=True)})
        if not leaves.in_place(state):
            return self._replaced(state, {ref: x for ref, (_, x) in changes.items()})
        for variable, value in changes.values():
            variable.assign(value)
        return state

    def count_valid_rows(self, module_id: str, batch: Nest) -> tf.Tensor:
        """Returns how many rows of a replica's minibatch count; a float32 scalar.

        A replica's loss has the weight of its share of them: the sum over the replicas is then the
        mean over all valid rows. Override it where a loss is a mean over something else.
        """
        return valid_rows(batch)

    def before_gradient_based_update(self, *, timesteps: tf.Tensor) -> None:
        """Traced once before the gradient steps of an update; for subclasses, does nothing itself.

        Args:
          timesteps: int64 scalar, env steps so far; `self.learner_steps` counts gradient steps.
        """

    def after_gradient_based_update(self, *, timesteps: tf.Tensor) -> None:
        """Traced once after the gradient steps of an update; for subclasses, does nothing itself.

        Args:
          timesteps: int64 scalar, env steps so far; `self.learner_steps` counts gradient steps.
        """

    def before_gradient_based_update_for_module(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced before the gradient steps: learning rates, and the module's `before_update`.

        Args:
          module_id: The module.
          timesteps: int64 scalar, env steps so far.
        """
        self.prepared(self.learner_state, module_id, timesteps)

    def after_gradient_based_update_for_module(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced after the gradient steps: the module's `after_update`, target networks say."""
        self.finished(self.learner_state, module_id, timesteps)

    def with_rates(self, state: LearnerState, owner: str, timesteps: tf.Tensor) -> LearnerState:
        """Returns the state with the learning rates of an owner's optimizers at `timesteps`."""
        for _, name, entry in self.optimizer_entries_of(owner):
            if entry.schedule is not None:
                slots = state.opt_state[owner][name]
                rate = leaves.put(slots["learning_rate"], entry.schedule(timesteps))
                state = state.with_slots(owner, name, {**slots, "learning_rate": rate})
        return state

    def prepared(self, state: LearnerState, module_id: str, timesteps: tf.Tensor) -> LearnerState:
        """Returns the state before the gradient steps of a module."""
        state = self.with_rates(state, module_id, timesteps)
        return self.changed(state, module_id, self.modules[module_id].before_update, timesteps)

    def finished(self, state: LearnerState, module_id: str, timesteps: tf.Tensor) -> LearnerState:
        """Returns the state after the gradient steps of a module."""
        module = self.modules[module_id]
        due = module.after_update_due(struct.values(state.agent_state[module_id]), timesteps)

        def change(state: LearnerState) -> LearnerState:
            # Read and written in the branch: values that pass through a `tf.cond` cost a graph
            # several operations each, whether it is taken or not.
            return self.changed(state, module_id, module.after_update, timesteps)

        return change(state) if due is None else leaves.cond(due, change, state)

    def follow_schedules(self, module_id: str, timesteps: tf.Tensor) -> None:
        """Traced where nothing is updated: the module's `before_update`, by which it acts."""
        hook = self.modules[module_id].before_update
        self.changed(self.learner_state, module_id, hook, timesteps)

    def changed(
        self, state: LearnerState, module_id: str, hook: Callable[..., AgentState], given: Any
    ) -> LearnerState:
        """Returns the state with a module's in it as `hook(state, given)` makes it."""
        before = struct.values(state.agent_state[module_id])
        after = hook(before, given)
        if after is before:
            return state
        changes = self._changes(module_id, before, after)
        if not leaves.in_place(state):
            return self._replaced(state, {v.ref(): new for v, _, new in changes})
        # One that two groups borrow changes once.
        own = Counter(id(variable) for variable, _, _ in changes)
        for variable, old, new in changes:
            if own[id(variable)] == 1:
                in_place.assign(variable, old, new)
            else:
                variable.assign(new)
        return state

    def assign(self, module_id: str, before: AgentState, after: AgentState) -> None:
        """Assigns the leaves of `after` that are not those of `before` to the variables."""
        for variable, _, new in self._changes(module_id, before, after):
            variable.assign(new)

    def _changes(
        self, module_id: str, before: AgentState, after: AgentState
    ) -> list[tuple[Any, Any, Any]]:
        """Variable, value before and value after of the leaves that are others after."""
        triples = zip(
            tf.nest.flatten(self._states[module_id]),
            tf.nest.flatten(before),
            tf.nest.flatten(after),
            strict=True,
        )
        return [(variable, old, new) for variable, old, new in triples if new is not old]
