"""Runs a TFAgent's code over other variables and random numbers.

A TFAgent owns its variables and optimizers. Here it is logic: its own variables are never read or
written after its creation. Acting reads given values in their place, which leaves no variable in
the graph. Training writes variables by fused kernels, inside conditions and through optimizers. So
while a training step is traced, each variable has the handle of a variable of the Learner, and the
trace reads and writes that one without a copy. Random draws of the code follow from a key.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import keras, seeding, struct, tf_private
from tfrl.errors import UserError
from tfrl.types import AgentState

_LOCK = threading.RLock()


class AgentVariables:
    """The variables of one TFAgent, under names that are equal in every process.

    Attributes:
      form: The variables as an AgentState. `params` has a group for each network except targets,
        from attributes, collections and modules; `target_params` has the target networks; `extra`
        has optimizers, counters and other variables.
    """

    def __init__(self, agent: Any, created: Sequence[tf.Variable]):
        """Names the variables.

        Args:
          agent: The TFAgent.
          created: All known variables created with the agent, in order.
        """
        names = _named(agent, created)
        self.form: AgentState = _as_state(names)
        self._leaves: list[tf.Variable] = tf.nest.flatten(self.form)
        self._paths = list(struct.paths(self.form))

    @property
    def paths(self) -> list[str]:
        """The paths of the leaves, in order."""
        return list(self._paths)

    def values(self) -> AgentState:
        """Returns copies of the present values."""
        return tf.nest.pack_sequence_as(self.form, [tf.identity(v) for v in self._leaves])

    def check_untouched(self, agent: Any) -> None:
        """Raises a UserError if the graph being traced reads or writes one of these variables."""
        graph = tf.compat.v1.get_default_graph()
        mine = {id(v.handle): path for v, path in zip(self._leaves, self._paths, strict=True)}
        touched = [mine[id(t)] for t, _ in getattr(graph, "captures", []) if id(t) in mine]
        if touched:
            raise UserError(
                f"{type(agent).__name__}, as a module of tfrl",
                expected="plain methods, since training and acting compile as one function",
                got=f"a method decorated with tf.function, over {touched[0]}",
                remedy="Remove the decorator.",
            )

    def unknown(self, graph: Any) -> list[Any]:
        """Returns the resources that a graph uses beside these variables."""
        mine = {id(v.handle) for v in self._leaves}
        captured = [t for t, _ in graph.captures if t.dtype == tf.resource]
        return [t for t in captured if id(t) not in mine]

    @contextlib.contextmanager
    def read_as(self, state: AgentState) -> Iterator[None]:
        """Makes the agent's code read the values of a state; for code inside a graph.

        Raises:
          UserError: If the code assigns to a variable.
        """
        values = [tf.convert_to_tensor(x) for x in tf.nest.flatten(state)]
        with _LOCK, keras.read_as(self._leaves, values) as now:
            yield
            changed = [
                path for path, x, y in zip(self._paths, values, now(), strict=True) if x is not y
            ]
        if changed:
            raise UserError(
                f"the TFAgent's {changed[0]}",
                expected="variables that do not change when the policy acts",
                got="an assignment in its action",
                remedy="Store it in the policy state, which is kept per environment.",
            )

    @contextlib.contextmanager
    def stand_for(self, state: AgentState) -> Iterator[None]:
        """Makes the agent's code read and write the variables of a state.

        Args:
          state: Variables like those of `form`.

        Raises:
          UserError: For a state of other variables.
        """
        theirs = [_plain(v) for v in tf.nest.flatten(state)]
        self._check_alike(theirs)
        with _LOCK:
            # Another thread may have set other handles meanwhile.
            before = [v.handle for v in self._leaves]
            try:
                for mine, variable in zip(self._leaves, theirs, strict=True):
                    tf_private.set_handle(mine, variable.handle)
                yield
            finally:
                for mine, handle in zip(self._leaves, before, strict=True):
                    tf_private.set_handle(mine, handle)

    def _check_alike(self, theirs: list[Any]) -> None:
        def kinds(variables: list[Any]) -> list[str]:
            return [f"{v.dtype.name} {v.shape}" for v in variables]

        have, want = kinds(theirs), kinds(self._leaves)
        if have != want:
            pairs = zip(self._paths, have, want, strict=False)
            first = next((f"{p} of {h}, not {w}" for p, h, w in pairs if h != w), "")
            raise UserError(
                "the state of a TFAgent",
                expected=f"the {len(want)} variables of init()",
                got=f"{len(have)}{first and ', ' + first}",
                remedy="Create the state with init() of the same module.",
            )


def _plain(variable: Any) -> Any:
    """Returns the single variable of a strategy of one replica."""
    values = getattr(variable, "values", None)
    return values[0] if isinstance(values, tuple) else variable


@contextlib.contextmanager
def recorded() -> Iterator[list[tf.Variable]]:
    """Lists the variables created within the context, in order."""
    created: list[tf.Variable] = []

    def creator(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next_creator(**kwargs)
        created.append(variable)
        return variable

    with tf.variable_creator_scope(creator):
        yield created


def _named(agent: Any, created: Sequence[tf.Variable]) -> dict[str, tf.Variable]:
    """Returns `{path: variable}`, each once."""
    names: dict[str, tf.Variable] = {}
    known: set[int] = set()

    def add(path: str, variable: Any) -> None:
        variable = keras.tf_variable(variable)
        if id(variable) not in known:
            known.add(id(variable))
            names[path] = variable

    attributes = [(name.lstrip("_"), x) for name, x in sorted(vars(agent).items())]
    own = [one for name, x in attributes for one in _networks(name, x, set(), modules=False)]
    # The agent's attributes name the variables, even if its policies have them too.
    own.sort(key=lambda item: item[0].count("/"))
    visited = {id(agent)}
    parts = [one for name, x in attributes for one in _networks(name, x, visited, modules=True)]
    for name, network in [*own, *parts]:
        target = any(part.startswith("target_") for part in name.split("/"))
        for i, variable in enumerate(network.variables):
            part = "target_params" if target else "params"
            add(f"{part}/{name}/{i:03d}_{_base(variable)}", variable)
    for name, x in attributes:
        if isinstance(x, tf.Variable):
            add(f"extra/{name}", x)
    primaries = dict(names)
    for name, optimizer in attributes:
        if hasattr(optimizer, "apply_gradients"):
            for path, variable in _of_optimizer(optimizer, primaries):
                add(f"extra/{name}/{path}", variable)
    rest = [v for v in map(keras.tf_variable, [*created, *agent.variables]) if id(v) not in known]
    for i, variable in enumerate({id(v): v for v in rest}.values()):
        add(f"extra/others/{i:03d}_{_base(variable)}", variable)
    return names


def _networks(
    name: str, thing: Any, visited: set[int], *, modules: bool
) -> Iterator[tuple[str, Any]]:
    """Yields the Keras layers, with paths, in an attribute, a collection, or also a module."""
    if keras.is_layer(thing):
        yield name, thing
        return
    parts: list[tuple[Any, Any]] = []
    if isinstance(thing, Mapping):
        parts = sorted(thing.items(), key=lambda pair: str(pair[0]))
    elif isinstance(thing, list | tuple):
        parts = list(enumerate(thing))
    elif modules and isinstance(thing, tf.Module):
        parts = [(part.lstrip("_"), x) for part, x in sorted(vars(thing).items())]
    if not parts or id(thing) in visited:
        return
    visited.add(id(thing))
    for part, x in parts:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", str(part))
        yield from _networks(f"{name}/{plain}", x, visited, modules=modules)


def _base(variable: Any) -> str:
    """Returns the last part of a variable's name, without its counter."""
    name = variable.name.split(":")[0].split("/")[-1]
    return re.sub(r"_\d+$", "", re.sub(r"[^A-Za-z0-9_]", "_", name))


