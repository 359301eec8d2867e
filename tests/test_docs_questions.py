"""Questions of someone who has never seen the library, and where the pages answer them."""

import re

import pytest

from tests.docs_helpers import ROOT
from tests.docs_links import anchors, section

DOCS = ROOT / "docs"
PAGE = (DOCS / "questions.md").read_text()
# (question, page, anchor, words that the section has)
QUESTIONS = [
    ("What is an env step?", "tutorials/first_run.md", "train", "An *env step* is"),
    (
        *("What is a learner step?", "tutorials/first_run.md", "the-same-without-a-gin-file"),
        "*learner steps*, which are gradient steps",
    ),
    (
        *("What is the difference between termination and truncation?", "custom_environment.md"),
        *("1-the-protocol", "after a termination the value is 0"),
    ),
    (
        "What does a metric mean?",
        "algorithms/README.md",
        "metrics-of-every-run",
        "`episode_return`",
    ),
    ("How do I use RMSprop?", "learner.md", "3-optimizers-and-learning-rates", '"rmsprop"'),
    (
        *("How do I anneal the learning rate?", "learner.md", "3-optimizers-and-learning-rates"),
        "points that start at step 0",
    ),
    (
        *("How do I change the size of the network?", "custom_network.md"),
        *("1-arguments-of-the-agent", "| `hidden` |"),
    ),
    ("How do I use a Keras model?", "custom_network.md", "4-a-keras-model", "KerasNetwork"),
    ("How do I add an LSTM?", "custom_network.md", "6-memory", "memory="),
    (
        *("How do I normalise observations?", "algorithms/README.md"),
        "what-the-on-policy-agents-share-and-where-it-differs-from-others",
        "observation statistics",
    ),
    (
        *("How do I normalise rewards?", "algorithms/README.md", "reward-normalisation"),
        "RewardNormalize",
    ),
    ("How do I use prioritised replay?", "replay.md", "what-an-item-is", 'kind="prioritized"'),
    (
        "How many learner steps does an off-policy agent take for an env step?",
        *("off_policy.md", "an-iteration", "`updates_per_step`"),
    ),
    ("How do I write an environment?", "tutorials/my_environment.md", "in-tensorflow", "obs_spec"),
    ("How do I mask actions?", "custom_environment.md", "5-what-goes-into-info", "action_mask"),
    ("How do I train several agents?", "own_tasks.md", "6-several-agents", "MultiAgentEnv"),
    (
        "How do I limit the length of an episode?",
        *("host_environments.md", "what-a-step-is", "max_episode_steps"),
    ),
    ("How do I log a success rate?", "playing.md", "success-rates", "info_fields"),
    ("How do I go on with a run?", "playing.md", "go-on-with-a-run", "--total_env_steps"),
    (
        *("How do I save checkpoints more often?", "playing.md", "checkpoints-and-recorders"),
        "`checkpoint_interval`",
    ),
    ("How do I log to Weights & Biases?", "playing.md", "checkpoints-and-recorders", '"wandb"'),
    ("How do I repeat a run to the bit?", "playing.md", "repeat-a-run", "`params_digest`"),
    ("How do I record videos?", "own_tasks.md", "7-the-results", "--video_interval"),
    ("How do I compare runs?", "playing.md", "look-at-a-run-and-compare-several", "tfrl-report"),
    ("How do I try several learning rates?", "searching.md", "a-grid", "--grid="),
    (
        "How do I run my own code during a training?",
        *("own_tasks.md", "5-callbacks-and-going-on", "on_step"),
    ),
    (
        "What happens when the loss is not finite?",
        *("learner.md", "4-the-update-in-order", "`check_numerics`"),
    ),
    ("How do I print inside a loss?", "learner.md", "4-the-update-in-order", '"eager"'),
    ("Why does the first row of metrics take seconds?", "performance.md", "start", "tracing"),
    ("How do I train on a GPU?", "install.md", "gpu", "[cuda]"),
    ("How do I train on several devices?", "replicas.md", "on-one-machine", "--strategy=mirrored"),
    ("How do I collect with many processes?", "distributed.md", "experience", "Collectors"),
    ("How do I export to ONNX?", "export.md", "onnx", "onnxruntime"),
    ("How do I let the policy act in NumPy?", "playing.md", "load-a-policy", "predict"),
    (
        *("How do I write an algorithm?", "tutorials/my_algorithm.md"),
        *("ppo-with-an-auxiliary-loss", "tfrl.algorithm"),
    ),
]


def test_the_page_lists_the_questions_in_order():
    assert re.findall(r"^### (.*)$", PAGE, flags=re.MULTILINE) == [q for q, *_ in QUESTIONS]
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize(("question", "page", "anchor", "words"), QUESTIONS)
def test_the_page_that_is_named_answers(question, page, anchor, words):
    answer = PAGE.split(f"### {question}\n")[1].split("\n#")[0]
    assert f"]({page}#{anchor})" in answer
    text = (DOCS / page).read_text()
    assert anchor in anchors(text)
    assert words in " ".join(section(text, anchor).split())
