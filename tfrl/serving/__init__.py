"""Serves a policy: batched requests, TensorFlow Serving's REST and gRPC, an episode log."""