def _of_optimizer(
    optimizer: Any, primaries: dict[str, tf.Variable]
) -> Iterator[tuple[str, tf.Variable]]:
    """Yields the variables of an optimizer of TensorFlow 1 or Keras, under stable names."""
    own = keras.optimizer_variables(optimizer)
    slots = {id(v): path for path, v in _slots(optimizer, primaries)}
    # Newer Keras optimizers name a slot by its variable; names may have counters.
    short = {v.name: path for path, v in primaries.items()}
    short = short if len(short) == len(primaries) else {}
    rest = []
    for variable in own:
        path = slots.get(id(variable))
        if path is None:
            kind, _, of = variable.name.partition("/")[2].partition("/")
            path = f"{kind}/{short[of]}" if of in short else None
        if path is None:
            rest.append(variable)
        else:
            yield path, variable
    if slots:  # TensorFlow 1 sorts by names
        rest = sorted(rest, key=_base)
    for i, variable in enumerate(rest):
        yield f"{i:03d}_{_base(variable)}", variable


def _slots(optimizer: Any, primaries: dict[str, tf.Variable]) -> Iterator[tuple[str, tf.Variable]]:
    for slot in getattr(optimizer, "get_slot_names", list)():
        for path, primary in primaries.items():
            with contextlib.suppress(KeyError):
                variable = optimizer.get_slot(primary, slot)
                if variable is not None:
                    yield f"{slot}/{path}", variable


