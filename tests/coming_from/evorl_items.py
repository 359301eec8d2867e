"""What readers of EvoRL know, by its documentation: workflow, key concepts, rollout.

(name there, what it is here, what differs and why). "the same" is a row in which nothing differs;
"so named" and "likewise" are rows that differ, or say more, as their last part tells.
"""

ITEMS = [
    # Workflow.
    ("`RLWorkflow`", "`Workflow`; over a learner `LearnerWorkflow`", ""),
    (
        "`RLWorkflow(config)`, `self.config`",
        "`workflow.config`",
        "read-only, the gin bindings that were read; a workflow made in Python is made of objects, "
        "and its config is empty",
    ),
    ("`dp_axis_name`, `devices`", "`workflow.replicas`", "replicas of a tf.distribute strategy"),
    ("`enable_multi_devices`", "`workflow.enable_multi_devices`", ""),
    (
        "`build_from_config(config, enable_multi_devices, enable_jit)`",
        "`tfrl.build_from_config(gin_files, bindings, enable_multi_devices=, enable_jit=)`",
        "a function: gin says which workflow it is",
    ),
    ("`_build_from_config`", "gin references (`@make_env()`)", "they make the parts"),
    (
        "`_rescale_config`",
        "`workflow.rescale_config(num_replicas)`",
        "does nothing by default: sizes are those of all replicas together",
    ),
    (
        "`step(state)`",
        "`step(state)`",
        "where leaves are variables they change in place: `snapshot` keeps a copy",
    ),
    ("`evaluate(state)`", "`evaluate(state)`", "the state counts evaluations; each plays others"),
    ("`enable_jit()`", '`compile="auto"`, `"xla"`, `"graph"`, `"eager"`, by stage', ""),
    ("`enable_shmap(axis_name)`", "`use_strategy(strategy)`, `strategy=`", ""),
    ("`OnPolicyWorkflow`, `OffPolicyWorkflow`", "the same names", ""),
    (
        "arguments `env`, `agent`, `optimizer`, `evaluator`",
        "so named",
        "optimizers by name too",
    ),
    ("argument `replay_buffer`", "`replay_buffer` or `replay`", "the maker of a buffer"),
    (
        "`_setup_agent_and_optimizer(key)`",
        "`setup_agent_and_optimizer(key)`",
        "returns `(agent_state, opt_state)`",
    ),
    (
        "`_setup_workflow_metrics()`, `WorkflowMetric`",
        "`setup_workflow_metrics()`, `RunMetrics`",
        "a subclass adds counters; checkpoints hold them",
    ),
    (
        "`setup(key) -> State`",
        "`setup(seed or key) -> State`",
        "fields `key, metrics, agent_state, opt_state, env_state, replay_buffer_state`",
    ),
    ("key and environments per device", "likewise", "fold_in(key, replica)"),
    ("`_setup_replaybuffer(key)`", "`setup_replay_buffer(key)`", ""),
    (
        "`_postsetup_replaybuffer(state)`",
        "`postsetup_replay_buffer(state)`",
        "demonstrations go here; random play is the first phase of `step`, so that a run may stop "
        "in it",
    ),
    (
        "`EvaluateMetric`",
        "`EvaluationResult`; in a workflow the dict `eval_return_mean`, ...",
        "names that recorders write",
    ),
    ("all-reduce of evaluations", "likewise", "`eval_episodes` is the total of all replicas"),
    ("`State`, `MetricBase`", "`tfrl.workflows.State`, dicts of floats", ""),
    ("`close()`", "`close()`", ""),
    # Key concepts.
    ("static logic, external state", "likewise", "`struct.logic_dataclass`, `State`"),
    ("`PyTreeDict`", "`struct.TensorDict`", "an assignment inside tf.function is an error"),
    ("`PyTreeData`", "`@struct.dataclass`", "a decorator in the place of a base class"),
    ("`pytree_field(static=True)`", "`struct.field(static=True)`", ""),
    ("`PyTreeNode`", "`@struct.logic_dataclass`", "`struct.derived()` for fields set after init"),
    (
        "`EvoOptimizer`, `OpenES(pop_size, lr_schedule, noise_std_schedule, mirror_sampling, ...)`",
        "`tfrl.evolution`, so named; `optimizer` also takes `optimizer_name`'s values",
        "",
    ),
    (
        "ES, EC, ERL and PBT workflows",
        "`EvolutionWorkflow`, `ERLWorkflow`, `PBTWorkflow`",
        "sizes are those of all replicas together",
    ),
    ("`compute_centered_ranks`", "`ops.centered_ranks`", ""),
    ("`ExponentialScheduleSpec`", "`ops.schedules.ExponentialSchedule`", ""),
    ("`Agent`: networks and losses", "`tfrl.Agent`", "losses are listed by `updates`"),
    (
        "`agent.init(obs_space, action_space, key)`",
        "`agent.init(obs_spec, action_spec, key)` or `agent.init(key)`",
        "networks are logic, made of the specs that the constructor takes; those given to `init` "
        "must be equal",
    ),
    (
        "`compute_actions(state, sample_batch, key)`",
        "`compute_actions(state, obs or Trajectory, key, carry=None)`",
        "returns an `ActionOutput`; with `takes_records` an agent sees more than the observation",
    ),
    ("`evaluate_actions(...)`", "so named", "as `compute_actions`"),
    ("losses called by the workflow", "`agent.updates[i].loss`", ""),
    ("`RandomAgent()`", "`tfrl.RandomAgent()`", "its state has the specs"),
    ("`env.reset(key)`, `env.step(state, actions)`", "the same", ""),
    ("`obs_space`, `action_space`", "`obs_spec`, `action_spec`", "nests of TensorSpec"),
    ("adapters for other libraries", "suites of `make_env`: `gymnasium:`, `envpool:`, ...", ""),
    (
        "`create_wrapped_brax_env`",
        "`tfrl.envs.adapters.jax.create_wrapped_brax_env`, or `make_env` with `jax/brax:<name>`",
        "Brax steps in TensorFlow's graphs; time limit and autoreset are those of `make_env`",
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
    ("subscripts of a step", "likewise", "`next_obs` is O_{t+1}, never the reset observation"),
    (
        "`SampleBatch(obs, actions, rewards, next_obs, dones, extras)`",
        "`tfrl.types.SampleBatch`, which makes a `Trajectory`",
        "it tells `termination` and `truncation` apart, and reads under both names",
    ),
    ("`RewardDict`", "a dict of rewards", ""),
    ("`extras.policy_extras`, `extras.env_extras`", "the same, and without `extras.`", ""),
    (
        "`env_extra_fields`",
        "so named",
        "names of `info` or of the record; an unknown one is an error that lists the known; "
        "`steps` is `episode_length`",
    ),
    (
        "`Evaluator(env, agent_fn, max_episode_steps, discount)`",
        "`Evaluator(env=, agent=, max_steps=, discount=)`",
        "by keyword; `agent` may be a function; `num_episodes=` is the default of `evaluate`",
    ),
    (
        "`Evaluator.evaluate(state, key, num_episodes)`",
        "so named",
        "one trace for every number",
    ),
    ("`episode_returns`, `episode_lengths` of a result", "so named", "NumPy arrays"),
    ("several evaluators", "`Evaluator`, `EpisodeCollector`", ""),
    ("algorithm = config, workflow, agent", "likewise", "gin files in `gin_configs/`"),
    ("`PPOWorkflow`, one per algorithm", "`OnPolicyWorkflow(agent=PPO)`", "one template a family"),
    ("hydra overrides", "`--gin_bindings`", ""),
    ("`workflow.init(key)`", "`workflow.setup(key)`", ""),
    ("`learn(state)`", "`learn(state, total_env_steps=...)`", "the budget is an argument"),
    ("a loop of one's own over `step` and `evaluate`", "likewise", "as above"),
    ("observation normalisation", "`normalize_obs=True`", "statistics are in the AgentState"),
    # Rollout.
    ("`RolloutFn`", "`tfrl.rollout.RolloutFn`", ""),
    (
        "`env_step(env_fn, action_fn, env_state, agent_state, key, ...)`",
        "so named",
        "the first two are called `env` and `agent`, since they may be the objects; a function "
        "that acts takes `(agent_state, obs, key, carry)` and returns an `ActionOutput`",
    ),
    ("`eval_env_step(...)`", "so named", "as `env_step`"),
    (
        "`rollout(env_fn, action_fn, ...)`",
        "so named",
        "as `env_step`; returns the carry of a recurrent agent as a third",
    ),
    ("`rollout_length`", "`length`", "static"),
    (
        "`eval_rollout_episode -> (trajectory, env_state)`",
        "so named",
        "rows after an end are invalid in the place of repeated; no step once all have ended; "
        "`light=True` keeps rewards and ends only",
    ),
    ("segments of several episodes under autoreset", "likewise", "`dones` tells where they end"),
    ("environments without autoreset", "the same", ""),
    ("an ended state to start from", "likewise", "frozen environments have length 0"),
    ("rollouts in jit", "likewise, in a tf.function", "with `jit_compile=True` too"),
    (
        "`fast_eval_rollout_episode -> (metrics, env_state)`",
        "so named",
        "`metrics` is a record, `EpisodeTotals`; it stops after `length` steps too",
    ),
    ("`action_fn` without a default", "defaults to the agent's method", ""),
    ("recurrent policies (to do there)", "`initial_carry`, `carry=`", ""),
]
