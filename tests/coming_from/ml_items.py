"""What readers of ml know, by its reinforcement-learning task, its workers and its replay samples.

(name there, what it is here, what differs and why). "the same" is a row in which nothing differs;
"so named" and "likewise" are rows that differ, or say more, as their last part tells.
"""

ITEMS = [
    # The task.
    ("`ReinforcementLearningTask`", "`tfrl.tasks.RLTask`", ""),
    (
        "`ReinforcementLearningTask[Config, Model, State, Action, Output, Loss]`",
        "`RLTask[Config, Model, State, Action, Output, Loss]`",
        "states and actions are stacked",
    ),
    (
        "`ReinforcementLearningTaskConfig` with `environment` and `dataset`",
        "`RLTaskConfig` with the same groups",
        "the values are attributes and arguments of the config itself too; in gin "
        "`RLTaskConfig.environment = @EnvironmentConfig()`",
    ),
    (
        "`num_env_workers = 1`",
        "so named",
        "a negative number is an error, since 0 is the one that means this process",
    ),
    ('`env_worker_mode = "process"`', "the same", ""),
    ("`env_seed = 1337`", "so named", "each episode has a seed that follows from it, not all one"),
    ("`env_cleanup_time = 5.0`", "the same", ""),
    ("`max_steps = 1000`", "the same", ""),
    ("`num_samples = 1`", "the same", ""),
    ("`stride = 1`", "the same", ""),
    ("`replay_buffer_sample_size = 10000`", "so named", "counts env steps"),
    ("`num_update_steps = MISSING`", "required", "a `UserError` names it"),
    (
        "`get_actions(model, states, optimal)`",
        "so named",
        "states come stacked `[N, ...]`, as a model takes them, and actions return so",
    ),
    (
        "`get_environment()`",
        "so named",
        "a `gymnasium.Env`: `step` returns the ends, `action_space.sample()` an action, `render()` "
        "a frame, `metadata` the fps",
    ),
    (
        "`run_model(model, batch, state)`",
        "so named",
        "`batch` is a record of arrays in the place of pairs; `state` has tensors, since it is "
        "traced",
    ),
    ("`compute_loss(model, batch, state, output)`", "so named", "`(loss, metrics)` too"),
    (
        "`build_rl_dataset(samples)`",
        "so named",
        "is given the replay buffer with the new samples, since older ones are kept; a "
        "tf.data.Dataset or an iterable",
    ),
    ("`get_environment_cached()`", "so named", "`task.close()` closes it"),
    ("`get_environment_workers(force_sync=False)`", "the same", ""),
    ("`get_worker_pool(force_sync=False)`", "so named", "its caller closes it"),
    ("no worker, or `force_sync`: synchronous", "the same", ""),
    (
        "`AsyncEnvironmentWorker(env, manager, rank, world_size, seed, cleanup_time, mode)`",
        "`AsyncEnvironmentWorker(env_factory, worker_id=, seed=, mode=, limits=)`",
        "the environment is made in its process; sockets need no manager, and a worker no count of "
        "the others; `WorkerLimits` has `cleanup_time`",
    ),
    ("`SyncEnvironmentWorker(env, seed)`", "`SyncEnvironmentWorker(env_factory, seed=)`", ""),
    ("`BaseEnvironmentWorker`", "`EnvironmentWorker`", ""),
    (
        "`WorkerPool`: `reset()`, `len`, `get_state(timeout)`, `send_action(action, worker_id)`",
        "so named",
        "a state is a `WorkerState` with `worker_id` in the place of a pair, as it has the reward "
        "and the ends too; after a timeout it is a `NoState`, which is false",
    ),
    (
        '`send_action("reset", worker_id)`',
        "so named, or `reset(worker_id)`",
        'after an end workers reset by themselves; `"close"` is an error: `close()` ends a pool',
    ),
    (
        'state `"terminated"`',
        "`WorkerState.last`, `terminated`, `truncated`",
        "beside the last observation",
    ),
    ("`cast_worker_mode(mode)`", "`WorkerMode.of(mode)`", "an enum"),
    ("`get_worker_pool(workers, force_sync)`", "`WorkerPool.from_workers(workers)`", "one class"),
    (
        "`postprocess_trajectory(samples)`",
        "`postprocess_trajectory(model, trajectory)`",
        "returns as many samples, so that totals stay exact; what losses need goes into `extras`",
    ),
    (
        "`postprocess_trajectories(trajectories)`",
        "`postprocess_trajectories(model, trajectories)`",
        "",
    ),
    (
        "`task.iter_samples(model, worker_pool, *, ...)`",
        "so named",
        "given a `Sampler` in the place of a pool, episodes go on from call to call",
    ),
    ("`total_samples=None`: no end", "so named", "a total is reached exactly"),
    (
        "`min_trajectory_length=1`, at least `num_samples`",
        "so named",
        "at least what a clip spans with its stride",
    ),
    (
        "`max_trajectory_length`: ends the trajectory, resets the environment",
        "so named",
        "marked as a truncation",
    ),
    ("`min_batch_size=1`", "the same", ""),
    ("`max_batch_size=None`", "the same", ""),
    (
        "`max_wait_time=None`: waits for the full batch",
        "so named",
        "`TaskWorkflow` waits `RLTaskConfig.max_wait_time`, 0.1 s: one slow environment stops no "
        "other; None there waits too",
    ),
    ("`optimal=True`", "so named", "`TaskWorkflow` samples with False, as ml's trainer does"),
    (
        "ValueError for `min_trajectory_length` > `total_samples`, `min_batch_size` > "
        "`max_batch_size`",
        "likewise",
        "a `UserError`, which is one",
    ),
    (
        "short trajectories are discarded with a warning",
        "likewise",
        "the first, the 10th, the 100th, and the sum, since there may be thousands",
    ),
    ("running trajectories are given out at the end", "likewise", "with `cut`"),
    (
        "progress bar of the sampling",
        "`tfrl.tasks.iter_samples(..., progress=True)`",
        "`learn` has the bar of the whole run, beside which another would flicker",
    ),
    ("`task.collect_samples(model, worker_pool, total_samples, *, ...)`", "the same", ""),
    (
        "`ReplaySamples(samples).sample(clip_size, stride, only_last)`",
        "so named",
        "takes a trajectory, or several of one worker; a clip is a record `[n, ...]`",
    ),
    (
        "`MultiReplaySamples([ReplaySamples, ...])`",
        "so named",
        "`len` counts samples, and `sample` draws one clip: buffers are bounded in samples",
    ),
    (
        "`ReplayDataset(samples, clip_size, stride)`",
        "so named",
        "`batch_size` makes batches in the place of a data loader",
    ),
    (
        "`epoch_is_over(state)`",
        "`epoch_is_over(num_updates, metrics)`",
        "Python decides after each update, with its metrics at hand",
    ),
    # Clips.
    ("`sample_clip()` returns the images", "so named", "NumPy arrays"),
    ("`return_states=True`: images and states", "so named", "`return_images=False` for these only"),
    ("`save_path`: returns None", "so named", ".mp4 and .gif"),
    (
        '`writer="ffmpeg"`, `"matplotlib"`, `"opencv"`',
        "so named",
        "`summary_writer` shows the clip in TensorBoard",
    ),
    ("`standardize_images=True`", "so named", "False returns frames as they are, in a list"),
    ("`optimal=True` of `sample_clip`", "the same", ""),
    ("`model=None`: random actions", "the same", ""),
    (
        "pairs of an action and the state after it, T images",
        "a record of states, actions and rewards; T + 1 images",
        "an action stands beside the state that it was chosen in, and the first and the last state "
        "are shown",
    ),
    (
        "ValueError for `save_path` with `return_states`",
        "the clip is saved and its states are returned",
        "more than there",
    ),
    (
        "ValueError for neither images nor states",
        "likewise",
        "not with a `save_path`, where nothing needs to be returned",
    ),
    (
        "RuntimeError where the initial state is terminated",
        "a `UserError`",
        'told by `info["terminated"]` of `reset`: Gymnasium has no other place',
    ),
    ("`max_steps` bounds a clip", "the same", ""),
    ("fps of the environment", '`metadata["render_fps"]`', "Gymnasium's place; 30 without"),
    (
        "`write_video`, `standardize_image`",
        "`tfrl.evaluation.video_file.write_video`, `tfrl.tasks.clip_recording.FrameStandard`",
        "the size of the first frame holds for all",
    ),
    # Training.
    ("no gradients while sampling", "likewise", "actions are chosen outside of tapes"),
    ("`ReinforcementLearningTrainer`, `BaseTask`", "`TaskWorkflow(task=...)`", "one replica"),
]
