"""What readers of RLlib's Learner (Ray 2.44) know: name there, what it is here, what differs.

`python -m tests.coming_from.pages` writes the table into docs/learner.md. `test_rllib.py` runs what
the rows say. "the same" is a row in which nothing differs, "so named" one that has the name and
differs as it says. A row that begins with "none" is left out, for the reason that it gives.
"""

ITEMS = [
    # Construction.
    (
        "`Learner(config, module_spec, module)`",
        "`Learner(modules, config=...)`",
        "modules are objects without variables, which the learner makes; settings are one "
        "`ModuleConfig` for all or for each",
    ),
    (
        "`config.build_learner(env=env)`",
        "`LearnerConfig(agent, ...).build_learner(env=env)`",
        "the learner is built; a further `build()` changes nothing",
    ),
    ("`TfLearner`, `TorchLearner`, abstract methods", "`Learner`", "one class; TensorFlow"),
    ("`framework`", "`learner.framework`", '"tf2"'),
    ("`DEFAULT_OPTIMIZER`, `ALL_MODULES`, `DEFAULT_MODULE_ID`", "the same, in `tfrl.learners`", ""),
    (
        "`POLICY_LOSS_KEY`, `VF_LOSS_KEY`, `ENTROPY_KEY`, `LR_KEY`, `TOTAL_LOSS_KEY`",
        "so named, in `tfrl.learners`",
        "the strings are those of the metrics here: `value_loss`, `learning_rate`, `loss`",
    ),
    (
        "`config.seed`",
        "`build(key)`, `LearnerConfig.seed`",
        "no global generator is seeded: all draws follow from the key",
    ),
    ("`device`; `node`", "`learner.device`", "a string; no `node`, which is Ray's"),
    ("`distributed`", "`learner.distributed`", "whether there are several replicas"),
    (
        "`module` (`MultiRLModule`)",
        "`learner.modules`, `learner.module_state(module_id)`",
        "logic and variables are apart",
    ),
    ("`iterator`", "`learner.iterator`", "what `update_from_iterator` was given last"),
    # Metrics.
    ("`metrics`", "`learner.metrics`, a `MetricsLogger`", ""),
    (
        "`log_value(key, value, reduce, window, ema_coeff, clear_on_reduce, with_throughput)`",
        "so named",
        "numbers and arrays of one shape only; the settings may also be given to `log`, where they "
        "have one name each",
    ),
    (
        "`log_dict`, `log_time`, `peek`, `reduce`, `delete`, `reset`, `get_state`, `set_state`, "
        "`stats`, `tensors_to_numpy`",
        "so named but the last two; `log_dict` with `key=`",
        "`log_dict` without `key=` is `log` of each, with its defaults; `reduce()` returns "
        "numbers; no dict of `Stats`; tensors are converted when a result is asked for",
    ),
    (
        "`log_value` in losses and hooks (tensor mode)",
        "so named, in graph mode and XLA too",
        "float32 scalars; of minibatches and replicas one number an update reaches the logger; not "
        "within `apply_gradients`, a branch of the graph",
    ),
    # Building and optimizers.
    ("`build()`", "`build(key=0)`", "a second call changes nothing, as there"),
    (
        "`build`: the connector pipeline",
        "`learner_connector=`",
        "the default one is made at the first `update_from_episodes`",
    ),
    (
        "`register_optimizer(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)`",
        "so named",
        "two optimizers for a parameter are an error, and none for one that is trained",
    ),
    (
        "`_check_registered_optimizer`: params is a list",
        "any iterable of variables",
        "checked by `register_optimizer`",
    ),
    (
        "`configure_optimizers()`",
        "so named",
        "registers those of compatible modules",
    ),
    (
        "`configure_optimizers_for_module(module_id, config)`",
        "`configure_optimizers_for_module(module_id)`",
        "not abstract: one Adam an update by default; settings are in `self.configs[module_id]`",
    ),
    (
        "`configure_optimizers` skips modules that are not compatible",
        "so named, for modules that `policies_to_train` leaves out",
        "one that is to be trained is an error, which lists what it lacks",
    ),
    (
        "`compute_gradients(loss_per_module, **kwargs)`",
        "`compute_gradients(loss_per_module, gradient_tape, params)`",
        "`loss_per_module[ALL_MODULES]` is the sum; returns gradients of all of `params`; on a "
        "replica of several, losses have the weight of its rows",
    ),
    (
        "`postprocess_gradients(gradients_dict)`",
        "so named",
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
        "the norm before clipping: afterwards it is the limit",
    ),
    (
        "`apply_gradients(gradients_dict)`",
        "so named: once, with all gradients",
        "a module whose step is not finite, or that has stopped, is left out; then it is called "
        "for each of the others",
    ),
    (
        "`get_optimizer(module_id, optimizer_name)`",
        "so named",
        "`DEFAULT_OPTIMIZER` is the first one of an agent, whose name is that of its update",
    ),
    ("`get_optimizer`: the full name `<module>_<optimizer>`", "so named", "without the module too"),
    ("`get_optimizer` raises KeyError", "so named", "a `UserError`, which is a ValueError, too"),
    ("`get_optimizers_for_module(module_id=ALL_MODULES)`", "the same", ""),
    (
        "`filter_param_dict_for_optimizer`",
        "so named",
        "gradients are never None here, and none is dropped",
    ),
    ("`get_param_ref`", "so named", "`variable.ref()`"),
    ("`get_parameters(module)`", "`get_parameters(module_id)`", "modules hold no variables"),
    ("`_convert_batch_type`", "`update_from_batch`", "converts arrays and lists"),
    # Modules.
    (
        "`add_module(module_id, module_spec, config_overrides, new_should_module_be_updated)`",
        "`add_module(module_id, module, config_overrides=, policies_to_train=, state=)`",
        "returns the module; a mistake changes nothing",
    ),
    ("`validate_module_id`", "checked by `Learner` and `add_module`", "an id names folders"),
    (
        "`remove_module(module_id, new_should_module_be_updated)`",
        "`remove_module(module_id, policies_to_train=)`",
        "returns the module; the only module cannot be removed, since a learner has one",
    ),
    (
        "`remove_module` deletes parameters, optimizers, metrics",
        "so named",
        "slots of the others keep every bit",
    ),
    (
        "`should_module_be_updated(module_id, multi_agent_batch)`",
        "`should_module_be_updated(module_id, batch)`",
        "a function gets the rows of the module; False for what has nothing to train",
    ),
    ("`policies_to_train` of the config", "`policies_to_train=`, `train_only`", ""),
    # Losses.
    (
        "`compute_losses(fwd_out, batch)`",
        "`compute_losses(updates=, states=, batch=, keys=)`",
        "no forward pass before: the loss makes it from values of the parameters",
    ),
    (
        "`compute_loss_for_module(module_id, config, batch, fwd_out)`",
        "`compute_loss_for_module(module_id, update, params, state, batch, key)`",
        "metrics may be returned beside the loss, or logged",
    ),
    (
        "`SelfSupervisedLossAPI.compute_self_supervised_loss`",
        "so named",
        "takes `(params, state, batch, key)`",
    ),
    # Updates.
    (
        "`update_from_batch(batch, timesteps, num_epochs, minibatch_size)`",
        "so named",
        "newer Ray: `update(batch=)`; here `update` is the traced core",
    ),
    (
        "`shuffle_batch_per_epoch`",
        "so named, or `shuffle`",
        "left out it is True, the first epoch included: rows of a rollout stand in the order of "
        "time, and minibatches of neighbours are alike",
    ),
    (
        "`minibatch_size` need not divide",
        '`Learner(..., remainder="wrap")`, or of one call',
        "without it an error that names sizes which divide: no row is repeated silently",
    ),
    (
        "`MiniBatchCyclicIterator`",
        "`plan_minibatches`",
        'a module with fewer rows goes round; with "wrap" each epoch has whole minibatches',
    ),
    ("`num_epochs` without `minibatch_size`", "so named", "all rows in each epoch"),
    (
        "`num_iters` and its deprecation",
        "none: an unknown argument is a TypeError",
        "only raises there",
    ),
    (
        "returns `metrics.reduce()` with own values",
        "returns the metrics of the update, with what was logged since the last one",
        "the values of `log`, not those of `clear_on_reduce`, stay in the logger until `reduce()`",
    ),
    (
        "leaves are `Stats`, which merge over learners",
        "numbers; `MetricsLogger.merge([learner.metrics, ...])`, `take()` in another process",
        "`merge_and_log_n_dicts` there",
    ),
    ("unknown modules in the batch: ValueError", "so named", "a `UserError`, which is one"),
    (
        "modules not to be updated are left out; early return",
        "so named; `on_update_begin` and `on_update_end` run then too",
        "`before_gradient_based_update` is compiled with the steps, and does not",
    ),
    ("`update_from_episodes(episodes, ...)`", "so named", '`remainder` is "wrap" there'),
    (
        "`update_from_episodes` for any algorithm",
        "so named: advantages, n-step transitions, own losses, recurrent modules",
        "IMPALA and REINFORCE learn from rollouts, and say so",
    ),
    (
        "`num_total_minibatches=0`",
        "`num_total_minibatches=None`, or 0",
        "",
    ),
    (
        "`update_from_iterator(iterator, timesteps, minibatch_size, num_iters)`",
        "so named: hooks once around all batches",
        "`num_epochs` passes over each batch are allowed",
    ),
    (
        "`update_from_iterator`: iterates `iter_batches` again and again",
        "so named for a list, a dataset: what can be iterated again",
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
        "so named",
        "arrays by path; `counters` are a component of their own",
    ),
    (
        '`state["should_module_be_updated"]`',
        "so named",
        "ids or None; a function cannot be saved, and that of the learner stays",
    ),
    ("`weights_seq_no` in `get_state`", "so named", "always, unless `not_components` names it"),
    (
        "`set_state` loads weights only if newer (or 0)",
        "`set_state(state, only_newer_weights=True)`, `load_if_newer`",
        "without it a state is loaded as it is, so that an older one can be restored",
    ),
    ("`set_state({COMPONENT_RL_MODULE: weights})`", "so named", '"rl_module"'),
    (
        "`COMPONENT_OPTIMIZER`, `COMPONENT_METRICS_LOGGER`",
        "so named, in `tfrl.learners`",
        '"optimizer", "metrics"',
    ),
    (
        "`get_ctor_args_and_kwargs`, `get_checkpointable_components`",
        "`get_checkpointable_components`",
        "`[(name, variables by path)]`; a checkpoint describes modules and settings in JSON, and "
        "pickles no arguments",
    ),
    (
        "`save_to_path`, `restore_from_path(component=)`, `from_checkpoint`",
        "so named",
        "TensorFlow checkpoints and JSON, no pickle; paths of the file system; weights come with "
        "their `weights_seq_no`",
    ),
    (
        "`_get_optimizer_state`, `_set_optimizer_state`",
        '`get_state("optimizer")`, `set_state`',
        "",
    ),
    # Hooks.
    (
        "`before_gradient_based_update(timesteps)`",
        "so named, traced; Python of every update in `on_update_begin`",
        "`timesteps` is a tensor; `..._for_module` for each module",
    ),
    (
        "`after_gradient_based_update(timesteps)`",
        "so named, traced; Python of every update in `on_update_end`",
        "`on_update_end` gets the results too",
    ),
    (
        "order: before, losses, gradients, postprocess, apply, after",
        "so named",
        "once for each update of a module's list",
    ),
    (
        "`timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: n}`",
        'so named, `{"env_steps": n}` or a number',
        "saved with the learner; left out it stays",
    ),
    (
        "learning rates are set after the update, `<optimizer>_learning_rate`",
        "set before the steps; `learning_rate`, `<optimizer>/learning_rate`",
        "the steps at `timesteps` have the rate of `timesteps`",
    ),
    (
        "schedules `[[0, v0], [t, v1]]`",
        "so named, and `tfrl.ops.schedules`",
        "they survive a resume",
    ),
    (
        "sequences are cut along B; `seq_lens`",
        "so named",
        "leaves `[B, T, ...]` with a `mask`, or flat rows beside `seq_lens`",
    ),
    (
        "`RLModule.is_stateful()`",
        "`initial_carry(batch_size)`",
        "None, or no such method: no state",
    ),
    ("`_make_module`", "none: modules are given", "`LearnerConfig` makes them for an environment"),
    ("`rl_module_is_compatible(module)`", "the same", ""),
    (
        "`rl_module_required_apis()`",
        "the same: a class method, a property or a tuple",
        "",
    ),
    (
        "`NUM_TRAINABLE_PARAMETERS`, `NUM_NON_TRAINABLE_PARAMETERS`",
        "so named, in the results",
        "for each module and under `ALL_MODULES`",
    ),
    ("`_check_is_built` raises ValueError", "so named", "a `UserError`, which is one"),
    ("`_reset()`", "none: make another learner, or `clone()`", "compiled code is shared"),
    ("`apply(func, *args, **kwargs)`", "the same", ""),
    ("`_get_tensor_variable`", "none: `tf.Variable`", "it hides which framework it is"),
    (
        "`_get_optimizer_lr`, `_set_optimizer_lr`",
        "`get_optimizer(...).learning_rate`, a variable",
        "a rate assigned by hand stays, unless it follows a schedule",
    ),
    (
        "`_get_clip_function`, `_get_global_norm_function`",
        "so named; public: `clip_function`, `global_norm_function`",
        "a clip function takes `(gradients_dict, grad_clip=, grad_clip_by=)`, changes the dict and "
        "returns the norm",
    ),
    # Counts.
    (
        "`MODULE_TRAIN_BATCH_SIZE_MEAN`",
        "so named",
        "logged once an update, whose minibatches have one size",
    ),
    (
        "`NUM_MODULE_STEPS_TRAINED` (`_LIFETIME`)",
        "so named, by module and under `ALL_MODULES`",
        "rows of all gradient steps; of sequences their number",
    ),
    (
        "`NUM_ENV_STEPS_TRAINED` (`_LIFETIME`, throughput)",
        "so named, under `ALL_MODULES`",
        "counted from the batch: rows of the module with the most",
    ),
    ("`WEIGHTS_SEQ_NO`", "the same, by module and under `ALL_MODULES`", ""),
    ("`weights_seq_no` += 1 an update", "the same", ""),
    (
        "`TOTAL_LOSS_KEY`: that of the last minibatch",
        "`loss`: the mean of all minibatches",
        "one minibatch says little of an update; `log_value(..., window=1)` logs the last",
    ),
    (
        "`additional_update_for_module`, `save_state`, `load_state`, `get_module_state`, "
        "`set_module_state`, `get_optimizer_state`, `set_optimizer_state`",
        "none: `after_gradient_based_update`, `save_to_path`, `get_state`",
        "they only raise there",
    ),
    (
        "`compute_loss` with the sum under `ALL_MODULES`",
        "none: `compute_losses`; the sum is given to `compute_gradients`",
        "deprecated there",
    ),
    # Around it.
    (
        "`LearnerGroup`, `num_learners`, aggregators",
        "`strategy=`, a tf.distribute strategy",
        "replicas of one program in place of actors; all take the same step",
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
        "no step is added to an episode for the bootstrap value",
    ),
    ("`clone`", "`learner.clone()`", "a copy with variables of its own"),
]
