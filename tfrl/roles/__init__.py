"""The processes of a distributed run: collectors, a learner, and their data in Reverb tables."""
