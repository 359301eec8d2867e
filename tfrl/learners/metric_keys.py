"""Names of an update's metrics, as RLlib's constants."""

# Metrics of losses and of every module's update.
POLICY_LOSS_KEY = "policy_loss"
VF_LOSS_KEY = "value_loss"
ENTROPY_KEY = "entropy"
TOTAL_LOSS_KEY = "loss"
LR_KEY = "learning_rate"
NUM_TRAINABLE_PARAMETERS = "num_trainable_parameters"
NUM_NON_TRAINABLE_PARAMETERS = "num_non_trainable_parameters"

# Counts of trained rows, from the batch.
MODULE_TRAIN_BATCH_SIZE_MEAN = "module_train_batch_size_mean"
NUM_MODULE_STEPS_TRAINED = "num_module_steps_trained"
NUM_MODULE_STEPS_TRAINED_LIFETIME = "num_module_steps_trained_lifetime"
NUM_ENV_STEPS_TRAINED = "num_env_steps_trained"
NUM_ENV_STEPS_TRAINED_LIFETIME = "num_env_steps_trained_lifetime"
DATASET_NUM_ITERS_TRAINED = "dataset_num_iters_trained"
DATASET_NUM_ITERS_TRAINED_LIFETIME = "dataset_num_iters_trained_lifetime"
WEIGHTS_SEQ_NO = "weights_seq_no"

# Names of `timesteps`.
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"

# Parts of a state.
COMPONENT_RL_MODULE = "rl_module"
COMPONENT_OPTIMIZER = "optimizer"
COMPONENT_METRICS_LOGGER = "metrics"
