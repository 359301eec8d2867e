"""Names and behaviour of ml: its reinforcement-learning task, its workers, its replay samples.

(ml's name, tfrl's name, difference and reason). "the same" means no difference; "same name" and
"same behaviour" have a difference or a detail in the last part.
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
        "the values are also attributes and arguments of the config itself; in gin "
        "`RLTaskConfig.environment = @EnvironmentConfig()`",
    ),
    (
        "`num_env_workers = 1`",
        "same name",
        "a negative number is an error; 0 means this process",
    ),
    ('`env_worker_mode = "process"`', "the same", ""),
    ("`env_seed = 1337`", "same name", "each episode gets its own seed, derived from this one"),
    ("`env_cleanup_time = 5.0`", "the same", ""),
    ("`max_steps = 1000`", "the same", ""),
    ("`num_samples = 1`", "the same", ""),
    ("`stride = 1`", "the same", ""),
    ("`replay_buffer_sample_size = 10000`", "same name", "counts env steps"),
    ("`num_update_steps = MISSING`", "required", "a `UserError` names it"),
    (
        "`get_actions(model, states, optimal)`",
        "same name",
        "states and actions are stacked `[N, ...]`, as a model takes them",
    ),
    (
        "`get_environment()`",
        "same name",
        "a `gymnasium.Env`: `step` returns termination and truncation, `action_space.sample()` an "
        "action, `render()` a frame, `metadata` the fps",
    ),
    (
        "`run_model(model, batch, state)`",
        "same name",
        "`batch` is a record of arrays in place of pairs; `state` has tensors, because the method "
        "is traced",
    ),
    ("`compute_loss(model, batch, state, output)`", "same name", "also `(loss, metrics)`"),
    (
        "`build_rl_dataset(samples)`",
        "same name",
        "gets the replay buffer, which has older samples too; returns a tf.data.Dataset or an "
        "iterable",
    ),
    ("`get_environment_cached()`", "same name", "`task.close()` closes it"),
    ("`get_environment_workers(force_sync=False)`", "the same", ""),
    ("`get_worker_pool(force_sync=False)`", "same name", "the caller closes it"),
    ("no worker, or `force_sync`: synchronous", "the same", ""),
    (
        "`AsyncEnvironmentWorker(env, manager, rank, world_size, seed, cleanup_time, mode)`",
        "`AsyncEnvironmentWorker(env_factory, worker_id=, seed=, mode=, limits=)`",
        "the worker process creates the environment; sockets need no manager, and no world size; "
        "`WorkerLimits` has `cleanup_time`",
    ),
    ("`SyncEnvironmentWorker(env, seed)`", "`SyncEnvironmentWorker(env_factory, seed=)`", ""),
    ("`BaseEnvironmentWorker`", "`EnvironmentWorker`", ""),
    (
        "`WorkerPool`: `reset()`, `len`, `get_state(timeout)`, `send_action(action, worker_id)`",
        "same name",
        "in place of a pair, a `WorkerState` has state, `worker_id`, reward and ends; after a "
        "timeout the result is a `NoState`, which is false",
    ),
    (
        '`send_action("reset", worker_id)`',
        "same name, or `reset(worker_id)`",
        'workers reset automatically at episode ends; `"close"` is an error: `close()` closes a '
        "pool",
    ),
    (
        'state `"terminated"`',
        "`WorkerState.last`, `terminated`, `truncated`",
        "in the state of the last observation",
    ),
    ("`cast_worker_mode(mode)`", "`WorkerMode.of(mode)`", "an enum"),
    ("`get_worker_pool(workers, force_sync)`", "`WorkerPool.from_workers(workers)`", "one class"),
    (
        "`postprocess_trajectory(samples)`",
        "`postprocess_trajectory(model, trajectory)`",
        "returns as many samples, so totals stay exact; inputs of losses go into `extras`",
    ),
    (
        "`postprocess_trajectories(trajectories)`",
        "`postprocess_trajectories(model, trajectories)`",
        "",
    ),
    (
        "`task.iter_samples(model, worker_pool, *, ...)`",
        "same name",
        "with a `Sampler` in place of a pool, episodes continue across calls",
    ),
    ("`total_samples=None`: no end", "same name", "the total is exact"),
    (
        "`min_trajectory_length=1`, at least `num_samples`",
        "same name",
        "at least the span of a clip with its stride",
    ),
    (
        "`max_trajectory_length`: ends the trajectory, resets the environment",
        "same name",
        "marked as a truncation",
    ),
    ("`min_batch_size=1`", "the same", ""),
    ("`max_batch_size=None`", "the same", ""),
    (
        "`max_wait_time=None`: waits for the full batch",
        "same name",
        "`TaskWorkflow` waits `RLTaskConfig.max_wait_time`, 0.1 s, so one slow environment does "
        "not stop the others; None waits for the full batch",
    ),
    ("`optimal=True`", "same name", "`TaskWorkflow` samples with False, as ml's trainer"),
    (
        "ValueError for `min_trajectory_length` > `total_samples`, `min_batch_size` > "
        "`max_batch_size`",
        "same behaviour",
        "a `UserError`, which is a ValueError",
    ),
    (
        "short trajectories are discarded with a warning",
        "same behaviour",
        "one warning for the first, the 10th and the 100th, and the total, because there may be "
        "thousands",
    ),
    ("running trajectories are given out at the end", "same behaviour", "with `cut`"),
    (
        "progress bar of the sampling",
        "`tfrl.tasks.iter_samples(..., progress=True)`",
        "off by default: `learn` shows a bar of the whole run, and two bars flicker",
    ),
    ("`task.collect_samples(model, worker_pool, total_samples, *, ...)`", "the same", ""),
    (
        "`ReplaySamples(samples).sample(clip_size, stride, only_last)`",
        "same name",
        "takes one trajectory or several of one worker; a clip is a record `[n, ...]`",
    ),
    (
        "`MultiReplaySamples([ReplaySamples, ...])`",
        "same name",
        "`len` counts samples, `sample` draws one clip: buffers have a capacity in samples",
    ),
    (
        "`ReplayDataset(samples, clip_size, stride)`",
        "same name",
        "`batch_size` makes batches in place of a data loader",
    ),
    (
        "`epoch_is_over(state)`",
        "`epoch_is_over(num_updates, metrics)`",
        "called in Python after each update, with its metrics",
    ),
    # Clips.
    ("`sample_clip()` returns the images", "same name", "NumPy arrays"),
    (
        "`return_states=True`: images and states",
        "same name",
        "`return_images=False` for only states",
    ),
    ("`save_path`: returns None", "same name", ".mp4 and .gif"),
    (
        '`writer="ffmpeg"`, `"matplotlib"`, `"opencv"`',
        "same name",
        "`summary_writer` writes the clip to TensorBoard",
    ),
    ("`standardize_images=True`", "same name", "False returns unchanged frames, in a list"),
    ("`optimal=True` of `sample_clip`", "the same", ""),
    ("`model=None`: random actions", "the same", ""),
    (
        "pairs of an action and the state after it, T images",
        "a record of states, actions and rewards; T + 1 images",
        "a row has an action and the state before it; the clip shows the first and the last state",
    ),
    (
        "ValueError for `save_path` with `return_states`",
        "the clip is saved and its states are returned",
        "no error",
    ),
    (
        "ValueError for neither images nor states",
        "same behaviour",
        "no error with a `save_path`",
    ),
    (
        "RuntimeError where the initial state is terminated",
        "a `UserError`",
        'from `info["terminated"]` of `reset`: Gymnasium has no other place',
    ),
    ("`max_steps` bounds a clip", "the same", ""),
    ("fps of the environment", '`metadata["render_fps"]`', "Gymnasium's key; 30 without it"),
    (
        "`write_video`, `standardize_image`",
        "`tfrl.evaluation.video_file.write_video`, `tfrl.tasks.clip_recording.FrameStandard`",
        "all frames get the size of the first",
    ),
    # Training.
    (
        "no gradients while sampling",
        "same behaviour",
        "actions are computed outside gradient tapes",
    ),
    ("`ReinforcementLearningTrainer`, `BaseTask`", "`TaskWorkflow(task=...)`", "one replica"),
]
