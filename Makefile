# Every target makes its environment when it is missing or older than what it is made from: .venv
# with TensorFlow 2.15, TF-Agents and Reverb; .venv-current with the current TensorFlow.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
INSTALLED := .venv/.installed
PY_CURRENT := .venv-current/bin/python
INSTALLED_CURRENT := .venv-current/.installed
# Two processes: each holds a TensorFlow. tests/conftest.py shares the cores between them.
TEST_WORKERS ?= 2
# Processes share compiled modules: each process of the tests would compile 850 files otherwise.
unexport PYTHONDONTWRITEBYTECODE
# More arguments for pytest, for example: make test ARGS='-k gae'
ARGS ?=
# The fast tests run in two parts, one after the other: TensorFlow keeps what it has compiled for the
# life of a process.
RUNS := tests/compat tests/evolution tests/launch tests/workflows
PARTS := "$(RUNS)" "tests $(RUNS:%=--ignore=%)"

# Of the fast tests, those of what depends on TensorFlow's version.
CURRENT ?= $(addprefix tests/,test_tf_private.py test_keras.py test_keras3.py test_seeding.py \
  test_specs.py test_struct.py test_extras.py test_timing.py stacks distributions storage learning \
  $(addsuffix /test_modes.py,agents envs ops rollout) rollout/test_numpy_program.py \
  networks/test_keras_adapter.py networks/test_recurrent.py replay/test_in_graph.py \
  $(addprefix envs/adapters/test_,envpool.py gymnasium_async.py gymnasium_options.py) \
  $(addprefix learners/test_,modes.py in_place.py keras_module.py optimizers.py replicas.py) \
  $(addprefix experiment/test_,recorders.py export_formats.py export_functions.py run_folder.py) \
  $(addprefix workflows/test_,off_policy_runs.py stages.py) \
  evaluation/test_video_summary.py launch/test_train.py)
# Extras that the tests of both need.
EXTRAS := dev,export,plots,video,multiagent,mujoco,atari,envpool,serve,grpc
PIP := -m pip install --quiet --disable-pip-version-check --no-input

.PHONY: help venv venv-current train train-current test test-current tests-current test-newest test-slow test-jax \
  test-jax-current test-references lint docs bench \
  bench-peers bench-stacks

help:
	@echo "make train      train PPO on CartPole, show the result and where the video is"
	@echo "make test       the fast tests"
	@echo "make train-current, make test-current"
	@echo "                the same with the current TensorFlow, in .venv-current (Python 3.12 or 3.13);"
	@echo "                the tests are those of what depends on its version"
	@echo "make test-newest  these with the newest TensorFlow, allowed or not; says what broke"
	@echo "make test-slow  the slow tests, file by file; goes on where it was interrupted"
	@echo "make test-jax   installs the extra jax and runs the tests of JAX environments;"
	@echo "                make test-jax-current with the current TensorFlow"
	@echo "make test-references  installs pymoo and pyribs, and holds the searches against them"
	@echo "make lint       ruff, mypy, import-linter, bandit, and the documentation site"
	@echo "make docs       builds the documentation site into build/site"
	@echo "make bench      PPO throughput with 4, 64 and 1024 environments"
	@echo "make bench-peers  PPO, DQN, SAC and TD3 beside Stable-Baselines3, SBX and TF-Agents' DQN,"
	@echo "                in an environment of its own (TF-Agents' in .venv)"
	@echo "make bench-stacks  PPO, SAC, DQN, host rollout and start-up on both TensorFlows"
	@echo "make venv       only make .venv; make venv-current"

venv: $(INSTALLED)

$(INSTALLED): setup.py constraints.txt
	@python="$$(PYTHON='$(PYTHON)' .ci/python)"; \
	echo "Installing tfrl and its dependencies into .venv with $$python (about a minute)."; \
	if ! PYTHON= .venv/bin/python -c \
	    'import sys, pip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))' 2>/dev/null; \
	  then "$$python" -m venv --clear .venv; fi
	@$(PY) $(PIP) -c constraints.txt -e '.[reverb,tf-agents,docs,tune,$(EXTRAS)]'
# Without their dependencies: mpe2 would bring pygame-ce, which installs over tf-agents' pygame; the
# tests play MinAtar's games, which need NumPy alone, and none of its training scripts.
	@$(PY) $(PIP) --no-deps mpe2==1.1.1 MinAtar==1.0.15
	@touch $@

