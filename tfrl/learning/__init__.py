"""The pieces of training, each a function of state: optimizers first."""
