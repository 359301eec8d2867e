"""Names and behaviour of EvoRL's documentation: workflow, key concepts, rollout.

(EvoRL's name, tfrl's name, difference and reason). "the same" means no difference; "same name" and
"same behaviour" have a difference or a detail in the last part.
"""

ITEMS = [
    # Workflow.
    ("`RLWorkflow`", "`Workflow`; over a learner `LearnerWorkflow`", ""),
    (
        "`RLWorkflow(config)`, `self.config`",
        "`workflow.config`",
        "the gin bindings of the workflow; empty for a workflow built from objects in Python; a "
        "subclass may have a `config` of its own",
    ),
    ("`dp_axis_name`, `devices`", "`workflow.replicas`", "replicas of a tf.distribute strategy"),
    ("`enable_multi_devices`", "`workflow.enable_multi_devices`", ""),
    (
        "`build_from_config(config, enable_multi_devices, enable_jit)`",
        "`tfrl.build_from_config(gin_files, bindings, enable_multi_devices=, enable_jit=)`",
        "a function: gin selects the workflow class",
    ),
    ("`_build_from_config`", "gin references (`@make_env()`)", "they create the parts"),
    (
        "`_rescale_config`",
        "`workflow.rescale_config(num_replicas)`",
        "does nothing by default: sizes are totals over all replicas",
    ),
    (
        "`step(state)`",
        "`step(state)`",
        "leaves that are variables change in place: `snapshot` keeps a copy",
    ),
    (
        "`evaluate(state)`",
        "`evaluate(state)`",
        "the state counts evaluations; each draws new episodes",
    ),
    ("`enable_jit()`", '`compile="auto"`, `"xla"`, `"graph"`, `"eager"`, per stage', ""),
    ("`enable_shmap(axis_name)`", "`use_strategy(strategy)`, `strategy=`", ""),
    ("`OnPolicyWorkflow`, `OffPolicyWorkflow`", "the same names", ""),
    (
        "arguments `env`, `agent`, `optimizer`, `evaluator`",
        "same name",
        "optimizers also by name",
    ),
    ("argument `replay_buffer`", "`replay_buffer` or `replay`", "a factory of a buffer"),
    (
        "`_setup_agent_and_optimizer(key)`",
        "`setup_agent_and_optimizer(key)`",
        "returns `(agent_state, opt_state)`",
    ),
    (
        "`_setup_workflow_metrics()`, `WorkflowMetric`",
        "`setup_workflow_metrics()`, `RunMetrics`",
        "a subclass adds counters; checkpoints include them",
    ),
    (
        "`setup(key) -> State`",
        "`setup(seed or key) -> State`",
        "fields `key, metrics, agent_state, opt_state, env_state, replay_buffer_state`",
    ),
    ("key and environments per device", "same behaviour", "fold_in(key, replica)"),
    ("`_setup_replaybuffer(key)`", "`setup_replay_buffer(key)`", ""),
    (
        "`_postsetup_replaybuffer(state)`",
        "`postsetup_replay_buffer(state)`",
        "add demonstrations here; the random fill is the first phase of `step`, so a run can stop "
        "during it",
    ),
    (
        "`EvaluateMetric`",
        "`EvaluationResult`; in a workflow the dict `eval_return_mean`, ...",
        "the names in records",
    ),
    ("all-reduce of evaluations", "same behaviour", "`eval_episodes` is the total of all replicas"),
    ("`State`, `MetricBase`", "`tfrl.workflows.State`, dicts of floats", ""),
    ("`close()`", "`close()`", ""),
    # Key concepts.
    ("static logic, external state", "same behaviour", "`struct.logic_dataclass`, `State`"),
    ("`PyTreeDict`", "`struct.TensorDict`", "an assignment inside tf.function is an error"),
    ("`PyTreeData`", "`@struct.dataclass`", "a decorator in place of a base class"),
    ("`pytree_field(static=True)`", "`struct.field(static=True)`", ""),
    ("`PyTreeNode`", "`@struct.logic_dataclass`", "`struct.derived()` for fields set after init"),
    (
        "`EvoOptimizer`, `OpenES(pop_size, lr_schedule, noise_std_schedule, mirror_sampling, ...)`",
        "the same names in `tfrl.evolution`; `optimizer` also takes the values of `optimizer_name`",
        "",
    ),
    (
        "ES, EC, ERL and PBT workflows",
        "`EvolutionWorkflow`, `ERLWorkflow`, `PBTWorkflow`",
        "sizes are totals; several replicas for `EvolutionWorkflow` only",
    ),
    ("`compute_centered_ranks`", "`ops.centered_ranks`", ""),
    ("`ExponentialScheduleSpec`", "`ops.schedules.ExponentialSchedule`", ""),
    ("`Agent`: networks and losses", "`tfrl.Agent`", "`updates` lists the losses"),
    (
        "`agent.init(obs_space, action_space, key)`",
        "`agent.init(obs_spec, action_spec, key)` or `agent.init(key)`",
        "networks are logic, built from the specs of the constructor; the specs of `init` must be "
        "equal",
    ),
    (
        "`compute_actions(state, sample_batch, key)`",
        "`compute_actions(state, obs or Trajectory, key, carry=None)`",
        "returns an `ActionOutput`; with `takes_records` an agent gets more than the observation",
    ),
    ("`evaluate_actions(...)`", "same name", "as `compute_actions`"),
    ("losses called by the workflow", "`agent.updates[i].loss`", ""),
    ("`RandomAgent()`", "`tfrl.RandomAgent()`", "its state contains the specs"),
    ("`env.reset(key)`, `env.step(state, actions)`", "the same", ""),
    ("`obs_space`, `action_space`", "`obs_spec`, `action_spec`", "nests of TensorSpec"),
    ("adapters for other libraries", "suites of `make_env`: `gymnasium:`, `envpool:`, ...", ""),
    (
        "`create_wrapped_brax_env`",
        "`tfrl.envs.adapters.jax.create_wrapped_brax_env`, or `make_env` with `jax/brax:<name>`",
        "Brax steps in TensorFlow graphs; `make_env` sets time limit and autoreset",
    ),
    (
        "`create_wrapped_*_env(name, parallel, autoreset_mode)`",
        "`make_env(env_id, num_envs, autoreset)`",
        "",
    ),
    ("`envs.wrappers`", "`tfrl.envs.wrappers`", ""),
    ("`ActionSquashWrapper`", "`wrappers.ActionRescale`", ""),
    ("`VmapAutoResetWrapper`", "`envs.vectorize`, `wrappers.Episode`", "`make_env` applies them"),
    ("`AutoresetMode.NORMAL`", "`Autoreset.SAME_STEP`", ""),
    (
        "`AutoresetMode.DISABLED`",
        "`Autoreset.DISABLED`",
        "frozen rows are invalid; also `NEXT_STEP`, `SAME_STEP_CACHED`",
    ),
    (
        "subscripts of a step",
        "same behaviour",
        "`next_obs` is O_{t+1}, never the reset observation",
    ),
    (
        "`SampleBatch(obs, actions, rewards, next_obs, dones, extras)`",
        "`tfrl.types.SampleBatch`, which makes a `Trajectory`",
        "`termination` and `truncation` are separate; fields have both libraries' names",
    ),
    ("`RewardDict`", "a dict of rewards", ""),
    ("`extras.policy_extras`, `extras.env_extras`", "the same, also without `extras.`", ""),
    (
        "`env_extra_fields`",
        "same name",
        "names of `info` or of the record; an unknown name is an error that lists the known ones; "
        "`steps` is `episode_length`",
    ),
    (
        "`Evaluator(env, agent_fn, max_episode_steps, discount)`",
        "`Evaluator(env=, agent=, max_steps=, discount=)`",
        "by keyword; `agent` may be a function; `num_episodes=` sets the default of `evaluate`",
    ),
    (
        "`Evaluator.evaluate(state, key, num_episodes)`",
        "same name",
        "one trace for all numbers of episodes",
    ),
    ("`episode_returns`, `episode_lengths` of a result", "same name", "NumPy arrays"),
    ("several evaluators", "`Evaluator`, `EpisodeCollector`", ""),
    ("algorithm = config, workflow, agent", "same behaviour", "gin files in `gin_configs/`"),
    (
        "`PPOWorkflow`, one per algorithm",
        "`OnPolicyWorkflow(agent=PPO)`",
        "one workflow per family of algorithms",
    ),
    ("hydra overrides", "`--gin_bindings`", ""),
    ("`workflow.init(key)`", "`workflow.setup(key)`", ""),
    ("`learn(state)`", "`learn(state, total_env_steps=...)`", "the budget is an argument"),
    ("a loop of one's own over `step` and `evaluate`", "same behaviour", "as for `learn`"),
    ("observation normalisation", "`normalize_obs=True`", "statistics are in the AgentState"),
    # Rollout.
    ("`RolloutFn`", "`tfrl.rollout.RolloutFn`", ""),
    (
        "`env_step(env_fn, action_fn, env_state, agent_state, key, ...)`",
        "same name",
        "the first two arguments are `env` and `agent`, which may be the objects; an action "
        "function takes `(agent_state, obs, key, carry)` and returns an `ActionOutput`",
    ),
    ("`eval_env_step(...)`", "same name", "as `env_step`"),
    (
        "`rollout(env_fn, action_fn, ...)`",
        "same name",
        "as `env_step`; a third result is the carry of a recurrent agent",
    ),
    ("`rollout_length`", "`length`", "static"),
    (
        "`eval_rollout_episode -> (trajectory, env_state)`",
        "same name",
        "rows after an episode's end are invalid, not repeated; no steps after all episodes ended; "
        "`light=True` keeps only rewards and ends",
    ),
    ("segments of several episodes under autoreset", "same behaviour", "`dones` marks their ends"),
    ("environments without autoreset", "the same", ""),
    ("an ended state to start from", "same behaviour", "frozen environments have length 0"),
    ("rollouts in jit", "same behaviour, in a tf.function", "also with `jit_compile=True`"),
    (
        "`fast_eval_rollout_episode -> (metrics, env_state)`",
        "same name",
        "`metrics` is an `EpisodeTotals`; it also stops after `length` steps",
    ),
    ("`action_fn` without a default", "defaults to the agent's method", ""),
    ("recurrent policies (to do there)", "`initial_carry`, `carry=`", ""),
]
