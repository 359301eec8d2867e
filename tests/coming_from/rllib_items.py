"""Names of RLlib's Learner (Ray 2.44): RLlib's name, tfrl's name, difference.

`python -m tests.coming_from.pages` writes the table into docs/learner.md. `test_rllib.py` runs the
rows. "the same" means no difference, "same name" a difference in the last part. "none" means that
tfrl has no such thing, for the reason in the row.
"""

ITEMS = [
    # Construction.
    (
        "`Learner(config, module_spec, module)`",
        "`Learner(modules, config=...)`",
        "modules are objects without variables; the learner creates the variables; one "
        "`ModuleConfig` for all modules or one for each",
    ),
    (
        "`config.build_learner(env=env)`",
        "`LearnerConfig(agent, ...).build_learner(env=env)`",
        "returns a built learner; another `build()` changes nothing",
    ),
    ("`TfLearner`, `TorchLearner`, abstract methods", "`Learner`", "one class; TensorFlow"),
    ("`framework`", "`learner.framework`", '"tf2"'),
    ("`DEFAULT_OPTIMIZER`, `ALL_MODULES`, `DEFAULT_MODULE_ID`", "the same, in `tfrl.learners`", ""),
    (
        "`POLICY_LOSS_KEY`, `VF_LOSS_KEY`, `ENTROPY_KEY`, `LR_KEY`, `TOTAL_LOSS_KEY`",
        "same name, in `tfrl.learners`",
        "the strings are tfrl's metric names: `value_loss`, `learning_rate`, `loss`",
    ),
    (
        "`config.seed`",
        "`build(key)`, `LearnerConfig.seed`",
        "seeds no global generator: all draws derive from the key",
    ),
    ("`device`; `node`", "`learner.device`", "a string; `node` belongs to Ray"),
    ("`distributed`", "`learner.distributed`", "whether there are several replicas"),
    (
        "`module` (`MultiRLModule`)",
        "`learner.modules`, `learner.module_state(module_id)`",
        "logic and variables are separate",
    ),
    ("`iterator`", "`learner.iterator`", "the last iterator of `update_from_iterator`"),
    # Metrics.
    ("`metrics`", "`learner.metrics`, a `MetricsLogger`", ""),
    (
        "`log_value(key, value, reduce, window, ema_coeff, clear_on_reduce, with_throughput)`",
        "same name",
        "only numbers and arrays of one shape; `log` takes the same settings, with one name for "
        "each",
    ),
    (
        "`log_dict`, `log_time`, `peek`, `reduce`, `delete`, `reset`, `get_state`, `set_state`, "
        "`stats`, `tensors_to_numpy`",
        "same name but the last two; `log_dict` with `key=`",
        "`log_dict` without `key=` is `log` for each value, with its defaults; `reduce()` returns "
        "numbers, no dict of `Stats`; reading a result converts tensors",
    ),
    (
        "`log_value` in losses and hooks (tensor mode)",
        "same name, in graph mode and XLA too",
        "float32 scalars; the logger gets one number per update, reduced over minibatches and "
        "replicas; not within `apply_gradients`, a branch of the graph",
    ),
    # Building and optimizers.
    ("`build()`", "`build(key=0)`", "a second call changes nothing, as in RLlib"),
    (
        "`build`: the connector pipeline",
        "`learner_connector=`",
        "the first `update_from_episodes` creates the default one",
    ),
    (
        "`register_optimizer(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)`",
        "same name",
        "a trained parameter must have exactly one optimizer",
    ),
    (
        "`_check_registered_optimizer`: params is a list",
        "any iterable of variables",
        "checked by `register_optimizer`",
    ),
    (
        "`configure_optimizers()`",
        "same name",
        "registers the optimizers of compatible modules",
    ),
    (
        "`configure_optimizers_for_module(module_id, config)`",
        "`configure_optimizers_for_module(module_id)`",
        "not abstract: by default one Adam per entry of `updates`; settings are in "
        "`self.configs[module_id]`",
    ),
    (
        "`configure_optimizers` skips modules that are not compatible",
        "same name, for modules that `policies_to_train` excludes",
        "an incompatible module in `policies_to_train` is an error that lists its missing methods",
    ),
    (
        "`compute_gradients(loss_per_module, **kwargs)`",
        "`compute_gradients(loss_per_module, gradient_tape, params)`",
        "`loss_per_module[ALL_MODULES]` is the sum; returns gradients of all of `params`; with "
        "several replicas, a loss has the weight of its replica's rows",
    ),
    (
        "`postprocess_gradients(gradients_dict)`",
        "same name",
        "after the sum over the replicas (`TfLearner`: before)",
    ),
    (
        "`postprocess_gradients_for_module(module_id, config, module_gradients_dict)`",
        "`postprocess_gradients_for_module(module_id, config, gradients_dict)`",
        "by position",
    ),
    ("`grad_clip`, `grad_clip_by`", "the same, in `ModuleConfig`", ""),
    (
        "`log_gradients`: `gradients_<optimizer>_global_norm`",
        "`log_gradients`: `grad_norm`, `grad_norm/<optimizer>`",
        "the norm before clipping; after it, the norm is the limit",
    ),
    (
        "`apply_gradients(gradients_dict)`",
        "same name: once, with all gradients",
        "excludes modules with non-finite steps and stopped modules; it is then called for each "
        "other module",
    ),
    (
        "`get_optimizer(module_id, optimizer_name)`",
        "same name",
        "`DEFAULT_OPTIMIZER` is an agent's first one; optimizers have their updates' names",
    ),
    (
        "`get_optimizer`: the full name `<module>_<optimizer>`",
        "same name",
        "also without the module",
    ),
    ("`get_optimizer` raises KeyError", "same error", "also a `UserError`, which is a ValueError"),
    ("`get_optimizers_for_module(module_id=ALL_MODULES)`", "the same", ""),
    (
        "`filter_param_dict_for_optimizer`",
        "same name",
        "gradients are never None, so none is dropped",
    ),
    ("`get_param_ref`", "same name", "`variable.ref()`"),
    ("`get_parameters(module)`", "`get_parameters(module_id)`", "modules have no variables"),
    ("`_convert_batch_type`", "`update_from_batch`", "converts arrays and lists"),
    # Modules.
    (
        "`add_module(module_id, module_spec, config_overrides, new_should_module_be_updated)`",
        "`add_module(module_id, module, config_overrides=, policies_to_train=, state=)`",
        "returns the module; an error changes nothing",
    ),
    ("`validate_module_id`", "checked by `Learner` and `add_module`", "an id names folders"),
    (
        "`remove_module(module_id, new_should_module_be_updated)`",
        "`remove_module(module_id, policies_to_train=)`",
        "returns the module; the last module cannot be removed",
    ),
    (
        "`remove_module` deletes parameters, optimizers, metrics",
        "same name",
        "slots of other modules stay bit for bit",
    ),
    (
        "`should_module_be_updated(module_id, multi_agent_batch)`",
        "`should_module_be_updated(module_id, batch)`",
        "a function gets the rows of the module; False for a module with nothing to train",
    ),
    ("`policies_to_train` of the config", "`policies_to_train=`, `train_only`", ""),
    # Losses.
    (
        "`compute_losses(fwd_out, batch)`",
        "`compute_losses(updates=, states=, batch=, keys=)`",
        "no separate forward pass: the loss computes it from the parameters",
    ),
    (
        "`compute_loss_for_module(module_id, config, batch, fwd_out)`",
        "`compute_loss_for_module(module_id, update, params, state, batch, key)`",
        "the loss may return metrics or log them",
    ),
    (
        "`SelfSupervisedLossAPI.compute_self_supervised_loss`",
        "same name",
        "takes `(params, state, batch, key)`",
    ),
    # Updates.
    (
        "`update_from_batch(batch, timesteps, num_epochs, minibatch_size)`",
        "same name",
        "newer Ray: `update(batch=)`; here `update` is the traced core",
    ),
    (
        "`shuffle_batch_per_epoch`",
        "same name, or `shuffle`",
        "True by default, also in the first epoch: rows of a rollout are in order of time, so "
        "neighbours in a minibatch would be correlated",
    ),
    (
        "`minibatch_size` need not divide",
        '`Learner(..., remainder="wrap")`, or an argument of one call',
        "otherwise an error that names sizes that divide: no row is repeated silently",
    ),
    (
        "`MiniBatchCyclicIterator`",
        "`plan_minibatches`",
        'repeats the rows of a module with fewer; with "wrap" each epoch has whole minibatches',
    ),
    ("`num_epochs` without `minibatch_size`", "same name", "each epoch uses all rows"),
    (
        "`num_iters` and its deprecation",
        "none: an unknown argument is a TypeError",
        "only raises in RLlib",
    ),
    (
        "returns `metrics.reduce()` with own values",
        "returns the metrics of the update and all values logged since the last one",
        "values of `log` without `clear_on_reduce` stay in the logger until `reduce()`",
    ),
    (
        "leaves are `Stats`, which merge over learners",
        "numbers; `MetricsLogger.merge([learner.metrics, ...])`, `take()` in another process",
        "`merge_and_log_n_dicts` in RLlib",
    ),
    ("unknown modules in the batch: ValueError", "same error", "a `UserError`, which is one"),
    (
        "modules not to be updated are left out; early return",
        "same name; `on_update_begin` and `on_update_end` still run",
        "`before_gradient_based_update` is compiled with the steps, so it does not run",
    ),
    ("`update_from_episodes(episodes, ...)`", "same name", 'with `remainder="wrap"`'),
    (
        "`update_from_episodes` for any algorithm",
        "same name: advantages, n-step transitions, own losses, recurrent modules",
        "IMPALA and REINFORCE learn from rollouts and raise an error",
    ),
    (
        "`num_total_minibatches=0`",
        "`num_total_minibatches=None`, or 0",
        "",
    ),
    (
        "`update_from_iterator(iterator, timesteps, minibatch_size, num_iters)`",
        "same name: hooks run once around all batches",
        "`num_epochs` passes over each batch are allowed",
    ),
    (
        "`update_from_iterator`: iterates `iter_batches` again and again",
        "same name for a list or a dataset, which can be iterated again",
        "a generator that ends before `num_iters` is an error",
    ),
    ("`DATASET_NUM_ITERS_TRAINED` (`_LIFETIME`)", "the same, under `ALL_MODULES`", ""),
    (
        "`_update(batch)`",
        "`update(batch, key=, timesteps=)`",
        "for use in your own tf.function; returns metrics",
    ),
    # State.
    (
        "`get_state(components, not_components)`",
        "same name",
        "arrays by path; `counters` is a separate component",
    ),
    (
        '`state["should_module_be_updated"]`',
        "same name",
        "ids or None; a function cannot be saved, so the learner keeps its function",
    ),
    (
        "`weights_seq_no` in `get_state`",
        "same name",
        "always included, unless `not_components` names it",
    ),
    (
        "`set_state` loads weights only if newer (or 0)",
        "`set_state(state, only_newer_weights=True)`, `load_if_newer`",
        "without it any state is loaded, so an older one can be restored",
    ),
    ("`set_state({COMPONENT_RL_MODULE: weights})`", "same name", '"rl_module"'),
    (
        "`COMPONENT_OPTIMIZER`, `COMPONENT_METRICS_LOGGER`",
        "same name, in `tfrl.learners`",
        '"optimizer", "metrics"',
    ),
    (
        "`get_ctor_args_and_kwargs`, `get_checkpointable_components`",
        "`get_checkpointable_components`",
        "`[(name, variables by path)]`; a checkpoint describes modules and settings in JSON, "
        "without pickled arguments",
    ),
    (
        "`save_to_path`, `restore_from_path(component=)`, `from_checkpoint`",
        "same name",
        "TensorFlow checkpoints and JSON, no pickle; file-system paths; weights include their "
        "`weights_seq_no`",
    ),
    (
        "`_get_optimizer_state`, `_set_optimizer_state`",
        '`get_state("optimizer")`, `set_state`',
        "",
    ),
    # Hooks.
    (
        "`before_gradient_based_update(timesteps)`",
        "same name, traced; Python code per update goes into `on_update_begin`",
        "`timesteps` is a tensor; `..._for_module` runs for each module",
    ),
    (
        "`after_gradient_based_update(timesteps)`",
        "same name, traced; Python code per update goes into `on_update_end`",
        "`on_update_end` also gets the results",
    ),
    (
        "order: before, losses, gradients, postprocess, apply, after",
        "same name",
        "once for each entry of a module's `updates`",
    ),
    (
        "`timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: n}`",
        'same name, `{"env_steps": n}` or a number',
        "saved with the learner; without it the count stays",
    ),
    (
        "learning rates are set after the update, `<optimizer>_learning_rate`",
        "set before the steps; `learning_rate`, `<optimizer>/learning_rate`",
        "the steps at `timesteps` have the rate of `timesteps`",
    ),
    (
        "schedules `[[0, v0], [t, v1]]`",
        "same name, and `tfrl.ops.schedules`",
        "a resumed run continues them",
    ),
    (
        "sequences are cut along B; `seq_lens`",
        "same name",
        "leaves `[B, T, ...]` with a `mask`, or flat rows with `seq_lens`",
    ),
    (
        "`RLModule.is_stateful()`",
        "`initial_carry(batch_size)`",
        "None, or no such method: no state",
    ),
    (
        "`_make_module`",
        "none: modules are arguments",
        "`LearnerConfig` creates them for an environment",
    ),
    ("`rl_module_is_compatible(module)`", "the same", ""),
    (
        "`rl_module_required_apis()`",
        "the same: a class method, a property or a tuple",
        "",
    ),
    (
        "`NUM_TRAINABLE_PARAMETERS`, `NUM_NON_TRAINABLE_PARAMETERS`",
        "same name, in the results",
        "for each module and under `ALL_MODULES`",
    ),
    ("`_check_is_built` raises ValueError", "same error", "a `UserError`, which is one"),
    ("`_reset()`", "none: create another learner, or `clone()`", "compiled code is shared"),
    ("`apply(func, *args, **kwargs)`", "the same", ""),
    ("`_get_tensor_variable`", "none: `tf.Variable`", "it only abstracts the framework"),
    (
        "`_get_optimizer_lr`, `_set_optimizer_lr`",
        "`get_optimizer(...).learning_rate`, a variable",
        "an assigned rate stays, unless it has a schedule",
    ),
    (
        "`_get_clip_function`, `_get_global_norm_function`",
        "same name; public: `clip_function`, `global_norm_function`",
        "a clip function takes `(gradients_dict, grad_clip=, grad_clip_by=)`, changes the dict and "
        "returns the norm",
    ),
    # Counts.
    (
        "`MODULE_TRAIN_BATCH_SIZE_MEAN`",
        "same name",
        "logged once per update; its minibatches have one size",
    ),
    (
        "`NUM_MODULE_STEPS_TRAINED` (`_LIFETIME`)",
        "same name, by module and under `ALL_MODULES`",
        "rows of all gradient steps; for sequences, their number",
    ),
    (
        "`NUM_ENV_STEPS_TRAINED` (`_LIFETIME`, throughput)",
        "same name, under `ALL_MODULES`",
        "counted from the batch: the largest number of rows of a module",
    ),
    ("`WEIGHTS_SEQ_NO`", "the same, by module and under `ALL_MODULES`", ""),
    ("`weights_seq_no` += 1 an update", "the same", ""),
    (
        "`TOTAL_LOSS_KEY`: that of the last minibatch",
        "`loss`: the mean of all minibatches",
        "the last minibatch is a noisy estimate; `log_value(..., window=1)` logs it",
    ),
    (
        "`additional_update_for_module`, `save_state`, `load_state`, `get_module_state`, "
        "`set_module_state`, `get_optimizer_state`, `set_optimizer_state`",
        "none: `after_gradient_based_update`, `save_to_path`, `get_state`",
        "they only raise in RLlib",
    ),
    (
        "`compute_loss` with the sum under `ALL_MODULES`",
        "none: `compute_losses`; `compute_gradients` gets the sum",
        "deprecated in RLlib",
    ),
    # Around it.
    (
        "`LearnerGroup`, `num_learners`, aggregators",
        "`strategy=`, a tf.distribute strategy",
        "synchronous replicas of one program in place of actors",
    ),
    ("Ray `ObjectRef` batches", "none: batches are arrays", "references belong to Ray"),
    (
        "`MultiAgentBatch`, `SampleBatch`",
        "`{module_id: rows}`",
        "dicts, records or `struct.TensorDict`; env steps are counted from the rows",
    ),
    ("`SingleAgentEpisode`, `MultiAgentEpisode`", "the same, in `tfrl.episodes`", ""),
    (
        "learner connectors (`ConnectorV2`)",
        "`tfrl.learners.connectors`",
        "episodes get no extra step for the bootstrap value",
    ),
    ("`clone`", "`learner.clone()`", "a copy with its own variables"),
]
