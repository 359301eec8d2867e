"""A policy as a server: batches of requests, TensorFlow Serving's REST form, gRPC, a log."""