def _as_state(names: dict[str, tf.Variable]) -> AgentState:
    nested: dict[str, Any] = {}
    for path, variable in names.items():
        *folders, last = path.split("/")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = variable
    return AgentState(
        params=nested.get("params", {}),
        target_params=nested.get("target_params"),
        extra=nested.get("extra"),
    )


class _StatelessRandomOps:
    """The functions of `tf_private.random_ops`, with equal arguments; seeds are ignored."""

    def __init__(self, key: tf.Tensor):
        self._key = key
        self._count = 0

    def _next(self) -> tf.Tensor:
        self._count += 1
        return seeding.fold_in(self._key, self._count)

    def random_uniform(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.cast(seeding.uniform(self._next(), shape), dtype)

    def random_uniform_int(
        self, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        dtype = tf.convert_to_tensor(minval).dtype
        return tf.random.stateless_uniform(
            shape, self._next(), minval, maxval, dtype, alg=seeding.ALG
        )

    def random_standard_normal(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.cast(seeding.normal(self._next(), shape), dtype)

    def truncated_normal(
        self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        return tf.random.stateless_truncated_normal(
            shape, self._next(), dtype=dtype, alg=seeding.ALG
        )

    def multinomial(
        self,
        logits: Any,
        num_samples: Any,
        seed: int = 0,
        seed2: int = 0,
        output_dtype: Any = tf.int64,
        name: Any = None,
    ) -> Any:
        logits = tf.convert_to_tensor(logits)  # [N, A]
        number = tf.get_static_value(num_samples)
        number = num_samples if number is None else number
        rows, actions = (logits.shape[i] or tf.shape(logits)[i] for i in range(2))
        u = seeding.uniform(self._next(), [rows, number, actions])
        gumbel = -tf.math.log(-tf.math.log(tf.maximum(u, 2.0**-25)))
        noisy = tf.cast(logits, tf.float32)[:, tf.newaxis] + gumbel
        return tf.argmax(noisy, axis=-1, output_type=output_dtype)

    def random_shuffle(self, value: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        value = tf.convert_to_tensor(value)
        draws = seeding.uniform(self._next(), [value.shape[0] or tf.shape(value)[0]])
        return tf.gather(value, tf.argsort(draws))

    def random_gamma(
        self, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0, name: Any = None
    ) -> Any:
        alpha = tf.convert_to_tensor(alpha)
        full_shape = tf.concat([shape, tf.shape(alpha)], 0)
        return tf.random.stateless_gamma(full_shape, self._next(), alpha, dtype=alpha.dtype)

    def random_poisson_v2(
        self,
        shape: Any,
        rate: Any,
        seed: int = 0,
        seed2: int = 0,
        dtype: Any = tf.int64,
        name: Any = None,
    ) -> Any:
        rate = tf.convert_to_tensor(rate)
        full_shape = tf.concat([shape, tf.shape(rate)], 0)
        return tf.random.stateless_poisson(full_shape, self._next(), rate, dtype=dtype)


_NAMES = [name for name in vars(_StatelessRandomOps) if not name.startswith("_")]


@contextlib.contextmanager
def drawn_from(key: tf.Tensor) -> Iterator[None]:
    """Makes this thread's stateful random operations draw from a key, the first from child 1.

    A draw in the body of a `tf.while_loop` is traced once, so it is equal in each iteration.

    Args:
      key: int32 [2].
    """
    draws, me = _StatelessRandomOps(key), threading.get_ident()

    def here(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        mine = getattr(draws, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return (mine if threading.get_ident() == me else usual)(*args, **kwargs)

        return call

    with _replaced(tf_private.random_ops, _NAMES, here):
        yield


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Makes `tf.debugging.check_numerics` of this thread return its argument.

    TF-Agents' training steps check their losses with it, which raises in graph mode and does
    nothing in XLA. The Learner has its own check, which undoes the step.
    """
    me = threading.get_ident()

    def here(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def check_numerics(tensor: Any, message: str, name: Any = None) -> Any:
            if threading.get_ident() == me:
                return tf.convert_to_tensor(tensor)
            return usual(tensor, message, name)

        return check_numerics

    with _replaced(tf.debugging, ["check_numerics"], here):
        yield


@contextlib.contextmanager
def _replaced(
    module: Any, names: list[str], make: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces functions of a module with `make(name, usual)` within the context."""
    with _LOCK:
        before = {name: getattr(module, name) for name in names}
        try:
            for name, usual in before.items():
                setattr(module, name, make(name, usual))
            yield
        finally:
            for name, usual in before.items():
                setattr(module, name, usual)