venv-current: $(INSTALLED_CURRENT)

$(INSTALLED_CURRENT): setup.py constraints-current.txt
	@python="$$(PYTHON='$(PYTHON_CURRENT)' .ci/python current)"; \
	echo "Installing tfrl and the current TensorFlow into .venv-current with $$python."; \
	if ! PYTHON= $(PY_CURRENT) -c \
	    'import sys, pip; sys.exit(not (3, 12) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	  then "$$python" -m venv --clear .venv-current; fi
	@$(PY_CURRENT) $(PIP) -c constraints-current.txt -e '.[$(EXTRAS)]'
	@$(PY_CURRENT) $(PIP) --no-deps mpe2==1.1.1 MinAtar==1.0.15
	@touch $@

train: $(INSTALLED)
	$(PY) bin/train.py --root_dir=runs/ppo_tf_cartpole

train-current: $(INSTALLED_CURRENT)
	$(PY_CURRENT) bin/train.py --root_dir=runs/current/ppo_tf_cartpole

test: $(INSTALLED)
	@failed=0; for part in $(PARTS); do \
	  $(PY) -m pytest -m "not slow" -n $(TEST_WORKERS) --dist loadfile --durations=15 \
	    --max-worker-restart=0 \
	    $$part $(ARGS) || { code=$$?; [[ $$code == 5 ]] || failed=$$code; }; \
	done; exit $$failed  # 5: no test of this part is chosen

test-current: $(INSTALLED_CURRENT)
	$(PY_CURRENT) -m pytest -m "not slow" -n $(TEST_WORKERS) --dist loadfile --durations=15 \
	  --max-worker-restart=0 $(CURRENT) $(ARGS)

tests-current:
	@echo $(CURRENT)

test-newest:
	.ci/newest $(ARGS)

test-slow: $(INSTALLED)
	.ci/slow $(ARGS)

# JAX and what is built on it are about 450 MB that the other tests do without.
test-jax: $(INSTALLED)
	@$(PY) $(PIP) -c constraints.txt -e '.[reverb,tf-agents,jax]'
	MUJOCO_GL=$${MUJOCO_GL:-egl} $(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile --durations=15 \
	  tests/envs/adapters/jax $(ARGS)
	$(PY) -m pytest tests/launch/test_settings.py -k "brax or gymnax"

test-jax-current: $(INSTALLED_CURRENT)
	@$(PY_CURRENT) $(PIP) -c constraints-current.txt -e '.[jax]'
	$(PY_CURRENT) -m pytest -n $(TEST_WORKERS) --dist loadfile --durations=15 \
	  tests/envs/adapters/jax $(ARGS)

test-references: $(INSTALLED)
	@$(PY) $(PIP) -c constraints.txt -e '.[evolution-references]'
	$(PY) -m pytest tests/evolution/test_population_references.py tests/evolution/test_map_elites.py $(ARGS)

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

lint: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy tfrl
	.venv/bin/lint-imports
	.venv/bin/bandit --quiet --recursive --configfile pyproject.toml tfrl bin benchmarks
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

bench: $(INSTALLED)
	for num_envs in 4 64 1024; do \
	  $(PY) -m benchmarks.ppo --env=tf:CartPole-v1 --num_envs=$$num_envs; \
	done

bench-stacks: $(INSTALLED) $(INSTALLED_CURRENT)
	$(PY) -m benchmarks.stacks
	$(PY) -m benchmarks.platform_facts
	$(PY_CURRENT) -m benchmarks.platform_facts

# The peers' pins and TensorFlow's do not resolve together: they have an environment of their own.
.venv-peers/.installed: benchmarks/peers.txt
	@python="$$(PYTHON='$(PYTHON)' .ci/python)"; "$$python" -m venv --clear .venv-peers
	@.venv-peers/bin/python $(PIP) -r benchmarks/peers.txt
	@touch $@

bench-peers: $(INSTALLED) .venv-peers/.installed
	for num_envs in 4 64; do \
	  $(PY) -m benchmarks.ppo --env=tf:CartPole-v1 --num_envs=$$num_envs --peers; \
	done
	$(PY) -m benchmarks.dqn --where=device,host,reverb --peers=sb3,tf_agents
	$(PY) -m benchmarks.sac --where=device,host --peers=sb3,sbx
	$(PY) -m benchmarks.td3 --where=device,host --peers=sb3,sbx
