"""The processes of a distributed run: collectors, a learner, and what travels between them."""
